"""Operations on GPU memory that run in host memory: gathers through replicas, and what is encoded in messages
whose length NCCL would have to know beforehand.

What a rank gives is copied to pinned host memory, the library works there, and the result is copied back. The
copies run on two streams of their own; a thread posts an operation when the first copy has ended. Streams and
copies are torch's; tests put others in the place of `device`."""

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
    """What staging asks of a GPU; tests put another class in its place."""

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def current(self, tensor: torch.Tensor) -> torch.cuda.Stream:
        return torch.cuda.current_stream(tensor.device)

    def stream(self, tensor: torch.Tensor) -> torch.cuda.Stream:
        """Make a stream."""
        return torch.cuda.Stream(tensor.device)

    def pinned(self, n_elems: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory of torch's cache, which reuses it when the copies that use it have ended."""
        return torch.empty(n_elems, dtype=dtype, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Enqueue a copy. The tensor on the GPU may be dropped at once."""
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        (target if target.is_cuda else source).record_stream(stream)

    def check(self, stream: torch.cuda.Stream) -> None:
        """Raise torch's exception if the GPU has failed."""
        stream.query()

    def write(self, count: torch.Tensor, value: int, stream: torch.cuda.Stream) -> bool:
        """Let a stream write a count in pinned memory. Returns False if the driver cannot."""
        return _operate("cuStreamWriteValue32_v2", count, value, stream)

    def wait_for(self, count: torch.Tensor, value: int, stream: torch.cuda.Stream) -> bool:
        """Let a stream wait until a count in pinned memory is at least `value`. Returns False if the driver
        cannot."""
        return _operate("cuStreamWaitValue32_v2", count, value, stream)


@functools.cache
def _operation(name: str) -> Callable[..., int]:
    """Returns a function of the driver; one that the driver lacks always fails."""
    return getattr(C.CDLL("libcuda.so.1"), name, lambda *_args: -1)


def _operate(name: str, count: torch.Tensor, value: int, stream: torch.cuda.Stream) -> bool:
    """Call a memory operation of streams, which drivers have since CUDA 11.7. Its flags are 0: what the
    stream has done before is seen before a write; a wait ends when the count is `value` or more."""
    operation = _operation(name)
    with torch.cuda.device(stream.device):
        return operation(C.c_void_p(stream.cuda_stream), C.c_uint64(count.data_ptr()), C.c_uint32(value),
                         C.c_uint(0)) == 0


device = Cuda()

# Pinned memory of operations under way, beside that of the newest two. DDP posts all buckets before it waits.
_MOST_BYTES = 256 << 20
_LOOK_SEC = 1e-4  # pause between two reads of a count
_CHECK_SEC = 1.0  # pause between two checks whether the GPU has failed

# (from, to): a copy between the GPU and the host
Copy = tuple[torch.Tensor, torch.Tensor]


class Staged(Waitable):
    """A staged operation. wait() ends when the copy to the GPU is enqueued; the stream that is current then
    waits for it."""

    def __init__(self, begin: Callable[[], Waitable], give: Copy, take: Copy, lane: Lane):
        """begin: posts the operation, in a thread. give, take: copies before and after it."""
        self._begin, self._take, self._lane = begin, take, lane
        self._request: Waitable | None = None
        self._error: BaseException | None = None
        self._posted, self._ready = threading.Event(), threading.Event()
        source, room = give
        # The copy back comes after this one, and so after whatever used the result's memory before, too.
        lane.out.wait_event(device.current(source).record_event())
        device.copy(room, source, lane.out)
        self.number = lane.next()  # 0: the host enqueues the copy back
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
        """Post the operation, when what it reads is on the host."""
        with self._failing():
            self._lane.wait_copied(self.number) if self.number else self._out.synchronize()
            self._request = self._begin()
        self._posted.set()

    def finish(self) -> None:
        """Let the result be copied to the GPU when it is there; after a failure, too, as the GPU may be
        waiting."""
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
        return self._request is None or self._request.coded  # if there is no request, wait() says why

    def follow(self) -> None:
        """Let the current stream wait for the result; the host waits, too, if the GPU cannot do so alone."""
        if self.number:
            self._lane.current().wait_event(self._in)
        else:
            self.wait()

    def test(self) -> bool:
        return self._ready.is_set()

    def end(self) -> None:
        """Wait until the copy to the GPU is enqueued, or it has failed."""
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
    """Streams of one GPU, and threads that post and finish operations in the order of the calls, which is the
    same on all ranks.

    While the GPU waits for the host, the threads make no calls of CUDA: the program may be in a call that
    waits for the GPU, and CUDA then makes others wait for that call. They read and write counts."""

    def __init__(self, like: torch.Tensor):
        self._like = like.new_empty(0)
        self.out, self.into = device.stream(like), device.stream(like)
        self._copied, self._ended = (device.pinned(1, torch.int32).zero_() for _ in range(2))
        self._last = 0  # the last operation that has a number
        self._held: collections.deque[tuple[Staged, int]] = collections.deque()  # with bytes of pinned memory
        self.posting: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        self._finishing: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        for name, run in (("post", self._post), ("finish", self._finish)):
            threading.Thread(target=run, name="thinwire-" + name, daemon=True).start()

    def current(self) -> torch.cuda.Stream:
        return device.current(self._like)

    def make_room(self, n_bytes: int) -> None:
        """Wait until operations have ended that hold too much pinned memory to take so much more."""
        while (oldest := self._in_the_way(n_bytes)) is not None:
            oldest.end()

    def _in_the_way(self, n_bytes: int) -> Staged | None:
        """Returns the oldest operation under way if what all hold leaves no room; other threads post, too."""
        with _lock:
            while self._held and self._held[0][0].test():
                self._held.popleft()
            is_full = n_bytes + sum(held for _, held in self._held) > _MOST_BYTES
            return self._held.popleft()[0] if is_full and len(self._held) >= 2 else None

    def hold(self, staged: Staged, n_bytes: int) -> None:
        with _lock:
            self._held.append((staged, n_bytes))

    def next(self) -> int:
        """Let the first stream say when it has copied the next operation's input, and the second one wait
        until that operation has ended. Returns its number; 0 if streams cannot."""
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
        """Tell the stream that the operation with that number has ended; 0: it has none."""
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
    """Post an operation in the current stream's order. lane: operations of one lane begin one after the
    other; those of one communicator have to. name: for the timeline. The rest: see Staged."""
    with _lock:
        made = Staged(begin, give, take, _lane(lane, give[0]))
    made.span = spans.begun(name)
    return made


def carrier(find: Callable[[bool], Communicator | None], whole: torch.Tensor, says_length: bool,
            shaped_of: Callable[[Communicator], Sequence[shapes.Shaped]]) -> tuple[Communicator | None, bool]:
    """Returns the communicator for an operation on such a tensor, and whether it is to be staged. find: as
    operations.carrier(), given whether it is. says_length: whether a codec's messages have no fixed length.
    shaped_of: the operation's parts. What turned out to go plain is not staged again."""
    if says_length and device.holds(whole) and not policy.is_unquantized():
        ranks = find(True)
        if ranks is None or (ranks.n_nodes > 1 and shaped_of(ranks)[0].shape.staged is not False):
            return ranks, ranks is not None
    return find(False), False


def operate(make: Callable[[torch.Tensor, torch.Tensor], Sequence[shapes.Operation]], source: torch.Tensor,
            result: torch.Tensor, ranks: Communicator, place: int | None = None) -> Staged:
    """Post the operations of one call in host memory. make: makes them, given host memory for source and
    result. place: where in the result the source is, in elements; None: elsewhere."""
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
    if shape.staged is None:  # all ranks know it before the next call, which may go another way
        shape.staged = request.is_coded()
    return request
