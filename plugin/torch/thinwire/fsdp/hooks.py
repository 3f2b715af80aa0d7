"""Puts Thinwire's collectives into FSDP2: the all-gather of weights, the reduce-scatter of gradients, and the
all-reduce between replicas of HSDP.

Every group of parameters of FSDP2 has an attribute for each of the first two, which can be set. For the
all-reduce, the module torch.distributed that FSDP2's code calls is replaced."""

from __future__ import annotations

import threading
import types
import typing
from collections.abc import Sequence

import torch
import torch.distributed as dist

from .. import inside, muon, policy
from ..collectives import operations
from ..engine.communicators import Use
from ..reporting import report, unused
from ..switches import log
from ..telemetry.tally import book
from . import backward, comms, prefetch


class _Distributed(types.ModuleType):
    """Stands for torch.distributed in FSDP2's code. all_reduce() goes over Thinwire; all else is torch's."""

    reducing = threading.local()  # `comm`: our reduce-scatter object whose foreach_reduce runs in this thread

    def __getattr__(self, name: str) -> object:
        return getattr(dist, name)

    def all_reduce(self, tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        comm = getattr(self.reducing, "comm", None)
        if comm is None or async_op or not comm.all_reduce(tensor, op, group or dist.group.WORLD):
            return dist.all_reduce(backward.value_of(tensor), op, group, async_op)
        return None


def _of_kind(kind: type, args: Sequence[object], kwargs: dict[str, object]) -> object | None:
    """Returns the argument that is a `kind`, or None. Its position differs between versions of torch."""
    return next((one for one in (*args, *kwargs.values()) if isinstance(one, kind)), None)


def _others(comm: object) -> str:
    if type(comm) in inside.default_comms():
        return "thinwire is not enabled there"
    return "%s is in its place" % type(comm).__name__


def _count_elsewhere(comm: object, shards: dist.ProcessGroup | None, replicas: dist.ProcessGroup | None,
                     n_bytes: int) -> None:
    """Count, for the report, the reduction of n_bytes of gradients that does not go over Thinwire."""
    operations.elsewhere("reduce-scatter", _others(comm), shards, n_bytes)
    shard_bytes = n_bytes // (shards.size() if shards is not None else 1)
    operations.elsewhere("all-reduce", _others(comm), replicas, shard_bytes)


def _watch_reductions(distributed: types.ModuleType) -> None:
    """Wrap foreach_reduce: tell our reduce-scatter which parameters its flat buffer has (FSDP2 does not say),
    and count reductions that do not go over Thinwire."""

    def make(reduce):
        def foreach_reduce(fsdp_params, unsharded_grads, group, *args, **kwargs):
            comm = _of_kind(inside.comm_kinds()[1], args, kwargs)
            if not isinstance(comm, comms.classes()[1]):
                n_bytes = sum(one.nbytes for one in unsharded_grads)
                _count_elsewhere(comm, group, _of_kind(dist.ProcessGroup, args, kwargs), n_bytes)
                return reduce(fsdp_params, unsharded_grads, group, *args, **kwargs)
            comm.params, distributed.reducing.comm = list(fsdp_params), comm
            try:
                with backward.reduction(comm.group, comm.params, unsharded_grads) as comm.call:
                    return reduce(fsdp_params, unsharded_grads, group, *args, **kwargs)
            finally:
                distributed.reducing.comm = comm.call = None

        return foreach_reduce

    inside.wrap_fsdp2(inside.REDUCTIONS, make)


def _watch_gathers() -> None:
    """Wrap foreach_all_gather: count gathers that do not go over Thinwire."""

    def make(gather):
        def foreach_all_gather(fsdp_params, group, *args, **kwargs):
            result = gather(fsdp_params, group, *args, **kwargs)
            comm = _of_kind(inside.comm_kinds()[0], args, kwargs)
            if result is not None and not isinstance(comm, comms.classes()[0]):
                operations.elsewhere("all-gather", _others(comm), group, inside.gathered_bytes(result))
            return result

        return foreach_all_gather

    inside.wrap_fsdp2(inside.GATHERS, make)


def _watch_allocation() -> None:
    """Wrap set_allocate_memory_from_process_group_for_comm(), which replaces our collectives by torch's. Put
    ours back, and let torch's allocate their buffers."""

    def make(original):
        def set_allocate_memory_from_process_group(self, enable):
            ours = [getattr(self, name) for name in inside.COMMS]
            original(self, enable)
            for name, comm, kind in zip(inside.COMMS, ours, comms.classes()):
                if isinstance(comm, kind):
                    comm.allocator = getattr(self, name)
                    setattr(self, name, comm)

        return set_allocate_memory_from_process_group

    inside.wrap_fsdp2(inside.ALLOCATION, make)


def _watch() -> None:
    report.asked()
    book.is_first()
    _watch_reductions(inside.replace_distributed(_Distributed))
    _watch_gathers()
    _watch_allocation()
    prefetch.watch()
    muon.watch()


def _attach(group: typing.Any, rules: policy.Policy, use: Use) -> None:
    """Set a group's two collectives to ours, unless the program has set its own."""
    for name, kind, default, allocating in zip(inside.COMMS, comms.classes(), inside.default_comms(),
                                               inside.allocating_comms()):
        there = getattr(group, name)
        if not isinstance(there, (kind, default, allocating)):
            log.warning("%s of FSDP2 is left as it is", type(there).__name__)
            continue
        ours = kind(group, rules, use)
        if rules.keeps and name == inside.COMMS[0]:
            comms.keeping.add(group)
        ours.allocator = there if isinstance(there, allocating) else getattr(there, "allocator", None)
        setattr(group, name, ours)


def enable(model: torch.nn.Module, weights: policy.ByName | None = None, grads: policy.ByName | None = None,
           min_bytes: int | None = None) -> torch.nn.Module:
    """Send this model's weights and gradients over Thinwire. Call it after fully_shard, on all ranks.
    Defaults of all arguments are the environment's. weights, grads: a codec, also with exceptions as in
    TW_WEIGHTS and TW_GRADS; or {pattern of parameter names: codec}; the last match counts. min_bytes: smaller
    tensors are not quantized. Returns the model. ValueError for an invalid codec or without FSDP2."""
    inside.check()
    rules, groups = policy.make(weights, grads, min_bytes), list(inside.groups_of(model))
    if not groups:
        raise ValueError("no module of this model has been given to fully_shard")
    _watch()
    use = Use(rules.settings())
    for state in inside.states_of(model):
        prefetch.watch_state(state)
    for group in groups:
        _attach(group, rules, use)
    return model


def disable(model: torch.nn.Module) -> torch.nn.Module:
    """Put torch's own collectives back. Call it on all ranks. Returns the model."""
    for group in inside.groups_of(model):
        for name, kind, default in zip(inside.COMMS, comms.classes(), inside.default_comms()):
            ours = getattr(group, name)
            if isinstance(ours, kind):
                setattr(group, name, ours.allocator or default())
    return model


def patch() -> None:
    """Enable Thinwire for every FSDP2 model that is made from now on. RuntimeError, and nothing is changed,
    if this version of torch is not supported."""
    inside.check()
    rules = policy.from_environment()
    use = Use(rules.settings())
    _watch()
    unused.watch()

    def make(original):
        def __init__(self, *args, **kwargs):
            original(self, *args, **kwargs)
            _attach(self, rules, use)

        return __init__

    inside.wrap_group_init(make)
