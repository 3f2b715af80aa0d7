"""DistributedDataParallel: a hook that averages its buckets of gradients over Thinwire."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.distributed as dist

from . import capi, operations, policy, segments, tally
from .engine import Use


class _Hook:
    """The hook of one model."""

    def __init__(self, rules: policy.Policy):
        self._rules, self._use = rules, Use(rules.settings())
        self._shapes: dict[object, operations.Shape] = {}
        self._steps = itertools.count()

    def _shape(self, gradients: list[torch.Tensor]) -> operations.Shape:
        key = (gradients[0].dtype, tuple(one.shape for one in gradients))
        if key not in self._shapes:
            pieces = [segments.Piece(one.numel(), policy.why_exact(self._rules, one.dim(), one.nbytes)) for one in gradients]
            self._shapes[key] = operations.shape(segments.Plain(pieces, gradients[0].itemsize), pieces)
        return self._shapes[key]

    def __call__(self, state: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        group, buffer = state or dist.group.WORLD, bucket.buffer()
        ranks = operations.carrier("ddp all-reduce", self._use, group, buffer, dist.ReduceOp.AVG)
        if ranks is None:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            return allreduce_hook(group, bucket)
        if ranks.n_nodes > 1:
            tally.announce("DDP over thinwire: gradients %s" % (self._rules.grads or "exact"))
        request = operations.Operation(
            "ddp all-reduce", capi.ALLREDUCE, buffer.dtype, self._shape(bucket.gradients()),
            lambda table: table.reduce(buffer.data_ptr()), self._rules.grads, (buffer,),
            (capi.MEAN, 1.0), next(self._steps), "bucket %d" % bucket.index()).post(ranks)
        if ranks.cuda:
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device])
            future.set_result(buffer)
            return future
        return operations.future_of(request, "ddp all-reduce", buffer)


def hook(grads: str | None = None, min_bytes: int | None = None) -> Callable[..., torch.futures.Future[torch.Tensor]]:
    """For model.register_comm_hook(group or None, hook). One for each model, on all ranks."""
    made = _Hook(policy.make(None, grads, min_bytes))
    tally.book.asked = True

    # Not annotated: torch compares annotations with types, and these are strings.
    def thinwire_hook(state, bucket):
        return made(state, bucket)

    thinwire_hook._thinwire = True
    return thinwire_hook
