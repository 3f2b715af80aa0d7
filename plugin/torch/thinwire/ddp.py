"""DistributedDataParallel: a hook that averages its buckets of gradients over Thinwire. The program registers
it, or with TW_DDP every model gets it that has none of its own when it is first used."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import capi, inside, operations, policy, segments, tally, unused
from .engine import Use


class _Hook:
    """The hook of one model. torch keeps it in the model, which programs pickle; there it is as new."""

    _thinwire = True

    def __init__(self, rules: policy.Policy, group: dist.ProcessGroup | None = None):
        """group: the model's, where none is given as the hook's state."""
        self.__name__ = self.__qualname__ = "thinwire_hook"
        self._rules, self._use, self._group = rules, Use(rules.settings()), group
        self._shapes: dict[object, operations.Shape] = {}
        self._steps = itertools.count()

    def __reduce__(self) -> tuple[object, ...]:
        return hook, ()

    def _shape(self, gradients: list[torch.Tensor]) -> operations.Shape:
        key = (gradients[0].dtype, tuple(one.shape for one in gradients))
        if key not in self._shapes:
            pieces = [self._piece(one) for one in gradients]
            self._shapes[key] = operations.shape(segments.Plain(pieces, gradients[0].itemsize), pieces)
        return self._shapes[key]

    def _piece(self, gradient: torch.Tensor) -> segments.Piece:
        why = policy.why_unquantized(self._rules, self._rules.grads, gradient.dim(), gradient.nbytes)
        return segments.Piece(gradient.numel(), why, gradient.shape[-1] if gradient.dim() > 1 else 0)

    # Not annotated: torch compares annotations with types, and these are strings.
    def __call__(self, state, bucket):
        group, buffer = state or self._group or dist.group.WORLD, bucket.buffer()
        ranks = operations.carrier("ddp all-reduce", self._use, group, buffer, dist.ReduceOp.AVG)
        if ranks is None:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            return allreduce_hook(group, bucket)
        if ranks.n_nodes > 1:
            tally.announce("DDP over thinwire: gradients %s" % (self._rules.grads or "plain"))
        request = operations.Operation(
            "ddp all-reduce", capi.ALLREDUCE, buffer.dtype, self._shape(bucket.gradients()),
            lambda table: table.reduce(buffer.data_ptr()), self._rules.grads, (buffer,),
            (capi.MEAN, 1.0), next(self._steps), "bucket %d" % bucket.index()).post(ranks)
        if ranks.cuda:
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device])
            future.set_result(buffer)
            return future
        return operations.future_of(request, "ddp all-reduce", buffer)


def hook(grads: str | None = None,
         min_bytes: int | None = None) -> Callable[..., torch.futures.Future[torch.Tensor]]:
    """For model.register_comm_hook(group or None, hook). One for each model, on all ranks. RuntimeError for a
    torch that differs."""
    inside.check_base()
    tally.book.asked = True
    return _Hook(policy.make(None, grads, min_bytes))


# Models that have not been used, and what takes the look at them away.
_new: weakref.WeakKeyDictionary[DistributedDataParallel, torch.utils.hooks.RemovableHandle] = (
    weakref.WeakKeyDictionary())


@inside.no_dynamo
def _first_use(model: DistributedDataParallel, _args: object) -> None:
    """Before the first forward pass: give the model the hook, unless it has one."""
    handle = _new.pop(model, None)
    if handle is not None:
        handle.remove()
        if unused.is_left_alone(model):
            return
        try:
            model.register_comm_hook(None, _Hook(policy.from_environment(), model.process_group))
        except RuntimeError as error:  # there is one that was not registered as they usually are
            unused.leave_alone(model, str(error).splitlines()[0])


def patch() -> None:
    """Every DDP model from now on."""
    inside.check_base()
    tally.book.asked = True
    unused.watch()
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if self.process_group.size() > 1:
            _new[self] = self.register_forward_pre_hook(_first_use, prepend=True)

    DistributedDataParallel.__init__ = __init__
