"""Staging: operations on GPU memory that run on copies in host memory. Two kinds need that: gathers through
replicas (hpZ), and codecs whose messages vary in length, because NCCL has to know a length beforehand.

The input is copied to pinned host memory, the library works there, and the result is copied back. Each of the
two copies has a stream. A thread posts the operation when the first copy has ended. All use of the GPU goes
through `device`, which tests replace."""

from __future__ import annotations

import collections
import contextlib
import ctypes as C
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from .. import policy
from ..engine.communicators import Communicator, Waitable
from ..telemetry import spans
from . import operations, shapes


class Cuda:
    """All that staging does with a GPU, through torch. Tests replace it by another class."""

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def current(self, tensor: torch.Tensor) -> torch.cuda.Stream:
        return torch.cuda.current_stream(tensor.device)

    def stream(self, tensor: torch.Tensor) -> torch.cuda.Stream:
        """Make a new stream on the tensor's GPU."""
        return torch.cuda.Stream(tensor.device)

    def pinned(self, n_elems: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns pinned memory from torch's cache. A dropped tensor's memory is used again only when
        enqueued copies that use it have ended."""
        return torch.empty(n_elems, dtype=dtype, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Enqueue a copy between host and GPU. The caller may drop the GPU's tensor at once."""
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        (target if target.is_cuda else source).record_stream(stream)

    def check(self, stream: torch.cuda.Stream) -> None:
        """Raise torch's exception if the GPU has failed."""
        stream.query()

    def write(self, count: torch.Tensor, value: int, stream: torch.cuda.Stream) -> bool:
        """Enqueue a write of `value` to a count in pinned memory. Returns False if the driver cannot."""
        return _operate("cuStreamWriteValue32_v2", count, value, stream)

    def wait_for(self, count: torch.Tensor, value: int, stream: torch.cuda.Stream) -> bool:
        """Let a stream wait until a count in pinned memory is `value` or more. False if it cannot."""
        return _operate("cuStreamWaitValue32_v2", count, value, stream)


@functools.cache
def _operation(name: str) -> Callable[..., int]:
    """Returns a function of the CUDA driver, or one that always fails if the driver lacks it."""
    return getattr(C.CDLL("libcuda.so.1"), name, lambda *_args: -1)


def _operate(name: str, count: torch.Tensor, value: int, stream: torch.cuda.Stream) -> bool:
    """Enqueue one of the driver's stream memory operations (since CUDA 11.7). Returns whether that worked.
    Its flags are 0: a write comes after the memory effects of all earlier work of the stream, and a wait ends
    when the count is `value` or more."""
    operation = _operation(name)
    with torch.cuda.device(stream.device):
        return operation(C.c_void_p(stream.cuda_stream), C.c_uint64(count.data_ptr()), C.c_uint32(value),
                         C.c_uint(0)) == 0


device = Cuda()

# Most bytes of pinned memory that operations under way may hold. Two operations may always be under way. A
# limit is needed because DDP posts all buckets before it waits for one.
_MOST_BYTES = 256 << 20
_LOOK_SEC = 1e-4  # pause between two reads of a count
_CHECK_SEC = 1.0  # pause between two checks whether the GPU has failed

# (from, to): a copy between the GPU and the host
Copy = tuple[torch.Tensor, torch.Tensor]


class Staged(Waitable):
    """A staged operation. wait() ends when the result's copy to the GPU is enqueued, and lets the current
    stream wait for that copy."""

    def __init__(self, begin: Callable[[], Waitable], give: Copy, take: Copy, lane: Lane):
        """begin: posts the operation; the lane's thread calls it. give: the copy of the input to the host.
        take: the copy of the result to the GPU."""
        self._begin, self._take, self._lane = begin, take, lane
        self._request: Waitable | None = None
        self._error: BaseException | None = None
        self._posted, self._ready = threading.Event(), threading.Event()
        source, room = give
        # This copy waits for the current stream, and the copy back for this copy. So the copy back also comes
        # after earlier work of the current stream that uses the result's memory.
        lane.out.wait_event(device.current(source).record_event())
        device.copy(room, source, lane.out)
        self.number = lane.next()  # 0: streams cannot wait for the host, so a thread enqueues the copy back
        if self.number:
            self._copy_back()
        else:
            self._out = lane.out.record_event()
        lane.posting.put(self)

    def _copy_back(self) -> None:
        room, result = self._take
        device.copy(result, room, self._lane.into)
        self._in = self._lane.into.record_event()

    def post(self) -> None:
        """Wait until the input is on the host, then post the operation. Runs in the lane's first thread."""
        with self._failing():
            self._lane.wait_copied(self.number) if self.number else self._out.synchronize()
            self._request = self._begin()
        self._posted.set()

    def finish(self) -> None:
        """Wait for the operation, then let the GPU copy the result, even after a failure: the stream already
        waits for ended(). Runs in the lane's second thread."""
        with self._failing():
            if self._request is not None:
                self._request.wait()
                if not self.number:
                    self._copy_back()
        self._lane.ended(self.number)
        del self._begin, self._take
        self._ready.set()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # wait() raises it
            self._error = self._error or error

    def is_coded(self) -> bool:
        """Wait until the operation is posted. Returns whether any part of it is encoded."""
        self._posted.wait()
        return self._request is None or self._request.coded  # if post() failed, wait() raises the error

    def follow(self) -> None:
        """Let the current stream wait for the result. Without stream memory operations the host waits,
        too."""
        if self.number:
            self._lane.current().wait_event(self._in)
        else:
            self.wait()

    def test(self) -> bool:
        return self._ready.is_set()

    def end(self) -> None:
        """Wait until the operation has ended and its copy to the GPU can run, or until it has failed."""
        while not self._ready.wait(_CHECK_SEC):
            device.check(self._lane.out)

    def wait(self) -> None:
        self.end()
        if self._error is not None:
            raise self._error
        self._lane.current().wait_event(self._in)

    def exception(self) -> BaseException | None:
        return self._error

    def take_elapsed(self) -> float:
        return self._request.take_elapsed() if self._request is not None else 0.0


class Lane:
    """Two streams of one GPU and two threads. The threads post and finish operations in the order of the
    calls, which is the same on all ranks.

    While a stream waits for the host, the threads must not call CUDA: the program may be in a CUDA call that
    waits for the GPU, CUDA would make the threads wait for that call, and nobody would go on. So threads and
    streams talk through two counts in pinned memory: the last operation copied, and the last one ended."""

    def __init__(self, like: torch.Tensor):
        self._like = like.new_empty(0)
        self.out, self.into = device.stream(like), device.stream(like)
        self._copied, self._ended = (device.pinned(1, torch.int32).zero_() for _ in range(2))
        self._last = 0  # number of the newest operation
        self._held: collections.deque[tuple[Staged, int]] = collections.deque()  # (operation, pinned bytes)
        self.posting: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        self._finishing: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        for name, run in (("post", self._post), ("finish", self._finish)):
            threading.Thread(target=run, name="thinwire-" + name, daemon=True).start()

    def current(self) -> torch.cuda.Stream:
        return device.current(self._like)

    def make_room(self, n_bytes: int) -> None:
        """Wait for the oldest operations until n_bytes more pinned memory may be used (_MOST_BYTES)."""
        while (oldest := self._in_the_way(n_bytes)) is not None:
            oldest.end()

    def _in_the_way(self, n_bytes: int) -> Staged | None:
        """If n_bytes more would be too much, remove the oldest operation under way from the list and return
        it. Otherwise return None. Other threads may call this at the same time."""
        with _lock:
            while self._held and self._held[0][0].test():
                self._held.popleft()
            is_full = n_bytes + sum(held for _, held in self._held) > _MOST_BYTES
            return self._held.popleft()[0] if is_full and len(self._held) >= 2 else None

    def hold(self, staged: Staged, n_bytes: int) -> None:
        with _lock:
            self._held.append((staged, n_bytes))

    def next(self) -> int:
        """Number the next operation. The first stream will write the number when it has copied the input. The
        second stream will wait for ended() with that number. Returns 0 if the driver cannot do that."""
        number = self._last + 1
        if not (device.write(self._copied, number, self.out)
                and device.wait_for(self._ended, number, self.into)):
            return 0
        self._last = number
        return number

    def wait_copied(self, number: int) -> None:
        while self._copied.item() < number:
            time.sleep(_LOOK_SEC)

    def ended(self, number: int) -> None:
        """Tell the second stream that operation `number` has ended. Does nothing for 0."""
        if number:
            self._ended.fill_(number)

    def _post(self) -> None:
        while True:
            one = self.posting.get()
            one.post()
            self._finishing.put(one)

    def _finish(self) -> None:
        while True:
            self._finishing.get().finish()


_lanes: dict[object, Lane] = {}
_lock = threading.Lock()


def _lane(name: str, like: torch.Tensor) -> Lane:
    key = (name, like.device)
    if key not in _lanes:
        _lanes[key] = Lane(like)
    return _lanes[key]


def post(lane: str, begin: Callable[[], Waitable], give: Copy, take: Copy, name: str) -> Staged:
    """Post a staged operation, ordered after earlier work of the current stream. lane: name of a lane, which
    posts its operations one after the other; a communicator must always use the same lane. name: for the
    timeline. begin, give, take: see Staged."""
    with _lock:
        made = Staged(begin, give, take, _lane(lane, give[0]))
    made.span = spans.begun(name)
    return made


def carrier(find: Callable[[bool], Communicator | None], whole: torch.Tensor, says_length: bool,
            shaped_of: Callable[[Communicator], Sequence[shapes.Shaped]]) -> tuple[Communicator | None, bool]:
    """Returns (communicator, whether to stage) for an operation on a tensor like `whole`. find(staged): calls
    operations.carrier(). says_length: whether messages of a codec vary in length.
    shaped_of: returns the operation's parts. A shape is not staged again if it was sent plain when staged."""
    if says_length and device.holds(whole) and not policy.is_unquantized():
        ranks = find(True)
        if ranks is None or (ranks.n_nodes > 1 and shaped_of(ranks)[0].shape.staged is not False):
            return ranks, ranks is not None
    return find(False), False


def operate(make: Callable[[torch.Tensor, torch.Tensor], Sequence[shapes.Operation]], source: torch.Tensor,
            result: torch.Tensor, ranks: Communicator, place: int | None = None) -> Staged:
    """Post the staged operations of one call. make: makes them, given host memory for source and result.
    place: the offset of the source in the result, in elements; None if it is not part of the result."""
    with _lock:
        lane, n_bytes = _lane("operations", source), result.nbytes + (source.nbytes if place is None else 0)
    lane.make_room(n_bytes)
    back = device.pinned(result.numel(), result.dtype)
    room = (device.pinned(source.numel(), source.dtype) if place is None
            else back[place : place + source.numel()])
    together = make(room, back)
    request = post("operations", lambda: operations.post(together, ranks), (source.view(-1), room),
                   (back, result.view(-1)), spans.name_of(together[0].kind, together[0].of))
    lane.hold(request, n_bytes)
    shape = together[0].shape
    if shape.staged is None:  # wait for the answer: before the next call all ranks must know whether to stage
        shape.staged = request.is_coded()
    return request
