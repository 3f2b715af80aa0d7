"""All uses of torch's private names, and checks that the installed torch has them.

torch has no public interface for some things: where parameters are in FSDP2's buffers, which of them are
reduced, the default group's store. Only this file uses private names, as torch 2.9 to 2.15 has them. They are
looked up once, before anything in torch is changed. If one is missing nothing is changed: a log line names
it, and torch's own collectives are used. Names that only the report needs may be missing."""

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
# What backward.py uses. If any is missing, backward waits for each reduction.
_LATER: Attributes = {
    "_fsdp_param_group": {"FSDPParamGroup": ("comm_ctx", "_all_reduce_hook")},
    "_fsdp_param": {"FSDPParam": ("sharded_param", "offload_to_cpu")},
}
# (module, function) of FSDP2, for wrap_fsdp2(). Comments list the function's arguments.
REDUCTIONS = ("_fsdp_param_group", "foreach_reduce")  # parameters, whole gradients, process group, ...
GATHERS = ("_fsdp_param_group", "foreach_all_gather")  # parameters, process group, ...
# group of parameters, whether the process group allocates its buffers
ALLOCATION = ("_fsdp_param_group", "FSDPParamGroup.set_allocate_memory_from_process_group")
STATE_INIT = ("_fsdp_state", "FSDPState.init")  # state, ...
# state, output: FSDP2's last call for a module's output; the root module's comes at the end of forward
END_OF_FORWARD = ("_fsdp_state", "FSDPState._register_pre_backward_hook")
# {(module, function): its first parameters}. torch looks these functions up by name, so they can be wrapped.
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
# {dotted name: the arguments with which this file calls it; None if Python cannot tell its signature}
Names = dict[str, typing.Optional[tuple[str, ...]]]
# Names that every use of Thinwire needs.
_ALWAYS: Names = {
    "torch.distributed.distributed_c10d._get_default_store": (),
    "torch.distributed.ProcessGroup._get_backend": None,
}
# Names outside FSDP2 that FSDP2's hooks need.
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


# Functions that tell whether the installed torch has the private names that this package needs.


def module(name: str) -> Any:
    """Import a private module of FSDP2."""
    return importlib.import_module(_FOLDER + name)


def _code_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _code_names(one)


def _names(owner: type) -> set[str]:
    """Returns the names that a class has, and the names that its functions use."""
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
    """Returns the callable at a dotted path below `owner`, or None."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner if callable(owner) else None


def _begins_with(function: Callable | None, parameters: tuple[str, ...]) -> bool:
    """Returns whether a function's first parameters have these names."""
    if function is None:
        return False
    return tuple(inspect.signature(function).parameters)[: len(parameters)] == parameters


def _takes(function: Callable | None, parameters: tuple[str, ...] | None) -> bool:
    """Returns whether a function's first parameters have these names and it needs no others. If `parameters`
    is None, only whether there is a function."""
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
    """Returns which of the names that every use needs are missing, as a text; "" if none."""
    return _lacks(_missing_names(_ALWAYS))


@functools.cache
def difference() -> str:
    """Returns what the installed torch lacks for Thinwire's use under FSDP2, as a text; "" if nothing."""
    version = tuple(int(number) for number in torch.__version__.split(".")[:2])
    if version < OLDEST:
        return "FSDP2 is known here from torch %d.%d on" % OLDEST
    try:
        return base_difference() or _lacks(_missing())
    except Exception as error:  # something has been moved or renamed
        return "it has no %s" % error


@functools.cache
def reduces_later() -> bool:
    """Returns whether torch has all that backward.py needs to let backward go on during reductions."""
    from torch.distributed.tensor import DTensor

    return ("_local_tensor" in _names(DTensor) and not any(_missing_of(_LATER))
            and not any(_missing_names(_BESIDE_LATER)))


def check() -> None:
    """Raise RuntimeError if the installed torch's FSDP2 is not supported."""
    if difference():
        raise RuntimeError("FSDP2 of torch %s is not known here: %s" % (torch.__version__, difference()))


def check_base() -> None:
    """Raise RuntimeError if nothing of Thinwire can be used with the installed torch."""
    if base_difference():
        raise RuntimeError("torch %s is not known here: %s" % (torch.__version__, base_difference()))


def check_backend() -> None:
    """Raise RuntimeError if the installed torch is not supported, or has no backends written in Python."""
    check_base()
    from torch._C._distributed_c10d import Backend

    try:
        Backend(0, 1)
    except TypeError as error:
        raise RuntimeError("the backend thinwire needs a newer torch than %s: its backends cannot be written "
                           "in Python" % torch.__version__) from error


@functools.cache
def _muon() -> Any:
    """Returns the module of torch.optim.Muon, or None if the installed torch's Muon is not supported."""
    with contextlib.suppress(ImportError):
        found: Any = importlib.import_module("torch.optim._muon")
        if all(_begins_with(_function(found, name), parameters) for name, parameters in _MUON.items()):
            return found
    return None


# Wrappers around torch's own functions


def wrap(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replace a function of `owner` by make(original). Do nothing if it is already replaced or missing."""
    original = getattr(owner, name, None)
    if original is not None and not hasattr(original, "_thinwire"):
        wrapped: Any = functools.wraps(original, updated=())(make(original))
        wrapped._thinwire = True
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)


def wrap_fsdp2(place: tuple[str, str], make: Callable[[Callable], Callable]) -> None:
    """Wrap a function of FSDP2. place: (module, name), such as REDUCTIONS."""
    path, _, name_of_function = place[1].rpartition(".")
    owner = module(place[0])
    wrap(getattr(owner, path) if path else owner, name_of_function, make)


def wrap_group_init(make: Callable[[Callable], Callable]) -> None:
    """Wrap the constructor of FSDP2's groups once more at each call: every patch() has its own policy."""
    owner = module("_fsdp_param_group").FSDPParamGroup
    owner.__init__ = functools.wraps(owner.__init__)(make(owner.__init__))


def wrap_built_in_hook(owner: type, make: Callable[[Callable], Callable]) -> None:
    """Wrap the method that registers one of torch's C++ hooks with a DDP model."""
    wrap(owner, "_register_builtin_comm_hook", make)


def replace_distributed(kind: type) -> Any:
    """Replace torch.distributed in the module of FSDP2's collectives by an object of this module class."""
    collectives = module("_fsdp_collectives")
    if not isinstance(collectives.dist, kind):
        collectives.dist = kind("torch.distributed")
    return collectives.dist


# Modules that call FSDP1's collectives.
_FSDP1_CALLERS = ("torch.distributed.fsdp._flat_param", "torch.distributed.fsdp._runtime_utils",
                  "torch.distributed.algorithms._comm_hooks.default_hooks")


def replace_fsdp1_distributed(kind: type) -> None:
    """Replace torch.distributed by an object of this class in the modules that call FSDP1's collectives."""
    for name in _FSDP1_CALLERS:
        with contextlib.suppress(ImportError):
            caller: Any = importlib.import_module(name)
            if getattr(caller, "dist", None) is dist:
                caller.dist = kind("torch.distributed")


def wrap_muon(make: Callable[[Callable], Callable]) -> None:
    """Wrap the function that does torch.optim.Muon's step, if the installed torch's Muon is supported."""
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
    """Returns torch's own classes (all-gather, reduce-scatter), in the order of COMMS."""
    collectives = module("_fsdp_collectives")
    return collectives.DefaultAllGather, collectives.DefaultReduceScatter


def allocating_comms() -> tuple[type, type]:
    """Returns torch's classes (all-gather, reduce-scatter) for buffers that the process group allocates."""
    collectives = module("_fsdp_collectives")
    return collectives.ProcessGroupAllocAllGather, collectives.ProcessGroupAllocReduceScatter


def comm_kinds() -> tuple[type, type]:
    """Returns the abstract base classes of all FSDP2 collectives: (all-gather, reduce-scatter)."""
    api = module("_fsdp_api")
    return api.AllGather, api.ReduceScatter


def groups_of(model: torch.nn.Module) -> Iterator[Any]:
    """Returns the groups of parameters of all FSDP2 modules in a model."""
    for state in states_of(model):
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [one for one in [state._fsdp_param_group] if one is not None]
        yield from groups


params = operator.attrgetter("fsdp_params")
name = operator.attrgetter("_module_fqn")  # the group's module's name, once the model has run; "": the root
context = operator.attrgetter("comm_ctx")  # an object that all groups of a tree of FSDP2 modules share


def is_in_forward(group: Any) -> bool:
    return group._training_state.name == "FORWARD"


def has_reduce_hook(group: Any) -> bool:
    return group._all_reduce_hook is not None


def is_gathered(group: Any) -> bool:
    """Returns whether a group's gather is posted or done, and not used yet."""
    return group._all_gather_result is not None


def gather(group: Any) -> None:
    """Begin to gather a group for a forward pass."""
    type(group)._prefetch_unshard(group, "forward")


def drop_gather(group: Any) -> Any:
    """Make FSDP2 forget a posted gather. Returns its work, which the caller waits for, or None."""
    result, group._all_gather_result = group._all_gather_result, None
    return result.all_gather_work if result is not None else None


def gathered_bytes(result: Any | None) -> int:
    """Returns a gather's size in bytes, given foreach_all_gather's result; 0 if nothing was gathered."""
    return result.all_gather_output.nbytes if result is not None else 0


# Parameters of a group

size = operator.attrgetter("_orig_size")  # shape of the whole parameter
shard_size = operator.attrgetter("padded_sharded_param_size")  # shape of a rank's shard, with padding
shard = operator.attrgetter("sharded_param")  # the shard as a parameter, which has the gradient


def param_name(param: Any) -> str:
    """Returns a parameter's full name. Before the model has run, only its name in its module."""
    return getattr(param, "_param_fqn", None) or param._module_info.param_name


def gathered_dtype(param: Any) -> torch.dtype:
    """Returns the type in which a parameter is gathered."""
    return getattr(param, "param_dtype", None) or param._sharded_param_data.dtype


def gathered(param: Any) -> tuple[int, torch.dtype] | None:
    """Returns (elements in this rank's run, their type) of a parameter. Between forward and backward a rank
    may keep more than its shard (reshard_after_forward=N); then that is what is gathered. None if the
    tensor's own class decides what is gathered."""
    if gathers_own(param):
        return None
    after = getattr(param, "_sharded_post_forward_param_data", None)
    is_after = param.sharded_state.name == "SHARDED_POST_FORWARD" and after is not None
    data: Any = after if is_after else param._sharded_param_data
    return data.numel(), param.param_dtype or data.dtype


def gathers_own(param: Any) -> bool:
    """Returns whether the tensor's own class decides what is gathered, as for fp8."""
    return hasattr(param._sharded_local_tensor, "fsdp_pre_all_gather")


def own_elems(param: Any) -> int:
    """Returns the number of elements that a tensor's own class now gathers; 0 if unknown."""
    data = getattr(param, "_extensions_data", None)
    return sum(one.numel() for one in getattr(data, "all_gather_input_sizes", ()))


def class_name(param: Any) -> str:
    """Returns the name of the class of a parameter's shard."""
    return type(param._sharded_local_tensor).__name__


def is_watched(param: Any) -> bool:
    """Returns whether the gradient is used during backward: by an optimizer step, or for offloading."""
    return bool(getattr(param.sharded_param, "_post_accumulate_grad_hooks", None)) or param.offload_to_cpu


def local_shard(grad: torch.Tensor | None) -> Any:
    """Returns a DTensor's local tensor; None for anything else."""
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
    """Returns whether the present forward pass began at this module."""
    return state._state_ctx.iter_forward_root is state


def may_run_root(state: Any) -> bool:
    """Returns whether the present forward pass may have begun at this module. True also if torch has not
    noted where it began, as after an early failure."""
    return state._is_root or state._state_ctx.iter_forward_root in (None, state)


# Autograd and the dispatcher

no_torch_function = getattr(torch._C, "_disabled_torch_function_impl", None)


def no_dynamo(function: Callable) -> Callable:
    """Keep torch.compile from tracing a function. torch.compiler.disable takes seconds to load its modules,
    so it is used only if torch does not have _disable_dynamo."""
    quick = _function(torch, "_disable_dynamo")
    return (quick if quick and _takes(quick, ("fn",)) else torch.compiler.disable)(function)


def backward_pass() -> int:
    """Returns the number of the backward pass in which this thread is; -1 if it is in none."""
    return torch._C._current_graph_task_id()


def at_end_of_backward(action: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(action)


def future(value: object) -> torch.futures.Future:
    """Returns a new future that can have `value` as its result. For GPU memory it names the device."""
    if isinstance(value, torch.Tensor) and value.is_cuda:
        return torch.futures.Future(devices=[value.device])
    return torch.futures.Future()


def wrapper(kind: type, like: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the class `kind` without memory, with the shape, type and device of `like`."""
    return torch.Tensor._make_wrapper_subclass(
        kind, like.size(), like.stride(), like.storage_offset(), dtype=like.dtype, device=like.device)


def is_in_use(storage: torch.UntypedStorage) -> bool:
    """Returns whether any tensor uses this memory. True if torch cannot tell."""
    return not hasattr(torch._C, "_storage_Use_Count") or torch._C._storage_Use_Count(storage._cdata) > 1


def operator_name(function: Any) -> str:
    return function._schema.name


def map_only(kind: type, function: Callable, tree: object) -> object:
    """Apply a function to all objects of the class `kind` in nested tuples, lists and dictionaries."""
    from torch.utils import _pytree

    return _pytree.tree_map_only(kind, function, tree)


def is_dispatched_twice() -> bool:
    """Returns whether a dispatch mode is active. If so, each operator is called twice."""
    return bool(torch._C._len_torch_dispatch_stack())


def functional_operators(names: str) -> Iterator[object]:
    """Returns the functional collectives of this name: the one for Python and the one for graphs."""
    packet = getattr(torch.ops._c10d_functional, names, None)
    return (one for one in (packet, getattr(packet, "default", None)) if one is not None)


def wrap_operator(op: object, make: Callable[[Callable], Callable]) -> None:
    """Wrap an operator, if the installed torch calls operators through their attribute _op."""
    with contextlib.suppress(AttributeError):
        wrap(op, "_op", make)


def reduces_in_python(model: Any) -> bool:
    """Returns whether compiled autograd, and not DDP's C++ code, reduces a DDP model's gradients."""
    return bool(getattr(model, "_use_python_reducer", False))


def check_hook(model: Any, hook: Callable) -> None:
    """Check a DDP hook as torch does when a program registers it."""
    model._check_comm_hook(hook)


def has_mixed_precision(model: Any) -> bool:
    """Returns whether DDP's own mixed precision is on for a model."""
    return getattr(model, "mixed_precision", None) is not None


def joins_unevenly(model: Any) -> bool:
    """Returns whether a DDP model is in a join() that divides by the ranks that still have batches."""
    config = getattr(model, "_join_config", None)
    counts = getattr(config, "enable", False) and getattr(config, "is_first_joinable", False)
    return counts and not getattr(model, "_divide_by_initial_world_size", True)


def sum_of(work: dist.Work) -> int:
    """Wait for torch's all-reduce of one number. Returns the sum."""
    result = work.get_future().wait()
    return int((result[0] if isinstance(result, (list, tuple)) else result).item())


# The profiler


def profiler_runs() -> bool:
    return getattr(torch.autograd, "_profiler_enabled", bool)()


def profiler_range(text: str) -> typing.ContextManager[object]:
    return torch.profiler.record_function(text)


# Process groups


def rank() -> int:
    """Returns this process's rank in the default group. Without such a group: the launcher's RANK, or 0."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", "0"))


def default_store() -> dist.Store:
    check_base()
    return dist.distributed_c10d._get_default_store()


def default_group() -> dist.ProcessGroup:
    """Returns the default group. RuntimeError if there is none."""
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None:
        raise RuntimeError("there is no default process group")
    return group


def group_named(name_of_group: str) -> dist.ProcessGroup:
    return dist.distributed_c10d._resolve_process_group(name_of_group)


def all_groups() -> list[dist.ProcessGroup]:
    """Returns all process groups; [] if torch keeps no list of them."""
    return list(getattr(getattr(dist.distributed_c10d, "_world", None), "pg_map", {}))


def timeout_sec(group: dist.ProcessGroup, device: str) -> float:
    """Returns the timeout of a group's backend for a device, "cpu" or "cuda"."""
    options = getattr(group._get_backend(torch.device(device)), "options", None)
    return (getattr(options, "_timeout", None) or dist.constants.default_pg_timeout).total_seconds()


def backend_timeout_sec(backend: Any) -> float:
    return backend.options._timeout.total_seconds()


def nccl_comm(group: dist.ProcessGroup) -> int:
    """Returns the address of a group's NCCL communicator; 0 until the group has been used."""
    return group._get_backend(torch.device("cuda"))._comm_ptr()


def backend_classes() -> tuple[type, type]:
    """Returns (the base class of backends, gloo's class)."""
    from torch._C._distributed_c10d import Backend, ProcessGroupGloo

    return Backend, ProcessGroupGloo


# Names under which different versions of torch call a backend's methods.
ALL_GATHER = ("all_gather_single", "_allgather_base")
REDUCE_SCATTER = ("reduce_scatter_single", "_reduce_scatter_base")
BACKEND_SETTINGS = ("_set_default_timeout", "_set_sequence_number_for_group",
                    "_get_sequence_number_for_group", "_add_ephemeral_timeout")
