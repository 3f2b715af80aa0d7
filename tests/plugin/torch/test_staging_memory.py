"""What torch's caches of memory ask of staged operations, in the order of FSDP2's calls, on streams that run
as late as CUDA allows. A tensor's memory goes to the next one of its stream as soon as it is dropped; of
other streams only those are waited for that were recorded."""

import contextlib
import gc
import random
import threading
import time
import types

import pytest
import torch
from thinwire.collectives import staging
from thinwire.fsdp import replicas

WORLD, RANK, RUN = 4, 1, 8
_lock = threading.RLock()  # of all streams
_thread = threading.local()


class Event:
    def __init__(self, stream):
        self.stream, self.done = stream, False

    def synchronize(self):
        while not self.done:
            self.stream.advance(lambda: self.done)


class Stream:
    """What is enqueued runs when somebody waits for it."""

    def __init__(self):
        self.work = []

    def enqueue(self, what):
        self.work.append(what)

    def advance(self, has_come=lambda: False):
        with _lock:
            if self.work and not has_come():
                self.work.pop(0)()

    def drain(self):
        while self.work:
            self.advance()

    def record_event(self):
        event = Event(self)
        self.enqueue(lambda: setattr(event, "done", True))
        return event

    def wait_event(self, event):
        self.enqueue(event.synchronize)


class Block:
    def __init__(self, owner, n, dtype):
        self.owner, self.data, self.streams, self.events = owner, torch.zeros(n, dtype=dtype), set(), []


class Cache:
    """Of tensors on the GPU, and of pinned ones, which belong to no stream."""

    def __init__(self):
        self.free, self.n_reused, self.lock = [], 0, threading.RLock()

    def take(self, n, owner=None, dtype=torch.uint8):
        with self.lock:
            for block in self.free:
                if (block.owner is owner and len(block.data) == n and block.data.dtype == dtype
                        and all(event.done for event in block.events)):
                    self.free.remove(block)
                    self.n_reused += 1
                    return block
        return Block(owner, n, dtype)

    def give(self, block):
        with self.lock:
            block.events = [stream.record_event() for stream in block.streams]
            block.streams = set()
            self.free.append(block)


class Owned:
    """Gives a block back when the last tensor goes."""

    def __init__(self, cache, block):
        self.cache, self.block = cache, block

    def __del__(self):
        self.cache.give(self.block)


class Tensor:
    def __init__(self, owned, data, is_cuda):
        self.owned, self.data, self.is_cuda, self.device = owned, data, is_cuda, "gpu"

    def _part(self, data):
        return Tensor(self.owned, data, self.is_cuda)

    def __getitem__(self, at):
        return self._part(self.data[at])

    def view(self, _of):
        return self._part(self.data.view(-1))

    def numel(self):
        return len(self.data)

    def new_empty(self, n):
        assert n == 0
        return Tensor(None, self.data[:n], self.is_cuda)

    def record_stream(self, stream):
        self.owned.block.streams.add(stream)

    def zero_(self):
        self.data.zero_()
        return self

    def fill_(self, value):
        self.data.fill_(value)

    def item(self):
        return Seen(self)

    def copy_(self, source, non_blocking):
        """torch notes of pinned memory itself that the stream uses it."""
        assert non_blocking
        to, what = self.data, source.data
        _thread.current.enqueue(lambda: to.copy_(what))
        for one in (self, source):
            if not one.is_cuda:
                one.record_stream(_thread.current)


class Seen:
    """Who waits for a count lets the stream that writes it go on."""

    def __init__(self, count):
        self.count = count

    def __lt__(self, number):
        while self.count.data.item() < number:
            if _lock.acquire(timeout=0.001):  # or another thread lets it go on
                try:
                    self.count.writer.advance(lambda: self.count.data.item() >= number)
                finally:
                    _lock.release()
        return False


@contextlib.contextmanager
def current(stream):
    before, _thread.current = getattr(_thread, "current", None), stream
    try:
        yield
    finally:
        _thread.current = before


class Gpu(staging.Cuda):
    """As it is, with these streams and this memory. has_counts: streams write and wait for counts."""

    def __init__(self, has_counts=True):
        self.gpu, self.host, self.streams, self.has_counts = Cache(), Cache(), [], has_counts

    def check(self, _stream):
        pass

    def write(self, count, value, stream):
        if self.has_counts:
            self.written = count
            count.writer = stream
            stream.enqueue(lambda: count.fill_(value))
        return self.has_counts

    def wait_for(self, count, value, stream):
        def wait():
            while count.data.item() < value:
                if self.written.data.item() < value:  # what the host waits for meanwhile
                    self.written.writer.advance()
                time.sleep(1e-5)

        stream.enqueue(wait)
        return True

    def current(self, _tensor):
        return _thread.current

    def stream(self, _tensor):
        self.streams.append(Stream())
        return self.streams[-1]

    def new(self, n, stream):
        block = self.gpu.take(n, stream)
        return Tensor(Owned(self.gpu, block), block.data, True)

    def pinned(self, n_elems, dtype):
        block = self.host.take(n_elems, None, dtype)
        return Tensor(Owned(self.host, block), block.data, False)


class Unrecorded(Gpu):
    def copy(self, target, source, stream):
        with current(stream):
            target.copy_(source, non_blocking=True)


class Job:
    """FSDP2's streams, and gathers in its order: copied in on one, gathered on the next, copied out where it
    is computed."""

    def __init__(self, monkeypatch, gpu):
        monkeypatch.setattr(torch.cuda, "stream", current)
        monkeypatch.setattr(staging, "device", gpu)
        monkeypatch.setattr(staging, "_lanes", {})
        monkeypatch.setattr(staging.spans, "begun", lambda name: None)
        self.gpu, self.found = gpu, []
        self.copy_in, self.gathering, self.computing = (gpu.stream(None) for _ in range(3))

    def unit(self):
        """Its replicas give every rank's run as what ours holds and the rank."""

        def post(stage, _unquantized):
            mine = stage.data.view(WORLD, RUN)[RANK].clone()
            for rank in range(WORLD):
                stage.data.view(WORLD, RUN)[rank] = mine + (rank - RANK)
            return types.SimpleNamespace(wait=lambda: None, coded=True)

        return types.SimpleNamespace(communicator=types.SimpleNamespace(rank=RANK), post=post, name="unit")

    def write(self, tensor, value, stream):
        data = tensor.data
        stream.enqueue(lambda: data.fill_(value))

    def gather(self, value, apart=False):
        """The work, the event that FSDP2 records, and the whole."""
        whole = self.gpu.new(WORLD * RUN, self.copy_in)
        own = self.gpu.new(RUN, self.copy_in) if apart else whole[RANK * RUN : (RANK + 1) * RUN]
        self.write(own, value, self.copy_in)
        self.gathering.wait_event(self.copy_in.record_event())
        with current(self.gathering):
            return replicas.gather_staged(self.unit(), whole, own), self.gathering.record_event(), whole

    def copy_out(self, work, event, whole):
        self.computing.wait_event(event)
        with current(self.computing):
            work.wait()
        data = whole.data
        self.computing.enqueue(lambda: self.found.append(data.view(WORLD, RUN).clone()))
        copied = self.computing.record_event()
        self.copy_in.wait_event(copied)
        self.gathering.wait_event(copied)

    def finish(self, values):
        gc.collect()
        for stream in self.gpu.streams:
            stream.drain()
        for value, found in zip(values, self.found, strict=True):
            assert found.tolist() == [[value + rank - RANK] * RUN for rank in range(WORLD)]


@pytest.fixture(params=[True, False], ids=["counts", "old driver"])
def has_counts(request):
    return request.param


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_steps(monkeypatch, seed, apart, has_counts):
    """Many gathers, each posted before the one before it is copied out; memory is used again."""
    job, chance, before = Job(monkeypatch, Gpu(has_counts)), random.Random(seed), None
    values = range(10, 60)
    for value in values:
        gathered = job.gather(value, apart)
        if before is not None:
            job.copy_out(*before)
        before = gathered
        del gathered
        if chance.random() < 0.3:
            chance.choice(job.gpu.streams).drain()
    job.copy_out(*before)
    del before
    job.finish(values)
    assert job.gpu.gpu.n_reused > 10 and job.gpu.host.n_reused > 10


def overwritten(job):
    """What a tensor holds that gets the memory of a gather that nobody waited for."""
    work, _, whole = job.gather(10)
    with current(job.computing):
        work.wait()  # the copy to the GPU is enqueued, and has not run
    del work, whole
    gc.collect()
    after = job.gpu.new(WORLD * RUN, job.copy_in)
    job.write(after, 99, job.copy_in)
    job.copy_in.drain()
    job.finish([])
    return after.data.tolist() != [99] * WORLD * RUN


def torn(job):
    """Whether a gather gives what came into its shard's memory when that had been dropped."""
    job.gather(5)  # the lane is there
    with _lock:  # the thread that posts waits for the copy to the host
        gathered = job.gather(10, apart=True)
        gc.collect()
        job.write(job.gpu.new(RUN, job.copy_in), 99, job.copy_in)
        job.copy_in.drain()
    job.copy_out(*gathered)
    for stream in job.gpu.streams:
        stream.drain()
    return job.found[0][RANK].tolist() != [10] * RUN


def test_a_whole_that_is_dropped_in_flight(monkeypatch, has_counts):
    assert not overwritten(Job(monkeypatch, Gpu(has_counts)))


def test_a_shard_that_is_dropped_in_flight(monkeypatch, has_counts):
    assert not torn(Job(monkeypatch, Gpu(has_counts)))


def test_the_recording_is_needed(monkeypatch, has_counts):
    """Without it these tests fail."""
    assert overwritten(Job(monkeypatch, Unrecorded(has_counts)))
    assert torn(Job(monkeypatch, Unrecorded(has_counts)))
