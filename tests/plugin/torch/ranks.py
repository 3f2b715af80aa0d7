"""Ranks of a job as forked processes: torch is imported once, a rank more costs little.

The parent itself never joins a job nor loads the library."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator

import torch
import torch._dynamo  # fully_shard imports it, which takes most of a rank's time
import torch.distributed as dist

LIMIT_SEC = 100.0
# On a fast link what is so small goes plain where that loses nothing.
SLOW = {"TW_COLL_MODEL": "inter:beta=1mbit"}


def held() -> tuple[int, int]:
    """How many threads and open files this process has."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


class _Lines(logging.Handler):
    """What Thinwire logs in a rank."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())
        print("thinwire:", record.getMessage(), file=sys.stderr)


_lines = _Lines()


def logged(text: str) -> list[str]:
    """The lines with that text in them that this rank has logged."""
    return [line for line in _lines.found if text in line]


class Died(Exception):
    """A rank ended without an answer; args: the rank, its exit code."""


def _set_environment(rank: int, world: int, nodes: list[int] | None, extra: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("TW_")]:
        del os.environ[name]
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
        "TW_NODE_ID": "node%d" % (nodes[rank] if nodes else rank), "TW_NET_DEVICES": "lo",
    }
    os.environ |= extra


@contextlib.contextmanager
def job(store: str, rank: int, world: int, backend: str = "gloo", leave: bool = True) -> Iterator[None]:
    """torch.distributed's default group, and at the end Thinwire's leave, unless the job is to fail."""
    from thinwire import autoload
    from thinwire.engine import communicators

    autoload.run()  # the parent's torch was imported without TW_FSDP
    dist.init_process_group(backend, init_method="file://" + store, rank=rank, world_size=world)
    yield
    if leave:
        communicators.close()
        dist.destroy_process_group()


def _child(pipe, function, store, rank, world, nodes, environment, backend, leave) -> None:
    _set_environment(rank, world, nodes, environment)
    log = logging.getLogger("thinwire")
    log.addHandler(_lines)
    log.setLevel(logging.INFO)
    torch.set_num_threads(1)
    try:
        with job(store, rank, world, backend, leave) if backend else contextlib.nullcontext():
            result = function(rank)
        answer = (True, result)
    except BaseException:
        answer = (False, traceback.format_exc())
    pipe.send_bytes(pickle.dumps(answer))
    os._exit(0)


def _answer(rank: int, process, pipe, deadline: float) -> object:
    try:
        if not pipe.poll(max(0.0, deadline - time.monotonic())):
            raise AssertionError("rank %d has not answered in time" % rank)
        good, value = pickle.loads(pipe.recv_bytes())
    except EOFError:
        process.join()
        raise Died(rank, process.exitcode) from None
    if not good:
        raise AssertionError("rank %d:\n%s" % (rank, value))
    return value


def run(world: int, function: Callable[[int], object], nodes: list[int] | None = None,
        backend: str | None = "gloo", may_die: tuple[int, ...] = (), stopped: tuple[int, ...] = (),
        leave: bool = True, limit_sec: float = LIMIT_SEC, differing: dict[int, dict[str, str]] | None = None,
        **environment: str) -> list[object]:
    """function(rank) on all ranks, each a process; their results in rank order, None for one that died and
    may, and for those that will stop. backend None: no process group is made. nodes: the node of each rank,
    by default one each. differing: {rank: what its environment has instead}; "" is as good as nothing."""
    fork = multiprocessing.get_context("fork")
    gc.freeze()  # what torch has made is no rank's garbage: to look through it takes half a second
    with tempfile.TemporaryDirectory() as folder:
        store, started = os.path.join(folder, "store"), []
        for rank in range(world):
            ours, theirs = fork.Pipe(duplex=False)
            own = environment | (differing or {}).get(rank, {})
            arguments = (theirs, function, store, rank, world, nodes, own, backend, leave)
            process = fork.Process(target=_child, args=arguments)
            process.start()
            theirs.close()
            started.append((rank, process, ours))
        try:
            answering = [one for one in started if one[0] not in stopped]
            found = _collect(answering, may_die, time.monotonic() + limit_sec)
            return [found.get(rank) for rank in range(world)]
        finally:
            for _, process, _ in started:
                process.kill()
                process.join()


def _collect(started, may_die, deadline):
    results = {}
    for rank, process, pipe in sorted(started, key=lambda one: one[0] in may_die):
        try:
            results[rank] = _answer(rank, process, pipe, deadline)
        except Died:
            if rank not in may_die:
                raise
            results[rank] = None
    return results


def die() -> None:
    """As a crash: nothing is said to anybody."""
    os.kill(os.getpid(), signal.SIGKILL)


def python_backends() -> bool:
    """Whether this torch lets a backend be written in Python."""
    try:
        return bool(torch._C._distributed_c10d.Backend(0, 1))
    except TypeError:
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
