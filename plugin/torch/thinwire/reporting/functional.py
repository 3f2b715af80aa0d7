"""Counts functional collectives for the report. Compiled graphs, such as SimpleFSDP's, contain them, and
DTensors use them to redistribute. torch calls them as operators, so they do not go over Thinwire."""

from __future__ import annotations

import contextlib
import functools
import typing
from collections.abc import Callable

import torch
import torch.distributed as dist

from .. import inside, policy
from ..collectives import operations

# The advice for collectives that neither FSDP2 nor DDP calls: the interposer replaces NCCL itself.
INTERPOSER = "under NCCL: LD_PRELOAD=libthinwire-nccl.so"
WHY = "a graph's or a DTensor's own; " + INTERPOSER
# {operator: (kind, whether its argument is a rank's shard and not the whole)}
_KINDS = {
    "all_gather_into_tensor": ("all-gather", True),
    "reduce_scatter_tensor": ("reduce-scatter", False),
    "all_reduce": ("all-reduce", False),
}
_FORMS = ("", "_", "_out", "_coalesced", "_coalesced_")


def _count(kind: str, is_shard: bool, args: tuple[typing.Any, ...]) -> None:
    given = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
    # Do not count calls that only make a graph, without real tensors, or a dispatch mode's second calls.
    if inside.is_dispatched_twice() or not all(type(one) in (torch.Tensor, torch.nn.Parameter)
                                               for one in given):
        return
    name = next(one for one in reversed(args) if isinstance(one, (str, dist.ProcessGroup)))
    group = inside.group_named(name) if isinstance(name, str) else name
    whole = sum(one.nbytes for one in given) * (group.size() if is_shard else 1)
    if whole >= policy.MIN_BYTES:  # do not count a gradient's norm or a loss
        operations.elsewhere("functional " + kind, WHY, group, whole)


def _counting(original: Callable, kind: str, is_shard: bool) -> Callable:
    def call(*args, **kwargs):
        with contextlib.suppress(Exception):  # other versions of torch may pass other arguments
            _count(kind, is_shard, args + tuple(kwargs.values()))
        return original(*args, **kwargs)

    return call


def watch() -> None:
    """Count functional collectives from now on."""
    for name, (kind, is_shard) in _KINDS.items():
        for form in _FORMS:
            for operator in inside.functional_operators(name + form):
                inside.wrap_operator(operator, functools.partial(_counting, kind=kind, is_shard=is_shard))
