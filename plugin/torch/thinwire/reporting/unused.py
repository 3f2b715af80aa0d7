"""Finds models that do not use Thinwire, for the report: DDP models without Thinwire's hook, FSDP1
models, and models of libraries that call collectives themselves, also in compiled graphs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .. import inside
from ..telemetry.tally import Elsewhere, announce, book
from . import functional

_DDP, _FSDP1 = "DistributedDataParallel", "FullyShardedDataParallel, FSDP1"


@dataclasses.dataclass
class _Model:
    """What the report needs to know of a DDP model."""

    step_bytes: int  # roughly the bytes that a rank sends for the gradients of a step
    steps: int = 0  # number of steps that have reduced gradients
    hooked: bool = False  # the model has Thinwire's hook
    ours: typing.Any = None  # TW_DDP's hook; None if there is none, or the program has registered a hook
    why: str = ""  # why the model does not get Thinwire's hook


MISSING = "TW_DDP=1 or register_comm_hook(None, thinwire.ddp_hook()) is missing"
FSDP1_WHY = "fully_shard is what goes over thinwire"


_models: list[_Model] = []
# Not an attribute of the models, because programs pickle models.
_seen: weakref.WeakKeyDictionary[DistributedDataParallel, _Model] = weakref.WeakKeyDictionary()
_fsdp1: list[Elsewhere] = []  # [the counts of all FSDP1 models together], or [] if there is no such model


def _sent_by_step(model: DistributedDataParallel) -> int:
    world = model.process_group.size()
    return sum(one.nbytes for one in model.parameters() if one.requires_grad) * 2 * (world - 1) // world


def _count(model: DistributedDataParallel, seen: _Model) -> None:
    """Count the model's steps that reduce gradients, by a hook on its first trainable parameter."""
    alive = weakref.ref(model)

    def count(_param: torch.Tensor) -> None:
        now = alive()
        if now is not None and now.require_backward_grad_sync:
            seen.steps += 1

    first = next((one for one in model.parameters() if one.requires_grad), None)
    if first is not None:
        first.register_post_accumulate_grad_hook(count)


# FSDP1's collectives, by all their names. {name: n}: a rank sends n * (W - 1) / W of the whole.
_FSDP1_CALLS = {"all_gather": 1, "all_gather_single": 1, "all_gather_into_tensor": 1,
                "reduce_scatter_single": 1, "reduce_scatter_tensor": 1, "all_reduce": 2}


def _n_bytes(argument: object) -> int:
    if isinstance(argument, (list, tuple)):
        return sum(map(_n_bytes, argument))
    return argument.nbytes if isinstance(argument, torch.Tensor) else 0


def _count_fsdp1(times: int, arguments: tuple[object, ...]) -> None:
    """Count a collective of FSDP1. Its largest argument is the whole tensor. times: as in _FSDP1_CALLS."""
    group = next((one for one in arguments if isinstance(one, dist.ProcessGroup)), dist.group.WORLD)
    if _fsdp1 and group is not None and group.size() > 1:
        sent = times * max(map(_n_bytes, arguments)) * (group.size() - 1) // group.size()
        with book.lock:
            _fsdp1[0].calls += 1
            _fsdp1[0].sent_bytes += sent


class _Distributed(types.ModuleType):
    """Stands for torch.distributed in FSDP1's code, and counts collectives."""

    def __getattr__(self, name: str) -> object:
        found = getattr(dist, name)
        if name not in _FSDP1_CALLS:
            return found

        def counted(*args, **kwargs):
            with contextlib.suppress(Exception):  # other versions of torch may pass other arguments
                _count_fsdp1(_FSDP1_CALLS[name], (*args, *kwargs.values()))
            return found(*args, **kwargs)

        return counted


def is_left_alone(model: DistributedDataParallel) -> bool:
    """Returns whether to leave a DDP model alone: it has Thinwire's hook already, or cannot have it."""
    if inside.reduces_in_python(model):
        leave_alone(model, "compiled autograd reduces its gradients")
    if inside.has_mixed_precision(model):
        leave_alone(model, "its mixed precision has a hook of torch's own")
    seen = _seen.get(model)
    return seen is not None and (seen.hooked or bool(seen.why))


def leave_alone(model: DistributedDataParallel, why: str) -> None:
    """Note, for the report, why a model does not have Thinwire's hook."""
    if model in _seen:
        _seen[model].why = why


def may_give_way(model: DistributedDataParallel, ours: object) -> None:
    """Note that `model` has TW_DDP's hook `ours`. If the program later registers a hook of its own, which
    torch would refuse as a second one, ours calls that hook instead (ours.theirs)."""
    if model in _seen:
        _seen[model].ours = ours


def _gives_way(model: DistributedDataParallel, state: object, hook: Callable) -> bool:
    """Let TW_DDP's hook call the program's new hook from now on. Returns False if the model has no hook of
    TW_DDP; torch then has to register the new hook."""
    seen = _seen.get(model)
    if seen is None or seen.ours is None:
        return False
    inside.check_hook(model, hook)
    seen.ours.theirs, seen.ours = (state, hook), None
    seen.hooked, seen.steps = False, 0  # earlier steps ran with our hook
    return True


def _built_in(kind: dist.BuiltinCommHookType) -> Callable:
    """Returns torch's Python hook that does the same as one of its C++ hooks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    is_fp16 = kind == dist.BuiltinCommHookType.FP16_COMPRESS
    return default_hooks.fp16_compress_hook if is_fp16 else default_hooks.allreduce_hook


def watch() -> None:
    """Watch DDP and FSDP1 models that are made from now on, and functional collectives."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if hasattr(DistributedDataParallel.__init__, "_thinwire"):
        return
    if not _is_interposed():
        functional.watch()
    made, hooked = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook
    made1 = FullyShardedDataParallel.__init__

    @functools.wraps(made)
    def __init__(self, *args, **kwargs):
        made(self, *args, **kwargs)
        seen = _Model(_sent_by_step(self))
        _models.append(seen)
        _seen[self] = seen
        _count(self, seen)
        book.is_first()

    @functools.wraps(hooked)
    def register_comm_hook(self, state, hook):
        if not _gives_way(self, state, hook):
            hooked(self, state, hook)
        if hasattr(hook, "_thinwire") and self in _seen:
            _seen[self].hooked = True
        else:
            name = getattr(hook, "__qualname__", type(hook).__name__)
            leave_alone(self, "it has a hook of its own, %s" % name)

    def built_in(original):
        def register(self, comm_hook_type):
            if not _gives_way(self, self.process_group, _built_in(comm_hook_type)):
                original(self, comm_hook_type)
            leave_alone(self, "it has a hook of its own, %s" % comm_hook_type)

        return register

    @functools.wraps(made1)
    def init1(self, *args, **kwargs):
        made1(self, *args, **kwargs)
        with book.lock:
            _fsdp1[:] = _fsdp1 or [Elsewhere()]
        announce("not over thinwire: %s; %s" % (_FSDP1, FSDP1_WHY))

    setattr(__init__, "_thinwire", True)  # noqa: B010 - mypy
    DistributedDataParallel.__init__ = __init__
    DistributedDataParallel.register_comm_hook = register_comm_hook
    inside.wrap_built_in_hook(DistributedDataParallel, built_in)
    FullyShardedDataParallel.__init__ = init1
    inside.replace_fsdp1_distributed(_Distributed)


# (library, a module that is loaded if the program imports the library, a function that tells if it is in use)
_OTHERS: list[tuple[str, str, Callable[[typing.Any], bool]]] = [
    ("DeepSpeed", "deepspeed.comm.comm", lambda module: getattr(module, "cdb", None) is not None),
    ("Megatron", "megatron.core.parallel_state", lambda module: module.model_parallel_is_initialized()),
    ("SimpleFSDP", "torchtitan.experiments.graph_trainer.simple_fsdp", lambda _module: True),
    ("SimpleFSDP", "torchtitan.experiments.simple_fsdp.simple_fsdp", lambda _module: True),
]


def _is_interposed() -> bool:
    """Returns whether the interposer is loaded. It then takes all calls of NCCL."""
    return "libthinwire-nccl" in os.environ.get("LD_PRELOAD", "")


def _others() -> Iterator[str]:
    for what, name, is_used in _OTHERS:
        module = sys.modules.get(name)
        with contextlib.suppress(Exception):  # other versions of the library may fail here
            if module is not None and is_used(module):
                yield what


def found() -> dict[tuple[str, str], Elsewhere]:
    result: dict[tuple[str, str], Elsewhere] = {}
    for one in _models:
        if not one.hooked:
            other = result.setdefault((_DDP, one.why or MISSING), Elsewhere())
            other.calls += one.steps
            other.sent_bytes += one.steps * one.step_bytes
    if _fsdp1:
        result[_FSDP1, FSDP1_WHY] = dataclasses.replace(_fsdp1[0])
    for what in [] if _is_interposed() else _others():
        result[what, "it calls collectives of its own; " + functional.INTERPOSER] = Elsewhere()
    return result
