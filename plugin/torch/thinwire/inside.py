"""What is used of torch's inside, and whether this torch has it.

FSDP2 has no public way to say where parameters lie in its buffers, nor which of them are reduced;
torch.distributed has none to its store. Private names of torch are used in this file alone, as they were read
in torch 2.9 to 2.15. They are looked for once, before anything is changed: in a torch that differs nothing
is, one line says what it lacks, and its own collectives stay. What the report alone wants is left out where
it is not there."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import operator
import os
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

OLDEST = (2, 9)
_FOLDER = "torch.distributed.fsdp._fully_shard."
Attributes = dict[str, dict[str, tuple[str, ...]]]  # {module: {class: its attributes}}
_CLASSES: Attributes = {
    "_fsdp_param_group": {
        "FSDPParamGroup": ("fsdp_params", "comm_ctx", "_all_gather_comm", "_reduce_scatter_comm",
                           "_all_gather_result", "_module_fqn", "_training_state", "_prefetch_unshard",
                           "set_allocate_memory_from_process_group"),
    },
    "_fsdp_param": {
        "FSDPParam": ("sharded_state", "param_dtype", "padded_sharded_param_size", "_orig_size",
                      "_sharded_local_tensor", "_sharded_param_data", "_sharded_post_forward_param_data",
                      "_module_info", "_param_fqn"),
        "ShardedState": ("SHARDED_POST_FORWARD",),
    },
    "_fsdp_state": {
        "FSDPState": ("init", "_register_pre_backward_hook", "_state_ctx", "_comm_ctx", "_modules",
                      "_is_root"),
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
# What backward.py uses: without it backward waits for each reduction.
_LATER: Attributes = {
    "_fsdp_param_group": {"FSDPParamGroup": ("comm_ctx", "_all_reduce_hook")},
    "_fsdp_param": {"FSDPParam": ("sharded_param", "offload_to_cpu")},
}
# (module, function) of FSDP2's that wrap_fsdp2() wraps, and what each is called with
REDUCTIONS = ("_fsdp_param_group", "foreach_reduce")  # parameters, whole gradients, process group, ...
GATHERS = ("_fsdp_param_group", "foreach_all_gather")  # parameters, process group, ...
# group, whether its buffers are the process group's
ALLOCATION = ("_fsdp_param_group", "FSDPParamGroup.set_allocate_memory_from_process_group")
STATE_INIT = ("_fsdp_state", "FSDPState.init")  # state, ...
# state, output: the last that is done with each module's output, the root's at the end
END_OF_FORWARD = ("_fsdp_state", "FSDPState._register_pre_backward_hook")
# {(module, function): its first parameters}. torch calls them by the module's global names.
_FUNCTIONS = {
    GATHERS: ("fsdp_params", "group"),
    REDUCTIONS: ("fsdp_params", "unsharded_grads", "reduce_scatter_group"),
    ("_fsdp_api", "AllGather.__call__"): ("self", "output_tensor", "input_tensor", "group", "async_op"),
    ("_fsdp_api", "ReduceScatter.__call__"): ("self", "output_tensor", "input_tensor", "group", "op",
                                              "async_op"),
    ("_fsdp_collectives", "DefaultAllGather.allocate"): ("self", "size", "dtype", "device"),
    ("_fsdp_collectives", "DefaultReduceScatter.allocate"): ("self", "size", "dtype", "device"),
    ("_fsdp_param_group", "FSDPParamGroup._prefetch_unshard"): ("target_fsdp_param_group", "pass_type"),
    ALLOCATION: ("self", "enable"),
    END_OF_FORWARD: ("self", "output"),
}
# {dotted name: the arguments it gets here; None if Python knows no signature of it}
Names = dict[str, typing.Optional[tuple[str, ...]]]
# What every use of Thinwire needs.
_ALWAYS: Names = {
    "torch.distributed.distributed_c10d._get_default_store": (),
    "torch.distributed.ProcessGroup._get_backend": None,
}
# What FSDP2's hooks need outside of FSDP2.
_BESIDE: Names = {
    "torch._C._current_graph_task_id": None,
}
_BESIDE_LATER: Names = {
    "torch._C._disabled_torch_function_impl": None,
    "torch.Tensor._make_wrapper_subclass": None,
    "torch.autograd.Variable._execution_engine.queue_callback": None,
    "torch.utils._pytree.tree_map_only": None,
}
# Functions of torch.optim._muon, with their first parameters.
_MUON = {"_single_tensor_muon": ("params", "grads", "muon_momentum_bufs"),
         "_zeropower_via_newtonschulz": ("grad", "ns_coefficients", "ns_steps", "eps"),
         "_adjust_lr": ("lr", "adjust_lr_fn", "param_shape")}


# Whether this torch has it all


def module(name: str) -> Any:
    """Import a private module of FSDP2's."""
    return importlib.import_module(_FOLDER + name)


def _code_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _code_names(one)


def _names(owner: type) -> set[str]:
    """Names that a class has or that its functions use."""
    found = set(dir(owner)) | set(getattr(owner, "__annotations__", ()))
    for one in vars(owner).values():
        one = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
        code = getattr(inspect.unwrap(one) if callable(one) else one, "__code__", None)
        found.update(_code_names(code) if code is not None else ())
    return found


def _missing_of(table: Attributes) -> Iterator[str]:
    for name, classes in table.items():
        for owner, attributes in classes.items():
            found = getattr(module(name), owner, None)
            known = _names(found) if found is not None else set()
            yield from ("%s.%s" % (owner, one) for one in attributes if one not in known)


def _function(owner: Any, path: str) -> Callable | None:
    """The callable that a dotted path names in an owner, or None."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner if callable(owner) else None


def _begins_with(function: Callable | None, parameters: tuple[str, ...]) -> bool:
    """Whether a function's first parameters have these names."""
    if function is None:
        return False
    return tuple(inspect.signature(function).parameters)[: len(parameters)] == parameters


def _takes(function: Callable | None, parameters: tuple[str, ...] | None) -> bool:
    """Whether a function can be called with just these arguments. parameters None: Python knows no signature
    of it."""
    if function is None or parameters is None:
        return function is not None
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError:
        return False
    return _begins_with(function, parameters)


def _missing_names(names: Names) -> Iterator[str]:
    for name, parameters in names.items():
        if not _takes(_function(torch, name.removeprefix("torch.")), parameters):
            yield name if parameters is None else "%s(%s)" % (name, ", ".join(parameters))


def _missing() -> Iterator[str]:
    yield from _missing_names(_BESIDE)
    yield from _missing_of(_CLASSES)
    for (name, path), parameters in _FUNCTIONS.items():
        if not _begins_with(_function(module(name), path), parameters):
            yield "%s(%s)" % (path, ", ".join(parameters))
    if not hasattr(module("_fsdp_collectives"), "dist"):
        yield "_fsdp_collectives.dist"


def _lacks(missing: Iterator[str]) -> str:
    found = list(missing)
    return "it has no %s" % ", ".join(found) if found else ""


@functools.cache
def base_difference() -> str:
    """How this torch differs from those that are known here in what everything uses; "" if it does not."""
    return _lacks(_missing_names(_ALWAYS))


@functools.cache
def difference() -> str:
    """How this torch's FSDP2 differs from those that are known here; "" if it does not."""
    version = tuple(int(number) for number in torch.__version__.split(".")[:2])
    if version < OLDEST:
        return "FSDP2 is known here from torch %d.%d on" % OLDEST
    try:
        return base_difference() or _lacks(_missing())
    except Exception as error:  # something has been moved or renamed
        return "it has no %s" % error


@functools.cache
def reduces_later() -> bool:
    """Whether backward can go on while gradients are reduced."""
    from torch.distributed.tensor import DTensor

    return ("_local_tensor" in _names(DTensor) and not any(_missing_of(_LATER))
            and not any(_missing_names(_BESIDE_LATER)))


def check() -> None:
    """Raise RuntimeError for a torch whose FSDP2 is not known here."""
    if difference():
        raise RuntimeError("FSDP2 of torch %s is not known here: %s" % (torch.__version__, difference()))


def check_base() -> None:
    """Raise RuntimeError for a torch with which nothing here can be used."""
    if base_difference():
        raise RuntimeError("torch %s is not known here: %s" % (torch.__version__, base_difference()))


def check_backend() -> None:
    """Raise RuntimeError for a torch that differs, or whose backends cannot be written in Python."""
    check_base()
    from torch._C._distributed_c10d import Backend

    try:
        Backend(0, 1)
    except TypeError as error:
        raise RuntimeError("the backend thinwire needs a newer torch than %s: its backends cannot be written "
                           "in Python" % torch.__version__) from error


@functools.cache
def _muon() -> Any:
    """The module of torch.optim.Muon; None if this torch's Muon is not known here."""
    with contextlib.suppress(ImportError):
        found: Any = importlib.import_module("torch.optim._muon")
        if all(_begins_with(_function(found, name), parameters) for name, parameters in _MUON.items()):
            return found
    return None


# Wrappers around torch's own functions


def wrap(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replace a function of `owner` by make(original), once; do nothing if there is none."""
    original = getattr(owner, name, None)
    if original is not None and not hasattr(original, "_thinwire"):
        wrapped: Any = functools.wraps(original, updated=())(make(original))
        wrapped._thinwire = True
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)


def wrap_fsdp2(place: tuple[str, str], make: Callable[[Callable], Callable]) -> None:
    """Wrap a function of FSDP2's, given as (module, name) like REDUCTIONS."""
    path, _, name_of_function = place[1].rpartition(".")
    owner = module(place[0])
    wrap(getattr(owner, path) if path else owner, name_of_function, make)


def wrap_group_init(make: Callable[[Callable], Callable]) -> None:
    """Wrap the making of a group of parameters, again at each call: every call of patch() has its own
    rules."""
    owner = module("_fsdp_param_group").FSDPParamGroup
    owner.__init__ = functools.wraps(owner.__init__)(make(owner.__init__))


def wrap_built_in_hook(owner: type, make: Callable[[Callable], Callable]) -> None:
    """Wrap the registration of one of torch's C++ hooks in a DDP model."""
    wrap(owner, "_register_builtin_comm_hook", make)


def replace_distributed(kind: type) -> Any:
    """Put a module of this class in the place of torch.distributed in FSDP2's collectives."""
    collectives = module("_fsdp_collectives")
    if not isinstance(collectives.dist, kind):
        collectives.dist = kind("torch.distributed")
    return collectives.dist


# Modules that call FSDP1's collectives.
_FSDP1_CALLERS = ("torch.distributed.fsdp._flat_param", "torch.distributed.fsdp._runtime_utils",
                  "torch.distributed.algorithms._comm_hooks.default_hooks")


def replace_fsdp1_distributed(kind: type) -> None:
    """Put a module of this class in the place of torch.distributed in FSDP1's collectives, as far as this
    torch calls them there."""
    for name in _FSDP1_CALLERS:
        with contextlib.suppress(ImportError):
            caller: Any = importlib.import_module(name)
            if getattr(caller, "dist", None) is dist:
                caller.dist = kind("torch.distributed")


def wrap_muon(make: Callable[[Callable], Callable]) -> None:
    """Wrap the function with which torch.optim.Muon makes a step, if this torch's Muon is known here."""
    if _muon() is not None:
        wrap(_muon(), "_single_tensor_muon", make)


def muon_orthogonal(update: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    return _muon()._zeropower_via_newtonschulz(
        update, options["ns_coefficients"], options["ns_steps"], options["eps"])


def muon_rate(options: dict[str, Any], shape: torch.Size) -> float:
    return _muon()._adjust_lr(float(options["lr"]), options["adjust_lr_fn"], shape)


# FSDP2's groups of parameters

# Names of the attributes that hold a group's collectives.
COMMS = ("_all_gather_comm", "_reduce_scatter_comm")


def default_comms() -> tuple[type, type]:
    """torch's own (all-gather, reduce-scatter) classes, in the order of COMMS."""
    collectives = module("_fsdp_collectives")
    return collectives.DefaultAllGather, collectives.DefaultReduceScatter


def allocating_comms() -> tuple[type, type]:
    """torch's classes with buffers of the process group's."""
    collectives = module("_fsdp_collectives")
    return collectives.ProcessGroupAllocAllGather, collectives.ProcessGroupAllocReduceScatter


def comm_kinds() -> tuple[type, type]:
    """The base classes of all FSDP2 collectives: (all-gather, reduce-scatter)."""
    api = module("_fsdp_api")
    return api.AllGather, api.ReduceScatter


def groups_of(model: torch.nn.Module) -> Iterator[Any]:
    """The groups of parameters of all FSDP2 modules in a model."""
    for state in states_of(model):
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [one for one in [state._fsdp_param_group] if one is not None]
        yield from groups


params = operator.attrgetter("fsdp_params")
name = operator.attrgetter("_module_fqn")  # the group's module, once the model has run; "" for the root
context = operator.attrgetter("comm_ctx")  # what all groups of a tree of FSDP2 modules share


def is_in_forward(group: Any) -> bool:
    return group._training_state.name == "FORWARD"


def has_reduce_hook(group: Any) -> bool:
    return group._all_reduce_hook is not None


def is_gathered(group: Any) -> bool:
    """Whether a group is gathered, or being gathered."""
    return group._all_gather_result is not None


def gather(group: Any) -> None:
    """Begin a group's gather for a forward pass."""
    type(group)._prefetch_unshard(group, "forward")


def drop_gather(group: Any) -> Any:
    """Forget a gather that has begun. Returns its work, for which the caller waits."""
    result, group._all_gather_result = group._all_gather_result, None
    return result.all_gather_work if result is not None else None


def gathered_bytes(result: Any | None) -> int:
    """Bytes of what FSDP2's gather has returned; 0 if nothing was gathered."""
    return result.all_gather_output.nbytes if result is not None else 0


# Parameters of a group

size = operator.attrgetter("_orig_size")  # of the whole parameter, of which a rank has a shard
shard_size = operator.attrgetter("padded_sharded_param_size")  # of a rank's shard, with padding
shard = operator.attrgetter("sharded_param")  # the shard as a parameter: it has the gradient


def param_name(param: Any) -> str:
    """A parameter's name from the root on; until the model has run, its name in its module."""
    return getattr(param, "_param_fqn", None) or param._module_info.param_name


def gathered_dtype(param: Any) -> torch.dtype:
    """Type in which a parameter is gathered."""
    return getattr(param, "param_dtype", None) or param._sharded_param_data.dtype


def gathered(param: Any) -> tuple[int, torch.dtype] | None:
    """(elements in this rank's run, their type) of a parameter's shard, or of the part that it keeps between
    forward and backward. None if the tensor's own class decides what is gathered."""
    if gathers_own(param):
        return None
    after = getattr(param, "_sharded_post_forward_param_data", None)
    is_after = param.sharded_state.name == "SHARDED_POST_FORWARD" and after is not None
    data: Any = after if is_after else param._sharded_param_data
    return data.numel(), param.param_dtype or data.dtype


def gathers_own(param: Any) -> bool:
    """Whether the tensor's own class decides what is gathered."""
    return hasattr(param._sharded_local_tensor, "fsdp_pre_all_gather")


def own_elems(param: Any) -> int:
    """Elements that a tensor's own class has given to the present gather; 0 if torch does not tell."""
    data = getattr(param, "_extensions_data", None)
    return sum(one.numel() for one in getattr(data, "all_gather_input_sizes", ()))


def class_name(param: Any) -> str:
    """Class of a parameter's shard on this rank."""
    return type(param._sharded_local_tensor).__name__


def is_watched(param: Any) -> bool:
    """Whether somebody needs the gradient at once: an optimizer in backward, or a copy in another place."""
    return bool(getattr(param.sharded_param, "_post_accumulate_grad_hooks", None)) or param.offload_to_cpu


def local_shard(grad: torch.Tensor | None) -> Any:
    """A DTensor's memory on this rank; None for anything else."""
    return getattr(grad, "_local_tensor", None)


def set_local_shard(grad: torch.Tensor, shard: torch.Tensor) -> None:
    grad._local_tensor = shard


# Modules of FSDP2

state_context = operator.attrgetter("_comm_ctx")  # the context() of a state's groups
state_modules = operator.attrgetter("_modules")


def states_of(model: torch.nn.Module) -> Iterator[Any]:
    from torch.distributed.fsdp import FSDPModule

    return (one._get_fsdp_state() for one in model.modules() if isinstance(one, FSDPModule))


def runs_root(state: Any) -> bool:
    """Whether the present forward pass began at this module."""
    return state._state_ctx.iter_forward_root is state


def may_run_root(state: Any) -> bool:
    """Whether the present forward pass may have begun at this module. The pass may have failed before torch
    noted where it began."""
    return state._is_root or state._state_ctx.iter_forward_root in (None, state)


# Autograd and the dispatcher

no_torch_function = getattr(torch._C, "_disabled_torch_function_impl", None)


def no_dynamo(function: Callable) -> Callable:
    """Keep a function from being traced. torch.compiler.disable would load seconds' worth of modules: it is
    for a torch without the other way."""
    quick = _function(torch, "_disable_dynamo")
    return (quick if quick and _takes(quick, ("fn",)) else torch.compiler.disable)(function)


def backward_pass() -> int:
    """The number of the backward pass that this thread is in; -1 if it is in none."""
    return torch._C._current_graph_task_id()


def at_end_of_backward(action: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(action)


def future(value: object) -> torch.futures.Future:
    """A future for values such as this one, which may be in GPU memory."""
    if isinstance(value, torch.Tensor) and value.is_cuda:
        return torch.futures.Future(devices=[value.device])
    return torch.futures.Future()


def wrapper(kind: type, like: torch.Tensor) -> torch.Tensor:
    """A tensor of the class `kind` without memory of its own, shaped as `like`."""
    return torch.Tensor._make_wrapper_subclass(
        kind, like.size(), like.stride(), like.storage_offset(), dtype=like.dtype, device=like.device)


def is_in_use(storage: torch.UntypedStorage) -> bool:
    """Whether there are tensors in this memory, as far as torch tells."""
    return not hasattr(torch._C, "_storage_Use_Count") or torch._C._storage_Use_Count(storage._cdata) > 1


def operator_name(function: Any) -> str:
    return function._schema.name


def map_only(kind: type, function: Callable, tree: object) -> object:
    """Apply a function to all objects of the class `kind` in nested tuples, lists and dictionaries."""
    from torch.utils import _pytree

    return _pytree.tree_map_only(kind, function, tree)


def is_dispatched_twice() -> bool:
    """Whether a dispatch mode is active, which calls each operator a second time."""
    return bool(torch._C._len_torch_dispatch_stack())


def functional_operators(names: str) -> Iterator[object]:
    """Functional collective operators of that name: the one that Python calls, and the one that graphs
    call."""
    packet = getattr(torch.ops._c10d_functional, names, None)
    return (one for one in (packet, getattr(packet, "default", None)) if one is not None)


def wrap_operator(op: object, make: Callable[[Callable], Callable]) -> None:
    """Wrap an operator, if this torch calls operators by their _op as the known ones do."""
    with contextlib.suppress(AttributeError):
        wrap(op, "_op", make)


def reduces_in_python(model: Any) -> bool:
    """Whether compiled autograd reduces a DDP model's gradients."""
    return bool(getattr(model, "_use_python_reducer", False))


def check_hook(model: Any, hook: Callable) -> None:
    """Check a DDP hook as torch does before it takes it."""
    model._check_comm_hook(hook)


def has_mixed_precision(model: Any) -> bool:
    """Whether a DDP model computes in another type than that of its parameters, by DDP itself."""
    return getattr(model, "mixed_precision", None) is not None


def joins_unevenly(model: Any) -> bool:
    """Whether a DDP model is in a join() that divides by the ranks which still have batches."""
    config = getattr(model, "_join_config", None)
    counts = getattr(config, "enable", False) and getattr(config, "is_first_joinable", False)
    return counts and not getattr(model, "_divide_by_initial_world_size", True)


def sum_of(work: dist.Work) -> int:
    """The result of an all-reduce of one number."""
    result = work.get_future().wait()
    return int((result[0] if isinstance(result, (list, tuple)) else result).item())


# The profiler


def profiler_runs() -> bool:
    return getattr(torch.autograd, "_profiler_enabled", bool)()


def profiler_range(text: str) -> typing.ContextManager[object]:
    return torch.profiler.record_function(text)


# Process groups


def rank() -> int:
    """The rank in the default group; without one, the launcher's RANK."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", "0"))


def default_store() -> dist.Store:
    check_base()
    return dist.distributed_c10d._get_default_store()


def default_group() -> dist.ProcessGroup:
    """The default group. RuntimeError if there is none."""
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None:
        raise RuntimeError("there is no default process group")
    return group


def group_named(name_of_group: str) -> dist.ProcessGroup:
    return dist.distributed_c10d._resolve_process_group(name_of_group)


def all_groups() -> list[dist.ProcessGroup]:
    """All process groups; none where torch keeps no list."""
    return list(getattr(getattr(dist.distributed_c10d, "_world", None), "pg_map", {}))


def timeout_sec(group: dist.ProcessGroup, device: str) -> float:
    """Timeout of a group's backend for "cpu" or "cuda"."""
    options = getattr(group._get_backend(torch.device(device)), "options", None)
    return (getattr(options, "_timeout", None) or dist.constants.default_pg_timeout).total_seconds()


def backend_timeout_sec(backend: Any) -> float:
    return backend.options._timeout.total_seconds()


def nccl_comm(group: dist.ProcessGroup) -> int:
    """Address of a group's NCCL communicator; 0 until the group has been used."""
    return group._get_backend(torch.device("cuda"))._comm_ptr()


def backend_classes() -> tuple[type, type]:
    """Returns (the base class of backends, gloo's class)."""
    from torch._C._distributed_c10d import Backend, ProcessGroupGloo

    return Backend, ProcessGroupGloo


# Methods of a backend under the names that versions of torch call.
ALL_GATHER = ("all_gather_single", "_allgather_base")
REDUCE_SCATTER = ("reduce_scatter_single", "_reduce_scatter_base")
BACKEND_SETTINGS = ("_set_default_timeout", "_set_sequence_number_for_group",
                    "_get_sequence_number_for_group", "_add_ephemeral_timeout")
