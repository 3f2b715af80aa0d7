"""Gathers of weights in GPU memory through replicas in host memory.

A rank's shard is copied to pinned host memory, the library's keeper gathers there, and the whole is copied
back. The copies are on two streams of their own, beside what computes; the host waits for the first copy in a
thread, as the keeper compares what has come. Streams and copies are torch's; tests put others in the place of
`device`."""

from __future__ import annotations

import contextlib
import queue
import threading

import torch

from .. import policy
from ..engine.communicators import Waitable
from ..telemetry import spans
from . import replicas


class Cuda:
    """What is asked of a GPU; tests put another one in its place."""

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def current(self, tensor: torch.Tensor) -> torch.cuda.Stream:
        return torch.cuda.current_stream(tensor.device)

    def stream(self, tensor: torch.Tensor) -> torch.cuda.Stream:
        """Make a stream."""
        return torch.cuda.Stream(tensor.device)

    def pinned(self, n_bytes: int) -> torch.Tensor:
        """Host memory of torch's cache, which reuses it when the copies that use it have ended."""
        return torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Enqueue a copy. The tensor on the GPU may be dropped at once."""
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        (target if target.is_cuda else source).record_stream(stream)


device = Cuda()


def holds(tensor: torch.Tensor) -> bool:
    """Whether a tensor's gathers are staged."""
    return device.holds(tensor)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


class Staged(Waitable):
    """A staged gather. wait() ends when the copy to the GPU is enqueued; the stream that is current then
    waits for it."""

    def __init__(self, unit: replicas.Unit, whole: torch.Tensor, own: torch.Tensor, copier: _Copier):
        self._unit, self._whole, self._copier = unit, _bytes(whole), copier
        self.span = spans.begun(spans.name_of(replicas.KIND, unit.name))
        self._unquantized = policy.is_unquantized()
        self._request: replicas.Gather | None = None
        self._error: BaseException | None = None
        self._ready = threading.Event()
        own, self._stage = _bytes(own), device.pinned(self._whole.numel())
        first = unit.communicator.rank * own.numel()
        written = device.current(whole).record_event()
        copier.out.wait_event(written)
        copier.into.wait_event(written)  # for what used the whole's memory before
        device.copy(self._stage[first : first + own.numel()], own, copier.out)
        self._out = copier.out.record_event()
        copier.posting.put(self)

    def post(self) -> None:
        """Post the gather, when the shard is on the host."""
        with self._failing():
            self._out.synchronize()
            self._request = self._unit.post(self._stage, self._unquantized)

    def finish(self) -> None:
        """Copy the whole to the GPU, when it has been gathered."""
        with self._failing():
            if self._request is not None:
                self._request.wait()
                device.copy(self._whole, self._stage, self._copier.into)
                self._in = self._copier.into.record_event()
        self._whole = self._stage = None
        self._ready.set()

    @contextlib.contextmanager
    def _failing(self):
        try:
            yield
        except BaseException as error:  # wait() raises it
            self._error = self._error or error

    def test(self) -> bool:
        return self._ready.is_set()

    def wait(self) -> None:
        self._ready.wait()
        if self._error is not None:
            raise self._error
        self._copier.current().wait_event(self._in)

    def exception(self) -> BaseException | None:
        return self._error

    def take_elapsed(self) -> float:
        return self._request.take_elapsed() if self._request is not None else 0.0


class _Copier:
    """Streams of one GPU, and threads that post and finish its gathers in the order of the calls, which is
    the same on all ranks."""

    def __init__(self, like: torch.Tensor):
        self._like = like.new_empty(0)
        self.out, self.into = device.stream(like), device.stream(like)
        self.posting: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        self._finishing: queue.SimpleQueue[Staged] = queue.SimpleQueue()
        for name, run in (("post", self._post), ("finish", self._finish)):
            threading.Thread(target=run, name="thinwire-" + name, daemon=True).start()

    def current(self) -> torch.cuda.Stream:
        return device.current(self._like)

    def _post(self) -> None:
        while True:
            one = self.posting.get()
            one.post()
            self._finishing.put(one)

    def _finish(self) -> None:
        while True:
            self._finishing.get().finish()


_copiers: dict[torch.device, _Copier] = {}
_lock = threading.Lock()


def gather(unit: replicas.Unit, whole: torch.Tensor, own: torch.Tensor) -> Staged:
    """Post a gather of what all ranks give, in the current stream's order. own: what this rank gives."""
    with _lock:
        if whole.device not in _copiers:
            _copiers[whole.device] = _Copier(whole)
    return Staged(unit, whole, own, _copiers[whole.device])
