"""When a rank has failed: ends collectives of NCCL and gloo that wait for it. By themselves they would wait
much longer, for half an hour by default.

NCCL's groups can be aborted. gloo's collectives cannot, but they fail when their connections end. So gloo's
connections are shut down when the main thread hangs in a collective. gloo has no function that returns them,
but Linux shows them in /proc: gloo's threads sleep in epoll_wait with arguments that no other library uses,
and /proc lists the sockets of that epoll set."""

from __future__ import annotations

import contextlib
import ctypes as C
import logging
import os
import pathlib
import platform
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
CALLING_FILES = ("torch/_ops.py", "torch/_library/autograd.py")  # frames between WAITING_FILES and C++
# In this file torch catches a collective's exception, logs it and raises it again.
PASSING_ON = "torch/distributed/c10d_logger.py"
# /proc/self/task/ID/syscall of a gloo thread: epoll_wait's number, set, address, 64 events, 10 ms.
GLOOS_EVENTS, GLOOS_MSEC = 64, 10
# The numbers of epoll_wait and epoll_pwait. aarch64 has only the second, so libc waits by that.
EPOLL_WAITS = {"x86_64": (232, 281), "aarch64": (22,)}
LOOKS = 30


def _epoll_sets() -> set[int]:
    """Returns the epoll descriptors on which gloo's threads sleep at this moment."""
    found, waits = set(), EPOLL_WAITS.get(platform.machine(), ())
    for thread in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError, ValueError):
            number, *arguments = (thread / "syscall").read_text().split()
            values = [int(one, 16) for one in arguments[:4]]
            if int(number) in waits and values[2:] == [GLOOS_EVENTS, GLOOS_MSEC]:
                found.add(values[0])
    return found


def _sockets(epoll: int) -> list[int]:
    """Returns the descriptors in an epoll set; [] if it is gone."""
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/self/fdinfo", str(epoll)).read_text().splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
    return []


def end_gloo() -> None:
    """Shut down gloo's connections, so that its collectives raise an exception."""
    found: set[int] = set()
    for _ in range(LOOKS):
        found |= _epoll_sets()
        time.sleep(GLOOS_MSEC / 2000)
    for descriptor in {one for epoll in found for one in _sockets(epoll)}:
        # getpeername() raises, and so skips, sockets that are not connected.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.getpeername()
            connection.shutdown(socket.SHUT_RDWR)


def abort_groups() -> None:
    """Abort all process groups that have abort(): those of NCCL."""
    for group in inside.all_groups():
        with contextlib.suppress(Exception):
            group.abort()


def _waits_in() -> types.FrameType | None:
    """Returns the Python frame of torch.distributed or autograd that the main thread is in, or None."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_filename.endswith(CALLING_FILES):
        frame = frame.f_back
    return frame if frame is not None and frame.f_code.co_filename.endswith(WAITING_FILES) else None


def _raise_there(frame: types.FrameType, failure: capi.ThinwireError) -> None:
    """Make the main thread raise `failure` instead of gloo's own error. That works only if the main thread's
    collective was called through PASSING_ON; elsewhere the exception would come too late."""
    if frame.f_back is None or not frame.f_back.f_code.co_filename.endswith(PASSING_ON):
        return

    class ThinwireError(capi.ThinwireError):
        def __init__(self) -> None:
            RuntimeError.__init__(self, str(failure))
            self.status, self.failed_rank = failure.status, failure.failed_rank

    thread = C.c_ulong(threading.main_thread().ident or 0)
    C.pythonapi.PyThreadState_SetAsyncExc(thread, C.py_object(ThinwireError))


_freed: types.FrameType | None = None  # the last frame that _free() freed; several engines may call _free()
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
    """After a rank has failed: whenever the main thread hangs in torch for STUCK_SEC, end its collective. If
    it hangs for twice that time, end the process, as NCCL's watchdog does. Returns when `stop` is set."""
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
