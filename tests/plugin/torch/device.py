"""A GPU for staging.py that is none: its memory is the host's, its streams are threads that take their
time."""

import queue
import random
import threading
import time

import torch


class Event(threading.Event):
    def synchronize(self):
        assert self.wait(60)


class Stream:
    """What is enqueued runs in order, some time later."""

    def __init__(self):
        self._queue, self._random = queue.SimpleQueue(), random.Random(1)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            what = self._queue.get()
            time.sleep(self._random.choice((0, 0, 0.002)))
            what()

    def enqueue(self, what):
        self._queue.put(what)

    def record_event(self):
        event = Event()
        self.enqueue(event.set)
        return event

    def wait_event(self, event):
        self.enqueue(event.synchronize)


class Program:
    """The stream that is current: what is enqueued there has happened when the call returns."""

    def record_event(self):
        event = Event()
        event.set()
        return event

    def wait_event(self, event):
        event.synchronize()


class Simulated:
    def holds(self, _tensor):
        return True

    def current(self, _tensor):
        return Program()

    def stream(self, _tensor):
        return Stream()

    def pinned(self, n_elems, dtype):
        return torch.full((n_elems * dtype.itemsize,), 0xEE, dtype=torch.uint8).view(dtype)

    def check(self, _stream):
        pass

    def write(self, count, value, stream):
        stream.enqueue(lambda: count.fill_(value))
        return True

    def wait_for(self, count, value, stream):
        def wait():
            while count.item() < value:
                time.sleep(1e-4)

        stream.enqueue(wait)
        return True

    def copy(self, target, source, stream):
        stream.enqueue(lambda: target.copy_(source))
