"""FSDP2 on CPUs: while the gradients of one group of parameters are reduced, backward goes on.

What FSDP2 does after a reduction is to make views of its result and to hand them out as gradients; it reads
nothing. So the result is a tensor that need not be there yet: whoever reads it waits for it, whatever FSDP2,
a hook or the job does. Two things that FSDP2 may do are put off, too: a cast, and adding to the gradients of
an earlier batch. All is done before the next reduction but one is posted, and at the end of backward; from
then on gradients are tensors like others."""

from __future__ import annotations

import contextlib
import threading
import typing
from collections.abc import Callable, Iterator, Sequence

import torch

from .. import inside
from ..collectives import operations
from ..engine.communicators import Waitable

# Reductions of a tree of FSDP2 modules that may still run when the next one is posted. Each holds the whole
# gradients of a group.
UNDER_WAY = 1
# Operators that read no elements.
_VIEWS = frozenset("aten::" + name for name in ("as_strided", "view", "slice", "alias", "detach"))
_CAST = "aten::_to_copy"


class Pending(torch.Tensor):
    """A tensor on the host that a reduction has yet to fill. Whoever reads it first finishes the
    reduction."""

    @staticmethod
    def __new__(cls, value: torch.Tensor, result: Result) -> Pending:
        made = inside.wrapper(cls, value)
        made.value, made.result = value, result
        return made

    __torch_function__ = inside.no_torch_function

    def ready(self) -> torch.Tensor:
        """Returns the tensor's memory once it is filled."""
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

    # These methods read memory without the dispatcher.
    def numpy(self, **kwargs):
        return self.ready().numpy(**kwargs)

    def tolist(self):
        return self.ready().tolist()

    def data_ptr(self):
        return self.ready().data_ptr()

    def __repr__(self, **_kwargs):
        return repr(self.ready())


class Result:
    """The reduction of a group's gradients, and what is to be done when it has ended."""

    def __init__(self) -> None:
        self.is_done = False
        self._request: Waitable | None = None
        self._kind = ""
        self._rest: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def comes_of(self, request: Waitable, kind: str) -> None:
        """Note which operation fills the result."""
        self._request, self._kind, self.is_done = request, kind, False

    def wait(self) -> None:
        """Wait for the operation alone. ThinwireError, each time, if it has failed."""
        if self._request is not None:
            operations.wait(self._request, self._kind)

    def then(self, action: Callable[[], object]) -> None:
        """Do something when the result is there, in the order of the calls."""
        with self._lock:
            if not self.is_done:
                self._rest.append(action)
                return
        action()

    def finish(self) -> None:
        """Wait, and do what is left."""
        with self._lock, torch.no_grad():
            if not self.is_done:
                self.wait()
                while self._rest:
                    self._rest.pop(0)()
                self.is_done = True


def value_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor, filled or not."""
    return tensor.value if isinstance(tensor, Pending) else tensor


class _Flight:
    """Results of a tree of FSDP2 modules that are under way, oldest first."""

    def __init__(self) -> None:
        self._under_way: list[Result] = []
        self._task = -1  # autograd's number of the backward pass that will end with finish()

    def add(self, result: Result) -> None:
        if self._task != inside.backward_pass():
            inside.at_end_of_backward(self.finish)
            self._task = inside.backward_pass()
        self._under_way.append(result)

    def finish(self, rest: int = 0) -> None:
        """Finish all but the newest `rest`."""
        while len(self._under_way) > rest:
            self._under_way.pop(0).finish()


def _flight(context: typing.Any) -> _Flight:
    """The _Flight of the tree to which this context of FSDP2's belongs."""
    if not hasattr(context, "_thinwire_flight"):
        context._thinwire_flight = _Flight()
    return context._thinwire_flight


def make_room(group: object) -> None:
    """Wait until so few reductions are under way that another one may begin."""
    _flight(inside.context(group)).finish(UNDER_WAY)


def end_with(group: object, request: Waitable, kind: str) -> None:
    """Let the backward pass end when the reduction has ended, or wait now if no pass runs. The reduction's
    exception is raised there."""
    result = Result()
    result.comes_of(request, kind)
    if inside.backward_pass() == -1:
        result.finish()
    else:
        _flight(inside.context(group)).add(result)


class Call:
    """A call of FSDP2's foreach_reduce that may return before its reduction has ended."""

    def __init__(self, params: Sequence[object]):
        self._params, self._result, self._n_allocated = params, Result(), 0
        self._before = [inside.shard(one).grad for one in params]
        for one in params:  # else FSDP2 would read the result, to add it to them
            inside.shard(one).grad = None

    def asks_for_input(self) -> bool:
        """Whether the next buffer is the reduction's input: FSDP2 asks for that one first."""
        return self._n_allocated == 0

    def allocated(self, buffer: torch.Tensor) -> torch.Tensor:
        """Stand in for a buffer that FSDP2 has asked for. The second one is the result's."""
        self._n_allocated += 1
        return Pending(buffer, self._result) if self._n_allocated == 2 else buffer

    def _put_back(self) -> list[torch.Tensor | None]:
        """Restore the gradients from before the call. Returns those that FSDP2 has made since."""
        made = [inside.shard(one).grad for one in self._params]
        for param, grad in zip(self._params, self._before):
            if grad is not None:
                inside.shard(param).grad = grad
        return made

    def fail(self) -> None:
        """Put the old gradients back, when foreach_reduce has raised."""
        self._put_back()

    def _settle(self, grad: torch.Tensor, value: torch.Tensor) -> None:
        """Make `value` the memory of a gradient's shard, once the result is there."""
        self._result.then(lambda: inside.set_local_shard(grad, value))

    def _take(self, before: torch.Tensor | None, new: torch.Tensor) -> None:
        """Add a new gradient to the one from before, once the result is there."""
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
        """Note that foreach_reduce has returned: its result may still be under way."""
        with torch.no_grad():
            for before, new in zip(self._before, self._put_back()):
                if new is not None:  # else FSDP2 keeps it until replicas are reduced
                    self._take(before, new)
        _flight(context).add(self._result)


def _may_go_on(group: object, params: Sequence[object], grads: Sequence[torch.Tensor]) -> bool:
    """Whether backward may go on during this reduction."""
    return (UNDER_WAY > 0 and inside.reduces_later() and inside.backward_pass() != -1
            and not inside.has_reduce_hook(group) and all(one.device.type == "cpu" for one in grads)
            and not any(map(inside.is_watched, params)))


@contextlib.contextmanager
def reduction(group: object, params: Sequence[object],
              grads: Sequence[torch.Tensor]) -> Iterator[Call | None]:
    """Surround a call of foreach_reduce for these parameters of a group. Yields None if it has to wait."""
    if not _may_go_on(group, params, grads):
        yield None
        return
    # A second reduction of the same parameters waits for the first.
    again = any(isinstance(inside.local_shard(inside.shard(one).grad), Pending) for one in params)
    _flight(inside.context(group)).finish(0 if again else UNDER_WAY)
    call = Call(params)
    try:
        yield call
    except BaseException:
        call.fail()
        raise
    call.end(inside.context(group))
