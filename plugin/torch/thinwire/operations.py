"""One collective operation on tensors: what the hooks and the backend share."""

from __future__ import annotations

import collections
import ctypes as C
import dataclasses
import queue
import threading
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from . import capi, policy, segments
from .engine import TYPES, Communicator, Request
from .tally import book


@dataclasses.dataclass
class Shape:
    """A table of segments, and what is known of operations with it."""

    table: segments.Table
    reasons: collections.Counter[str]
    n_pieces: int
    bytes: dict[str, int] = dataclasses.field(default_factory=dict)  # {codec: planned}


def shape(table: segments.Table, pieces: Sequence[segments.Piece]) -> Shape:
    reasons = collections.Counter(piece.exact for piece in pieces if piece.exact)
    return Shape(table, reasons, len(pieces))


def reduction(op: dist.ReduceOp | dist.ReduceOp.RedOpType) -> tuple[int, float] | None:
    """(tw_coll_reduction_t, factor) of torch's reduction, or None if Thinwire has none such."""
    kind = getattr(op, "op", op)
    if kind == dist.ReduceOp.AVG:
        return capi.MEAN, 1.0
    if kind == dist.ReduceOp.SUM:
        return capi.SUM, 1.0
    if kind == dist.ReduceOp.PREMUL_SUM:
        factor = op.factor if hasattr(op, "factor") else op.__getstate__()[1]
        return (capi.SUM, float(factor)) if isinstance(factor, (int, float)) and factor else None
    return None


@dataclasses.dataclass
class Operation:
    """What to do; post() does it."""

    kind: str  # the report's name for it
    op: int
    dtype: torch.dtype
    shape: Shape
    codec: capi.Codec | None
    keep: tuple[torch.Tensor, ...]
    reduction: tuple[int, float] = (capi.SUM, 1.0)
    step: int = 0

    def _codec(self, communicator: Communicator) -> tuple[capi.Codec | None, collections.Counter[str]]:
        """The codec or None, and {why: how many tensors stay exact}."""
        everything = self.shape.n_pieces
        if self.codec is None:
            return None, collections.Counter()
        if not self.dtype.is_floating_point:
            return None, collections.Counter({"mixed types": everything})
        if policy.is_exact():
            return None, collections.Counter({"exact()": everything})
        if communicator.n_nodes == 1:
            return None, collections.Counter({"ranks of one node": everything})
        return self.codec if self.shape.reasons.total() < everything else None, self.shape.reasons

    def _planned(self, communicator: Communicator, args: capi.Args, codec: capi.Codec | None) -> int:
        key = str(codec)
        if key not in self.shape.bytes:
            args.codec = C.pointer(codec) if codec is not None else None
            self.shape.bytes[key] = communicator.planned_bytes(args)
        return self.shape.bytes[key]

    def post(self, communicator: Communicator) -> Request:
        codec, reasons = self._codec(communicator)
        kind, factor = self.reduction
        args = self.shape.table.args(
            op=self.op, type=TYPES[self.dtype], reduction=kind, factor=factor, step=self.step & 0xFFFFFFFF)
        if codec is not None:
            args.codec = C.pointer(codec)
        if communicator.cuda:
            args.stream = torch.cuda.current_stream().cuda_stream
        request = communicator.post(args, self.keep, self.kind)
        sent, plain = self._planned(communicator, args, codec), self._planned(communicator, args, None)
        book.record(self.kind, plain, sent, reasons)
        return request


def wait(request: Request, kind: str) -> None:
    begin = time.perf_counter()
    request.wait()
    book.waited(kind, time.perf_counter() - begin)
    book.took(kind, request.take_elapsed())


class _Completer:
    """A thread that waits for operations and completes torch's futures, in the order of posting."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Request, str, torch.futures.Future, object]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="thinwire-futures", daemon=True).start()

    def _run(self) -> None:
        while True:
            request, kind, future, value = self._queue.get()
            try:
                request.wait()  # whether anybody waits for the future is not seen here
                book.took(kind, request.take_elapsed())
                future.set_result(value)
            except Exception as error:
                future.set_exception(error)

    def complete(self, request: Request, kind: str, value: object) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        self._queue.put((request, kind, future, value))
        return future


_completer: _Completer | None = None
_completer_lock = threading.Lock()


def future_of(request: Request, kind: str, value: object) -> torch.futures.Future:
    """A future that gets the value when the operation is done."""
    global _completer
    with _completer_lock:
        _completer = _completer or _Completer()
    return _completer.complete(request, kind, value)


class Work(dist.Work):
    """torch's handle on an operation on host memory."""

    def __init__(self, request: Request, kind: str, result: list[torch.Tensor] | None = None):
        super().__init__()
        self._request, self._kind, self._result = request, kind, result or []

    def wait(self, timeout: object = None) -> bool:
        wait(self._request, self._kind)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._request.test()

    def is_success(self) -> bool:
        return self._request.test() and self._request.exception() is None

    def exception(self) -> BaseException | None:
        return self._request.exception()

    def result(self) -> list[torch.Tensor]:
        return self._result

    # What C++ calls them.
    isCompleted, isSuccess = is_completed, is_success

    def get_future(self) -> torch.futures.Future:
        return future_of(self._request, self._kind, self._result)


class StreamWork(dist.Work):
    """torch's handle on an operation that is enqueued on the current CUDA stream."""

    def __init__(self) -> None:
        super().__init__()
        self._event = torch.cuda.current_stream().record_event()

    def wait(self, timeout: object = None) -> bool:
        torch.cuda.current_stream().wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        return self._event.query()
