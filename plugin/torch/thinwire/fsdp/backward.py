"""FSDP2 on CPUs: backward goes on while the gradients of a group of parameters are reduced.

After a reduction FSDP2 only makes views of the result and stores them as gradients. It reads no values. So
foreach_reduce gets a Pending tensor as its result, which the reduction fills later. Any code that reads a
Pending tensor (FSDP2, a hook, the job) waits for the reduction. FSDP2 may also cast the result, or add it to
an earlier batch's gradients. Both are postponed until the reduction has ended. A reduction is finished when
the next but one is posted, or at the end of backward. After that gradients are ordinary tensors."""

from __future__ import annotations

import contextlib
import threading
import typing
from collections.abc import Callable, Iterator, Sequence

import torch

from .. import inside
from ..collectives import operations
from ..engine.communicators import Waitable

# Number of reductions of a tree of FSDP2 modules that may still run when the next one is posted. More would
# take more memory: each holds the unsharded gradients of a group.
UNDER_WAY = 1
# Operators that only make views, and read no elements.
_VIEWS = frozenset("aten::" + name for name in ("as_strided", "view", "slice", "alias", "detach"))
_CAST = "aten::_to_copy"


class Pending(torch.Tensor):
    """A tensor in host memory that a reduction will fill. Its first reader waits for the reduction."""

    @staticmethod
    def __new__(cls, value: torch.Tensor, result: Result) -> Pending:
        made = inside.wrapper(cls, value)
        made.value, made.result = value, result
        return made

    __torch_function__ = inside.no_torch_function

    def ready(self) -> torch.Tensor:
        """Wait until the tensor is filled. Returns it as an ordinary tensor."""
        self.result.finish()
        return self.value

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, inside.operator_name(function)
        first = args[0] if args else None
        if isinstance(first, cls) and not first.result.is_done:
            if name in _VIEWS:
                return cls(function(first.value, *args[1:], **kwargs), first.result)
            if name == _CAST and set(kwargs) == {"dtype"}:
                made = torch.empty_like(first.value, dtype=kwargs["dtype"])
                first.result.then(lambda: made.copy_(first.value))
                return cls(made, first.result)
        args, kwargs = inside.map_only(cls, cls.ready, (args, kwargs))
        return function(*args, **kwargs)

    # The next methods read memory without going through the dispatcher.
    def numpy(self, **kwargs):
        return self.ready().numpy(**kwargs)

    def tolist(self):
        return self.ready().tolist()

    def data_ptr(self):
        return self.ready().data_ptr()

    def __repr__(self, **_kwargs):
        return repr(self.ready())


class Result:
    """The reduction of a group's gradients, and actions that are postponed until it has ended."""

    def __init__(self) -> None:
        self.is_done = False
        self._request: Waitable | None = None
        self._kind = ""
        self._rest: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def comes_of(self, request: Waitable, kind: str) -> None:
        """Set the operation that fills the result. kind: the report's name for it."""
        self._request, self._kind, self.is_done = request, kind, False

    def wait(self) -> None:
        """Wait for the operation, but run no actions. If it has failed, every call raises ThinwireError."""
        if self._request is not None:
            operations.wait(self._request, self._kind)

    def then(self, action: Callable[[], object]) -> None:
        """Run `action` after the operation: in finish(), in the order of calls, now if finish() has run."""
        with self._lock:
            if not self.is_done:
                self._rest.append(action)
                return
        action()

    def finish(self) -> None:
        """Wait for the operation, and run the postponed actions. Does nothing at later calls."""
        with self._lock, torch.no_grad():
            if not self.is_done:
                self.wait()
                while self._rest:
                    self._rest.pop(0)()
                self.is_done = True


def value_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the ordinary tensor behind a Pending one, without waiting; other tensors as they are."""
    return tensor.value if isinstance(tensor, Pending) else tensor


class _Flight:
    """The unfinished results of a tree of FSDP2 modules, oldest first."""

    def __init__(self) -> None:
        self._under_way: list[Result] = []
        self._task = -1  # autograd's number of the backward pass at whose end finish() will run

    def add(self, result: Result) -> None:
        if self._task != inside.backward_pass():
            inside.at_end_of_backward(self.finish)
            self._task = inside.backward_pass()
        self._under_way.append(result)

    def finish(self, rest: int = 0) -> None:
        """Finish all results except the newest `rest`."""
        while len(self._under_way) > rest:
            self._under_way.pop(0).finish()


def _flight(context: typing.Any) -> _Flight:
    """Returns the _Flight of the tree of modules that shares this FSDP2 context."""
    if not hasattr(context, "_thinwire_flight"):
        context._thinwire_flight = _Flight()
    return context._thinwire_flight


def make_room(group: object) -> None:
    """Wait until another reduction may be posted (UNDER_WAY)."""
    _flight(inside.context(group)).finish(UNDER_WAY)


def end_with(group: object, request: Waitable, kind: str) -> None:
    """Make the backward pass wait for this reduction at its end, and raise the reduction's exception there.
    If no backward pass runs, wait now."""
    result = Result()
    result.comes_of(request, kind)
    if inside.backward_pass() == -1:
        result.finish()
    else:
        _flight(inside.context(group)).add(result)


class Call:
    """One call of FSDP2's foreach_reduce, which may return before its reduction has ended."""

    def __init__(self, params: Sequence[object]):
        self._params, self._result, self._n_allocated = params, Result(), 0
        self._before = [inside.shard(one).grad for one in params]
        for one in params:  # so that FSDP2 does not add the result to old gradients, which would read it
            inside.shard(one).grad = None

    def asks_for_input(self) -> bool:
        """Returns whether the next buffer to be allocated is the reduction's input, FSDP2's first one."""
        return self._n_allocated == 0

    def allocated(self, buffer: torch.Tensor) -> torch.Tensor:
        """Returns what FSDP2 gets as a buffer. Its second one, the result, becomes a Pending tensor."""
        self._n_allocated += 1
        return Pending(buffer, self._result) if self._n_allocated == 2 else buffer

    def _put_back(self) -> list[torch.Tensor | None]:
        """Restore the gradients from before the call. Returns those that FSDP2 has set in the call."""
        made = [inside.shard(one).grad for one in self._params]
        for param, grad in zip(self._params, self._before):
            if grad is not None:
                inside.shard(param).grad = grad
        return made

    def fail(self) -> None:
        """Put the old gradients back, after an exception in foreach_reduce."""
        self._put_back()

    def _settle(self, grad: torch.Tensor, value: torch.Tensor) -> None:
        """After the reduction, replace the gradient's Pending shard by the ordinary tensor `value`."""
        self._result.then(lambda: inside.set_local_shard(grad, value))

    def _take(self, before: torch.Tensor | None, new: torch.Tensor) -> None:
        """When the reduction has ended, add the new gradient to the one from before, if there is one."""
        shard = inside.local_shard(new)
        if before is None:
            if isinstance(shard, Pending):
                self._settle(new, shard.value)
        elif isinstance(shard, Pending):
            total = inside.local_shard(before)
            self._result.then(lambda: total.add_(shard.value))
            inside.set_local_shard(before, Pending(total, self._result))
            self._settle(before, total)
        else:
            inside.local_shard(before).add_(shard)

    def end(self, context: object) -> None:
        """Take over the new gradients when foreach_reduce has returned. The reduction may still run."""
        with torch.no_grad():
            for before, new in zip(self._before, self._put_back()):
                if new is not None:  # None: FSDP2 keeps the gradient until replicas are reduced
                    self._take(before, new)
        _flight(context).add(self._result)


def _may_go_on(group: object, params: Sequence[object], grads: Sequence[torch.Tensor]) -> bool:
    """Returns whether backward may go on during this reduction: on CPUs, if no hook would read its result."""
    return (UNDER_WAY > 0 and inside.reduces_later() and inside.backward_pass() != -1
            and not inside.has_reduce_hook(group) and all(one.device.type == "cpu" for one in grads)
            and not any(map(inside.is_watched, params)))


@contextlib.contextmanager
def reduction(group: object, params: Sequence[object],
              grads: Sequence[torch.Tensor]) -> Iterator[Call | None]:
    """Context of foreach_reduce for these parameters. Yields the call, or None if it has to wait."""
    if not _may_go_on(group, params, grads):
        yield None
        return
    # If one of these parameters is still being reduced, finish that reduction first.
    again = any(isinstance(inside.local_shard(inside.shard(one).grad), Pending) for one in params)
    _flight(inside.context(group)).finish(0 if again else UNDER_WAY)
    call = Call(params)
    try:
        yield call
    except BaseException:
        call.fail()
        raise
    call.end(inside.context(group))
