"""When a rank has failed: end what waits for it in other libraries. They would wait much longer, for half an
hour by default.

NCCL's groups are aborted. A collective of gloo's cannot be, but it ends when its connections do: so they are
shut down as soon as the main thread hangs. gloo keeps them to itself, and Linux says which they are: each of
gloo's threads sleeps in an epoll_wait of its own kind, on a set of sockets that is listed in /proc."""

from __future__ import annotations

import contextlib
import ctypes as C
import logging
import os
import pathlib
import socket
import sys
import threading
import time
import types

from .. import capi, inside
from ..switches import log

WATCH_SEC = 0.5
STUCK_SEC = 3.0
WAITING_FILES = ("torch/distributed/distributed_c10d.py", "torch/distributed/_functional_collectives.py",
                 "torch/autograd/graph.py")
CALLING_FILES = ("torch/_ops.py", "torch/_library/autograd.py")  # these pass from a Python function to C++
# In this file torch catches what a collective raises, and raises it again.
PASSING_ON = "torch/distributed/c10d_logger.py"
# /proc/self/task/ID/syscall of a thread of gloo: epoll_wait (on x86-64), set, memory, 64 events, 10 ms.
EPOLL_WAIT, GLOOS_EVENTS, GLOOS_MSEC = 232, 64, 10
LOOKS = 30


def _epoll_sets() -> set[int]:
    """Returns the epoll sets in which threads of gloo sleep just now."""
    found = set()
    for thread in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, ValueError):
            number, *arguments = (thread / "syscall").read_text().split()
            values = [int(one, 16) for one in arguments[:4]]
            if int(number) == EPOLL_WAIT and values[2:] == [GLOOS_EVENTS, GLOOS_MSEC]:
                found.add(values[0])
    return found


def _sockets(epoll: int) -> list[int]:
    """Returns the descriptors in an epoll set."""
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/self/fdinfo", str(epoll)).read_text().splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
    return []


def end_gloo() -> None:
    """Shut down gloo's connections, so that its collectives raise."""
    found: set[int] = set()
    for _ in range(LOOKS):
        found |= _epoll_sets()
        time.sleep(GLOOS_MSEC / 2000)
    for descriptor in {one for epoll in found for one in _sockets(epoll)}:
        # A socket without a peer is not a connection.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.getpeername()
            connection.shutdown(socket.SHUT_RDWR)


def abort_groups() -> None:
    """Abort all process groups that can be: NCCL's."""
    for group in inside.all_groups():
        with contextlib.suppress(Exception):
            group.abort()


def _waits_in() -> types.FrameType | None:
    """The frame of torch.distributed or autograd in which the main thread waits; None if it waits in
    neither."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_filename.endswith(CALLING_FILES):
        frame = frame.f_back
    return frame if frame is not None and frame.f_code.co_filename.endswith(WAITING_FILES) else None


def _raise_there(frame: types.FrameType, failure: capi.ThinwireError) -> None:
    """Raise the failure in the main thread in place of gloo's own error, if it is where torch passes
    exceptions on. Elsewhere it would come too late."""
    if frame.f_back is None or not frame.f_back.f_code.co_filename.endswith(PASSING_ON):
        return

    class ThinwireError(capi.ThinwireError):
        def __init__(self) -> None:
            RuntimeError.__init__(self, str(failure))
            self.status, self.failed_rank = failure.status, failure.failed_rank

    thread = C.c_ulong(threading.main_thread().ident or 0)
    C.pythonapi.PyThreadState_SetAsyncExc(thread, C.py_object(ThinwireError))


_freed: types.FrameType | None = None  # the frame in which the main thread was freed: several engines may try
_freeing = threading.Lock()


def _free(frame: types.FrameType, failure: capi.ThinwireError) -> None:
    global _freed
    with _freeing:
        if _freed is not frame and _waits_in() is frame:
            _freed = frame
            log.error("a collective of torch's does not end: shutting down gloo's connections")
            _raise_there(frame, failure)
            end_gloo()


def watch(failure: capi.ThinwireError, stop: threading.Event) -> None:
    """Free the main thread whenever it hangs in torch, after a rank has failed. If that does not help, end
    the process, as NCCL's watchdog does."""
    place, since = None, time.monotonic()
    while not stop.wait(WATCH_SEC):
        here, now = _waits_in(), time.monotonic()
        if here is None or here is not place:
            place, since = here, now
        elif now - since > 2 * STUCK_SEC:
            log.error("a collective of torch's does not end: leaving")
            logging.shutdown()
            os._exit(1)
        elif now - since > STUCK_SEC:
            _free(here, failure)
