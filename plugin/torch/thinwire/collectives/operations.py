"""Posts collective operations on tensors, and waits for them. Shared by the hooks and the c10d backend."""

from __future__ import annotations

import collections
import ctypes as C
import queue
import threading
import time
import typing
import zlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

from .. import capi, inside, names, switches
from ..engine.communicators import TYPES, Communicator, Use, Waitable
from ..switches import log
from ..telemetry import spans
from ..telemetry.tally import book
from . import estimate, losses
from .shapes import Operation

DECLINED = "plain is as fast on this link"


def reduction(op: dist.ReduceOp | dist.ReduceOp.RedOpType) -> tuple[int, float] | None:
    """Returns torch's reduction as (tw_coll_reduction_t, factor), or None if Thinwire does not have it."""
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
    """Count, for the report, an operation that does not go over Thinwire, and roughly the bytes that this
    rank sends for it. group: the operation's ranks; None if nothing is sent."""
    if group is not None and group.size() > 1:
        sent = whole_bytes * (group.size() - 1) // group.size()
        book.elsewhere(kind, reason, 2 * sent if kind.endswith("all-reduce") else sent)


def _why_not(whole: torch.Tensor, op: dist.ReduceOp | None) -> str:
    """Returns why Thinwire cannot do operation `op` (None: a gather) on `whole`, or "" if it can."""
    if whole.layout != torch.strided:
        return "sparse"
    if whole.dtype not in TYPES or (op is not None and not whole.is_floating_point()):
        return str(whole.dtype)
    return "" if op is None or reduction(op) is not None else "the reduction is %s" % getattr(op, "op", op)


_refused: dict[str, str] = {}  # {group: why its GPU memory does not go over Thinwire}


def carrier(kind: str, use: Use, group: dist.ProcessGroup, whole: torch.Tensor,
            op: dist.ReduceOp | None = None, staged: bool = False) -> Communicator | None:
    """Returns the communicator for an operation on a tensor like `whole`. Returns None if torch has to do the
    operation itself; the report then says why. staged: the operation runs on copies in host memory. The
    first call for a group is collective: all of its ranks must make it."""
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
            # A library that was built without CUDA refuses GPU memory.
            refused = whole.is_cuda and not staged and error.status == capi.UNSUPPORTED
            if not refused or switches.requiring():
                raise
            log.warning("not over thinwire: %s", error)
            reason = _refused[group.group_name] = str(error)
    elsewhere(kind, reason, group, whole.nbytes if whole.layout == torch.strided else 0)
    return None


def _codec(operation: Operation, ranks: Communicator) -> tuple[capi.Codec | None, collections.Counter[str]]:
    """Returns the operation's codec (None: plain), and {reason: number of tensors not quantized for it}."""
    everything, reasons = operation.shape.n_pieces, operation.shape.reasons
    if operation.codec is None:
        by_name = reasons[names.BY_NAME]
        return None, collections.Counter({names.BY_NAME: by_name} if by_name else {})
    if operation.unquantized:
        return None, collections.Counter({"unquantized()": everything})
    if ranks.n_nodes == 1:
        return None, collections.Counter({"ranks of one node": everything})
    if ranks.cuda and operation.codec.says_length:  # staging.carrier() found that this codec gains nothing
        return None, collections.Counter({DECLINED: everything})
    if not operation.dtype.is_floating_point:
        return None, reasons + collections.Counter({str(operation.dtype): everything - reasons.total()})
    return operation.codec if reasons.total() < everything else None, reasons


def _planned(operation: Operation, ranks: Communicator, args: capi.Args, codec: capi.Codec | None) -> int:
    """Returns the bytes that this rank sends to other nodes for the operation with `codec`."""
    known, key = operation.shape.bytes, (ranks.cuda, str(codec))
    if key not in known:
        args.codec = C.pointer(codec) if codec is not None else None
        known[key] = ranks.planned_bytes(args)
    return known[key]


def _sample(operation: Operation, args: capi.Args, ranks: Communicator) -> None:
    """Now and then, measure what the codec loses and how long lossless messages would be."""
    if not args.codec or args.codec.contents.lossless or ranks.cuda:
        return
    losses.sampler.look(operation, TYPES[operation.dtype], ranks.rank)
    if operation.op != capi.ALLGATHER:
        estimate.sampler.look(operation, TYPES[operation.dtype])


def _begin(operation: Operation, args: capi.Args, ranks: Communicator) -> Waitable:
    """Divide columns, set the table's pointers and post. The caller holds the shape's lock."""
    scaling = operation.shape.scaling if args.codec and not args.codec.contents.lossless else None
    is_divided = scaling is not None and operation.source is not None and scaling.divide(operation.source)
    if scaling is not None and not is_divided:
        args.codec = C.pointer(capi.lossless()) if not ranks.cuda else None
    operation.place(operation.shape.table)
    _sample(operation, args, ranks)
    request: Waitable = ranks.post(args, operation.keep, operation.kind)
    if scaling is None:
        return request
    if is_divided and operation.result is not None:
        request = scaling.undone(request, operation.result)
        if ranks.cuda:
            request.wait()  # only enqueues the multiplication: the stream orders it after the operation
    scaling.post(ranks)
    return request


class _Posted(typing.NamedTuple):
    """A posted operation, and the bytes that this rank sends to other nodes for it."""

    request: Waitable
    plain: int  # bytes without a codec
    sent: int  # bytes with its codec
    bound: int  # the part of `sent` that is only an upper bound, because messages vary in length
    reasons: collections.Counter[str]  # {reason: number of tensors that are not quantized for it}


def _post(operation: Operation, ranks: Communicator) -> _Posted:
    codec, reasons = _codec(operation, ranks)
    shape, (kind, factor) = operation.shape, operation.reduction
    args = shape.table.args(
        op=operation.op, type=TYPES[operation.dtype], reduction=kind, factor=factor,
        step=operation.step & 0xFFFFFFFF, seed=zlib.crc32(operation.of.encode()), root=operation.root)
    if codec is not None:
        args.codec = C.pointer(codec)
    if ranks.cuda:
        args.stream = torch.cuda.current_stream().cuda_stream
    with shape.lock:
        request = _begin(operation, args, ranks)
        codec = args.codec.contents if args.codec else None
        sent, plain = (_planned(operation, ranks, args, one) for one in (codec, None))
    if codec is not None and request.declined:
        reasons = reasons + collections.Counter({DECLINED: shape.n_pieces - reasons.total()})
    is_bound = codec is not None and codec.says_length and not request.declined
    return _Posted(request, plain, sent, sent if is_bound else 0, reasons)


class Requests(Waitable):
    """Several operations that a caller waits for together."""

    def __init__(self, together: Sequence[Waitable]):
        self._together = together
        self.coded = any(one.coded for one in together)

    def test(self) -> bool:
        return all([one.test() for one in self._together])

    def wait(self) -> None:
        for one in self._together:
            one.wait()

    def exception(self) -> BaseException | None:
        return next((one.exception() for one in self._together if one.exception() is not None), None)

    def take_elapsed(self) -> float:
        return max(one.take_elapsed() for one in self._together)


def post(together: Sequence[Operation], ranks: Communicator) -> Waitable:
    """Post operations, which the report counts as one call. Returns a handle on all of them."""
    span = spans.begun(spans.name_of(together[0].kind, together[0].of))
    with spans.shown(span.name):
        posted = [_post(one, ranks) for one in together]
    for one in posted:
        book.add(together[0].kind, calls=int(one is posted[0]), plain_bytes=one.plain, sent_bytes=one.sent,
                 bound_bytes=one.bound, unquantized=one.reasons)
    request = posted[0].request if len(posted) == 1 else Requests([one.request for one in posted])
    request.span = span
    return request


def _took(request: Waitable, kind: str, waited_sec: float = 0.0) -> None:
    elapsed_sec = request.take_elapsed()
    book.add(kind, took_sec=elapsed_sec, wait_sec=waited_sec)
    spans.ended(request.span, elapsed_sec)


def wait(request: Waitable, kind: str) -> None:
    begin = time.perf_counter()
    with spans.shown("wait for " + request.span.name):
        request.wait()
    _took(request, kind, time.perf_counter() - begin)
    spans.waited(request.span, begin)


class _Completer:
    """A thread that waits for operations and completes torch's futures, in the order of posting."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Waitable, str, torch.futures.Future, object]] = (
            queue.SimpleQueue())
        threading.Thread(target=self._run, name="thinwire-futures", daemon=True).start()

    def _run(self) -> None:
        while True:
            request, kind, future, value = self._queue.get()
            try:
                request.wait()  # does not count as waiting: this thread cannot know if the job waits as well
                _took(request, kind)
                future.set_result(value)
            except Exception as error:
                future.set_exception(error)

    def complete(self, request: Waitable, kind: str, value: object) -> torch.futures.Future:
        future = inside.future(value)
        self._queue.put((request, kind, future, value))
        return future


_completer: _Completer | None = None
_completer_lock = threading.Lock()


def future_of(request: Waitable, kind: str, value: object) -> torch.futures.Future:
    """Returns a future that gets `value` when the operation has ended. kind: the report's name for it."""
    global _completer
    with _completer_lock:
        _completer = _completer or _Completer()
    return _completer.complete(request, kind, value)


class Work(dist.Work):
    """torch's handle on an operation on host memory."""

    def __init__(self, request: Waitable, kind: str, result: list[torch.Tensor] | None = None):
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

    # The names under which C++ calls these methods.
    isCompleted, isSuccess = is_completed, is_success

    def get_future(self) -> torch.futures.Future:
        return future_of(self._request, self._kind, self._result)


class StreamWork(dist.Work):
    """torch's handle on an operation that has just been enqueued on the current CUDA stream."""

    def __init__(self) -> None:
        super().__init__()
        self._event = torch.cuda.current_stream().record_event()

    def wait(self, timeout: object = None) -> bool:
        torch.cuda.current_stream().wait_event(self._event)
        return True

    def is_completed(self) -> bool:
        return self._event.query()
