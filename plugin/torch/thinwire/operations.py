"""One collective operation on tensors: what the hooks and the backend share."""

from __future__ import annotations

import collections
import ctypes as C
import dataclasses
import logging
import queue
import threading
import time
import zlib
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from . import autoload, capi, columns, estimate, losses, names, policy, segments, spans
from .engine import TYPES, Communicator, Request, Use
from .tally import book

log = logging.getLogger("thinwire")
DECLINED = "plain is as fast on this link"
NCCL_LENGTHS = "lossless messages have no fixed length, and NCCL needs one"


@dataclasses.dataclass
class Shape:
    """A table of segments, and what is known of operations with it."""

    table: segments.Table
    reasons: collections.Counter[str]
    n_pieces: int
    bytes: dict[str, int] = dataclasses.field(default_factory=dict)  # {codec: planned}
    # From where the table's pointers are set until the library has copied it.
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    scaling: columns.Scaling | None = None
    names: tuple[str, ...] = ()  # of the tensors, "" where it is not known
    n_posts: int = 0  # with loss


def shape(table: segments.Table, pieces: Sequence[segments.Piece],
          scaling: columns.Scaling | None = None) -> Shape:
    reasons = collections.Counter(piece.unquantized for piece in pieces if piece.unquantized)
    return Shape(table, reasons, len(pieces), scaling=scaling, names=tuple(one.name for one in pieces))


def by_codec(
    pieces: Sequence[segments.Piece], offsets: Sequence[int], codec_of: Callable[[str], capi.Codec | None],
) -> list[tuple[capi.Codec | None, Sequence[segments.Piece], Sequence[int]]]:
    """(codec, pieces, where they begin) for each codec that their names ask for; mostly that is one."""
    found: dict[str, tuple[capi.Codec | None, list[segments.Piece], list[int]]] = {}
    for piece, offset in zip(pieces, offsets):
        codec = codec_of(piece.name)
        _, mine, at = found.setdefault(str(codec), (codec, [], []))
        mine.append(piece)
        at.append(offset)
    return list(found.values())


def scaling(codec: capi.Codec | None, pieces: Sequence[segments.Piece], offsets: Sequence[int],
            itemsize: int, copies: int) -> columns.Scaling | None:
    """Of the columns of matrices in so many runs; None: there are none, or the codec does without."""
    found = columns.matrices(pieces, offsets, itemsize) if codec is not None and codec.columns else []
    return columns.Scaling(found, copies) if found else None


class Shapes:
    """Those of a group's tensors, by what makes them different."""

    LIMIT = 256

    def __init__(self) -> None:
        self._found: dict[object, Shape] = {}

    def get(self, key: object, make: Callable[[], Shape]) -> Shape:
        found = self._found.get(key)
        if found is None:  # two threads may both make it: each has its own then
            if len(self._found) >= self.LIMIT:
                self._found.clear()
            found = self._found[key] = make()
        return found


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


def elsewhere(kind: str, reason: str, group: dist.ProcessGroup | None, whole_bytes: int) -> None:
    """Count an operation that goes another way, and about what a rank sends for it. None: there is no such
    group."""
    if group is not None and group.size() > 1:
        sent = whole_bytes * (group.size() - 1) // group.size()
        book.elsewhere(kind, reason, 2 * sent if kind.endswith("all-reduce") else sent)


def _why_not(whole: torch.Tensor, op: dist.ReduceOp | None) -> str:
    """Why Thinwire has no such operation, or ""."""
    if whole.layout != torch.strided:
        return "sparse"
    if whole.dtype not in TYPES or (op is not None and not whole.is_floating_point()):
        return str(whole.dtype)
    return "" if op is None or reduction(op) is not None else "the reduction is %s" % getattr(op, "op", op)


_refused: dict[str, str] = {}  # {group: why GPU memory does not go over Thinwire there}


def carrier(kind: str, use: Use, group: dist.ProcessGroup, whole: torch.Tensor,
            op: dist.ReduceOp | None = None, staged: bool = False) -> Communicator | None:
    """The communicator for an operation on such a tensor, or on host memory in its place if that is staged;
    None for torch's own way, which the report then names. Collective over the group when it is new."""
    if group.size() == 1:
        return None
    reason = _why_not(whole, op)
    if not reason and whole.is_cuda and not staged:
        reason = _refused.get(group.group_name, "")
    if not reason:
        try:
            found = use.communicator(group, whole.is_cuda, staged)
            if found is not None:
                return found
            reason = use.why_not(group, whole.is_cuda, staged)
        except capi.ThinwireError as error:
            # Only GPU memory can be refused: by a library that was built without CUDA.
            refused = whole.is_cuda and not staged and error.status == capi.UNSUPPORTED
            if not refused or autoload.requiring():
                raise
            log.warning("not over thinwire: %s", error)
            reason = _refused[group.group_name] = str(error)
    elsewhere(kind, reason, group, whole.nbytes if whole.layout == torch.strided else 0)
    return None


@dataclasses.dataclass
class Operation:
    """What to do; post() does it. Any thread may."""

    kind: str  # the report's name for it
    op: int
    dtype: torch.dtype
    shape: Shape
    place: Callable[[segments.Table], None]  # sets the table's pointers
    codec: capi.Codec | None
    keep: tuple[torch.Tensor, ...]
    reduction: tuple[int, float] = (capi.SUM, 1.0)
    step: int = 0
    of: str = ""  # what it moves: the same on all ranks, which is checked
    root: int = 0  # of a broadcast
    # Of a reduction: what is reduced, and where the result will be.
    source: torch.Tensor | None = None
    result: torch.Tensor | None = None

    def _codec(self, communicator: Communicator) -> tuple[capi.Codec | None, collections.Counter[str]]:
        """The codec or None, and {why: how many tensors are not quantized}."""
        everything = self.shape.n_pieces
        if self.codec is None:
            by_name = self.shape.reasons[names.BY_NAME]
            return None, collections.Counter({names.BY_NAME: by_name} if by_name else {})
        if policy.is_unquantized():
            return None, collections.Counter({"unquantized()": everything})
        if communicator.n_nodes == 1:
            return None, collections.Counter({"ranks of one node": everything})
        if communicator.cuda and self.codec.lossless:
            return None, collections.Counter({NCCL_LENGTHS: everything})
        if not self.dtype.is_floating_point:
            rest = everything - self.shape.reasons.total()
            return None, self.shape.reasons + collections.Counter({str(self.dtype): rest})
        return self.codec if self.shape.reasons.total() < everything else None, self.shape.reasons

    def _planned(self, communicator: Communicator, args: capi.Args, codec: capi.Codec | None) -> int:
        key = str(codec)
        if key not in self.shape.bytes:
            args.codec = C.pointer(codec) if codec is not None else None
            self.shape.bytes[key] = communicator.planned_bytes(args)
        return self.shape.bytes[key]

    def _begin(self, args: capi.Args, communicator: Communicator) -> Request | columns.Scaled:
        """With the table's pointers set."""
        scaling = self.shape.scaling if args.codec and not args.codec.contents.lossless else None
        is_divided = scaling is not None and scaling.divide(self.source)
        if scaling is not None and not is_divided:
            args.codec = C.pointer(capi.lossless()) if not communicator.cuda else None
        self.place(self.shape.table)
        self._sample(args, communicator)
        request = communicator.post(args, self.keep, self.kind)
        if is_divided:
            request = scaling.undone(request, self.result)
            if communicator.cuda:
                request.wait()  # in the stream's order
        if scaling is not None:
            scaling.post(communicator)
        return request

    @property
    def group(self) -> str:
        """Of parameters."""
        return self.of.partition(" of ")[2] or self.of

    def _sample(self, args: capi.Args, communicator: Communicator) -> None:
        """Now and then, look at what is sent with loss."""
        if not args.codec or args.codec.contents.lossless or communicator.cuda:
            return
        losses.looker.look(self, TYPES[self.dtype], communicator.rank)
        if self.op != capi.ALLGATHER and estimate.sampler.due(self.kind):
            estimate.sampler.look(self.kind, TYPES[self.dtype], self.dtype.itemsize, self.shape.table)

    def _post(self, communicator: Communicator,
              ) -> tuple[Request | columns.Scaled, int, int, int, collections.Counter[str]]:
        """(request, bytes had nothing been quantized, bytes, of them what may be fewer, {why: how many
        tensors are not quantized})"""
        codec, reasons = self._codec(communicator)
        kind, factor = self.reduction
        args = self.shape.table.args(
            op=self.op, type=TYPES[self.dtype], reduction=kind, factor=factor, step=self.step & 0xFFFFFFFF,
            seed=zlib.crc32(self.of.encode()), root=self.root)
        if codec is not None:
            args.codec = C.pointer(codec)
        if communicator.cuda:
            args.stream = torch.cuda.current_stream().cuda_stream
        with self.shape.lock:
            request = self._begin(args, communicator)
            codec = args.codec.contents if args.codec else None
            if codec is not None and request.declined:
                reasons = reasons + collections.Counter({DECLINED: self.shape.n_pieces - reasons.total()})
            sent, plain = self._planned(communicator, args, codec), self._planned(communicator, args, None)
        is_bound = codec is not None and codec.lossless and not request.declined
        return request, plain, sent, sent if is_bound else 0, reasons

    def post(self, communicator: Communicator) -> AnyRequest:
        return post([self], communicator)


class Requests:
    """Several operations that are one to whoever waits."""

    def __init__(self, together: Sequence[Request | columns.Scaled]):
        self._together = together

    def test(self) -> bool:
        return all([one.test() for one in self._together])

    def wait(self) -> None:
        for one in self._together:
            one.wait()

    def exception(self) -> capi.ThinwireError | None:
        return next((one.exception() for one in self._together if one.exception() is not None), None)

    def take_elapsed(self) -> float:
        return max(one.take_elapsed() for one in self._together)


AnyRequest = Request | columns.Scaled | Requests


def post(together: Sequence[Operation], communicator: Communicator) -> AnyRequest:
    """Post operations that the report counts as one call."""
    span = spans.begun(spans.name_of(together[0].kind, together[0].of))
    with spans.shown(span.name):
        posted = [one._post(communicator) for one in together]
    requests, plain, sent, bound, reasons = zip(*posted)
    book.record(together[0].kind, sum(plain), sum(sent), sum(reasons, collections.Counter()), sum(bound))
    request = requests[0] if len(requests) == 1 else Requests(requests)
    request.span = span
    return request


def _took(request: AnyRequest, kind: str) -> None:
    elapsed_sec = request.take_elapsed()
    book.took(kind, elapsed_sec)
    spans.ended(request.span, elapsed_sec)


def wait(request: AnyRequest, kind: str) -> None:
    begin = time.perf_counter()
    with spans.shown("wait for " + request.span.name):
        request.wait()
    book.waited(kind, time.perf_counter() - begin)
    _took(request, kind)
    spans.waited(request.span, begin)


class _Completer:
    """A thread that waits for operations and completes torch's futures, in the order of posting."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[AnyRequest, str, torch.futures.Future, object]] = (
            queue.SimpleQueue())
        threading.Thread(target=self._run, name="thinwire-futures", daemon=True).start()

    def _run(self) -> None:
        while True:
            request, kind, future, value = self._queue.get()
            try:
                request.wait()  # whether anybody waits for the future is not seen here
                _took(request, kind)
                future.set_result(value)
            except Exception as error:
                future.set_exception(error)

    def complete(self, request: AnyRequest, kind: str, value: object) -> torch.futures.Future:
        future: torch.futures.Future = torch.futures.Future()
        self._queue.put((request, kind, future, value))
        return future


_completer: _Completer | None = None
_completer_lock = threading.Lock()


def future_of(request: AnyRequest, kind: str, value: object) -> torch.futures.Future:
    """A future that gets the value when the operation is done."""
    global _completer
    with _completer_lock:
        _completer = _completer or _Completer()
    return _completer.complete(request, kind, value)


class Work(dist.Work):
    """torch's handle on an operation on host memory."""

    def __init__(self, request: AnyRequest, kind: str, result: list[torch.Tensor] | None = None):
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
