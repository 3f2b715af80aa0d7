"""What is used of FSDP2's inside, and whether this torch has it.

FSDP2 has no public way to say where parameters lie in its buffers, nor which of them are reduced. What fsdp.py, prefetch.py and
backward.py use of it is listed here, as it was read in torch 2.9 to 2.15, and looked for once before anything is changed: in a torch that
differs nothing is, and its own collectives stay."""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from collections.abc import Iterator

import torch

OLDEST = (2, 9)
_FOLDER = "torch.distributed.fsdp._fully_shard."
# {module: {class: its attributes}}
_CLASSES = {
    "_fsdp_param_group": {
        "FSDPParamGroup": ("fsdp_params", "comm_ctx", "_all_gather_comm", "_reduce_scatter_comm", "_all_gather_result", "_module_fqn",
                           "_training_state", "_prefetch_unshard", "set_allocate_memory_from_process_group"),
    },
    "_fsdp_param": {
        "FSDPParam": ("sharded_state", "param_dtype", "padded_sharded_param_size", "_orig_size", "_sharded_local_tensor",
                      "_sharded_param_data", "_sharded_post_forward_param_data"),
        "ShardedState": ("SHARDED_POST_FORWARD",),
    },
    "_fsdp_state": {
        "FSDPState": ("init", "_register_pre_backward_hook", "_state_ctx", "_comm_ctx", "_modules", "_is_root"),
        "FSDPStateContext": ("iter_forward_root",),
    },
    "_fsdp_common": {"TrainingState": ("FORWARD",)},
    "_fsdp_collectives": {
        "DefaultAllGather": ("allocate",),
        "DefaultReduceScatter": ("allocate",),
        "ProcessGroupAllocAllGather": ("allocate",),
        "ProcessGroupAllocReduceScatter": ("allocate",),
        "AllGatherResult": ("all_gather_output", "all_gather_work"),
    },
}
# What backward.py uses: where it is not there, backward waits for each reduction.
_LATER = {
    "_fsdp_param_group": {"FSDPParamGroup": ("comm_ctx", "_all_reduce_hook")},
    "_fsdp_param": {"FSDPParam": ("sharded_param", "offload_to_cpu")},
}
# {(module, function): its first parameters}; they are called by the module's own global names.
_FUNCTIONS = {
    ("_fsdp_param_group", "foreach_all_gather"): ("fsdp_params", "group"),
    ("_fsdp_param_group", "foreach_reduce"): ("fsdp_params", "unsharded_grads", "reduce_scatter_group"),
    ("_fsdp_api", "AllGather.__call__"): ("self", "output_tensor", "input_tensor", "group", "async_op"),
    ("_fsdp_api", "ReduceScatter.__call__"): ("self", "output_tensor", "input_tensor", "group", "op", "async_op"),
    ("_fsdp_param_group", "FSDPParamGroup._prefetch_unshard"): ("target_fsdp_param_group", "pass_type"),
}


def module(name: str) -> types.ModuleType:
    return importlib.import_module(_FOLDER + name)


def _code_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _code_names(one)


def _names(owner: type) -> set[str]:
    """What a class has, or its functions use."""
    found = set(dir(owner)) | set(getattr(owner, "__annotations__", ()))
    for one in vars(owner).values():
        one = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
        code = getattr(inspect.unwrap(one) if callable(one) else one, "__code__", None)
        found.update(_code_names(code) if code is not None else ())
    return found


def _missing_of(table: dict[str, dict[str, tuple[str, ...]]]) -> Iterator[str]:
    for name, classes in table.items():
        for owner, attributes in classes.items():
            found = getattr(module(name), owner, None)
            known = _names(found) if found is not None else set()
            yield from ("%s.%s" % (owner, one) for one in attributes if one not in known)


def _missing() -> Iterator[str]:
    yield from _missing_of(_CLASSES)
    for (name, path), parameters in _FUNCTIONS.items():
        function: object = module(name)
        for part in path.split("."):
            function = getattr(function, part, None)
        found = tuple(inspect.signature(function).parameters) if callable(function) else ()
        if found[: len(parameters)] != parameters:
            yield "%s(%s)" % (path, ", ".join(parameters))
    if not hasattr(module("_fsdp_collectives"), "dist"):
        yield "_fsdp_collectives.dist"


@functools.cache
def difference() -> str:
    """How this torch's FSDP2 differs from the one that is known here; "" if it does not."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST:
        return "FSDP2 is known here from torch %d.%d on" % OLDEST
    try:
        missing = list(_missing())
    except Exception as error:  # whatever has been moved or renamed
        missing = [str(error)]
    return "it has no %s" % ", ".join(missing) if missing else ""


@functools.cache
def reduces_later() -> bool:
    """Whether backward can go on while gradients are reduced."""
    from torch.distributed.tensor import DTensor

    return "_local_tensor" in _names(DTensor) and not any(_missing_of(_LATER))


def check() -> None:
    """RuntimeError for a torch whose inside differs."""
    if difference():
        raise RuntimeError("FSDP2 of torch %s is not known here: %s" % (torch.__version__, difference()))
