"""FSDP2 on CPUs: while the gradients of one group of parameters are reduced, backward goes on.

What FSDP2 does after a reduction is to make views of its result and to hand them out as gradients; it reads
nothing. So the result is a tensor that need not be there yet: whoever reads it waits for it, whatever FSDP2,
a hook or the job does. Two things that FSDP2 may do are put off, too: a cast, and adding to the gradients of
an earlier batch. All is done before the next reduction but one is posted, and at the end of backward; from
then on gradients are tensors like others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import torch

from . import inside, operations

# Reductions of a tree of FSDP2 modules that may be under way when the next one is posted. Each holds the
# whole gradients of a group.
UNDER_WAY = 1
# They read nothing.
_VIEWS = frozenset("aten::" + name for name in ("as_strided", "view", "slice", "alias", "detach"))
_CAST = "aten::_to_copy"


class Pending(torch.Tensor):
    """A tensor on the host that a reduction is still to fill. Whatever reads it finishes the reduction
    first."""

    @staticmethod
    def __new__(cls, value: torch.Tensor, result: Result) -> Pending:
        made = inside.wrapper(cls, value)
        made.value, made.result = value, result
        return made

    __torch_function__ = inside.no_torch_function

    def ready(self) -> torch.Tensor:
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

    # These look at memory past the dispatcher.
    def numpy(self, **kwargs):
        return self.ready().numpy(**kwargs)

    def tolist(self):
        return self.ready().tolist()

    def data_ptr(self):
        return self.ready().data_ptr()

    def __repr__(self, **_kwargs):
        return repr(self.ready())


class Result:
    """Of the reduction of a group's gradients, and what is to be done when it is there."""

    def __init__(self) -> None:
        self.is_done = False
        self._request: operations.AnyRequest | None = None
        self._kind = ""
        self._rest: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def comes_of(self, request: operations.AnyRequest, kind: str) -> None:
        """When this operation has ended it is there."""
        self._request, self._kind, self.is_done = request, kind, False

    def wait(self) -> None:
        """For the operation alone. ThinwireError, each time, if it has failed."""
        if self._request is not None:
            operations.wait(self._request, self._kind)

    def then(self, action: Callable[[], object]) -> None:
        """Afterwards, in the order of the calls."""
        with self._lock:
            if not self.is_done:
                self._rest.append(action)
                return
        action()

    def finish(self) -> None:
        """Wait, and do the rest."""
        with self._lock, torch.no_grad():
            if not self.is_done:
                self.wait()
                while self._rest:
                    self._rest.pop(0)()
                self.is_done = True


def value_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor, whether or not it has been filled."""
    return tensor.value if isinstance(tensor, Pending) else tensor


class _Flight:
    """The results of a tree of FSDP2 modules that are under way, oldest first."""

    def __init__(self) -> None:
        self._under_way: list[Result] = []
        self._task = -1  # of autograd's: a backward pass that ends with finish()

    def add(self, result: Result) -> None:
        if self._task != inside.backward_pass():
            inside.at_end_of_backward(self.finish)
            self._task = inside.backward_pass()
        self._under_way.append(result)

    def finish(self, rest: int = 0) -> None:
        """All but the newest."""
        while len(self._under_way) > rest:
            self._under_way.pop(0).finish()


def _flight(context: object) -> _Flight:
    """That of the tree to which this context of FSDP2's belongs."""
    if not hasattr(context, "_thinwire_flight"):
        context._thinwire_flight = _Flight()
    return context._thinwire_flight


class Call:
    """A call of FSDP2's foreach_reduce that may return before its reduction has ended."""

    def __init__(self, params: Sequence[object]):
        self._params, self._result, self._n_allocated = params, Result(), 0
        self._before = [inside.shard(one).grad for one in params]
        for one in params:  # FSDP2 would read the result to add it
            inside.shard(one).grad = None

    def allocated(self, buffer: torch.Tensor) -> torch.Tensor:
        """In place of a buffer that FSDP2 has asked for: the second is the result's."""
        self._n_allocated += 1
        return Pending(buffer, self._result) if self._n_allocated == 2 else buffer

    def _put_back(self) -> list[torch.Tensor | None]:
        """The gradients from before; what FSDP2 has made since."""
        made = [inside.shard(one).grad for one in self._params]
        for param, grad in zip(self._params, self._before):
            if grad is not None:
                inside.shard(param).grad = grad
        return made

    def fail(self) -> None:
        self._put_back()

    def _settle(self, grad: torch.Tensor, value: torch.Tensor) -> None:
        """A gradient's shard on this rank is that memory, when the result is there."""
        inside.set_local_shard(grad, Pending(value, self._result))
        self._result.then(lambda: inside.set_local_shard(grad, value))

    def _take(self, before: torch.Tensor | None, new: torch.Tensor) -> None:
        shard = inside.local_shard(new)
        if before is None:
            if isinstance(shard, Pending):
                self._settle(new, shard.value)
        elif isinstance(shard, Pending):
            total = inside.local_shard(before)
            self._result.then(lambda: total.add_(shard.value))
            self._settle(before, total)
        else:
            inside.local_shard(before).add_(shard)

    def end(self, context: object) -> None:
        """foreach_reduce has returned."""
        with torch.no_grad():
            for before, new in zip(self._before, self._put_back()):
                if new is not None:  # otherwise FSDP2 has put it aside until replicas are reduced
                    self._take(before, new)
        _flight(context).add(self._result)


def _may_go_on(group: object, params: Sequence[object], grads: Sequence[torch.Tensor]) -> bool:
    return (UNDER_WAY > 0 and inside.reduces_later() and inside.backward_pass() != -1
            and not inside.has_reduce_hook(group) and all(one.device.type == "cpu" for one in grads)
            and not any(map(inside.is_watched, params)))


@contextlib.contextmanager
def reduction(group: object, params: Sequence[object],
              grads: Sequence[torch.Tensor]) -> Iterator[Call | None]:
    """Around a call of foreach_reduce for these parameters of a group; None: it has to wait."""
    if not _may_go_on(group, params, grads):
        yield None
        return
    # The same parameters' second reduction.
    again = any(isinstance(inside.local_shard(inside.shard(one).grad), Pending) for one in params)
    _flight(inside.context(group)).finish(0 if again else UNDER_WAY)
    call = Call(params)
    try:
        yield call
    except BaseException:
        call.fail()
        raise
    call.end(inside.context(group))
