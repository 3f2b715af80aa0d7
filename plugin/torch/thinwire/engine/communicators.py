"""Communicators, and operations on them.

Each transport has a thread of the C library, which makes progress on all operations. Python threads only post
operations and wait. Each different set of ranks of a process group has its own transport. So, as in torch, a
collective call involves only the ranks of its group."""

from __future__ import annotations

import atexit
import ctypes as C
import json
import logging
import os
import sys
import threading
import typing
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist

from .. import capi, inside
from ..switches import log
from ..telemetry import spans
from . import agreement, segments, waiting
from .meeting import Meeting, World, default_world

TYPES = {torch.float32: capi.FP32, torch.bfloat16: capi.BF16, torch.float16: capi.FP16,
         torch.uint8: capi.BYTE}


class Waitable:
    """A posted operation. Any thread may test it or wait for it."""

    span: spans.Span  # its time and name, for the timeline
    declined = ""  # why the library sends it plain although it has a codec; "" otherwise
    coded = True  # whether any part of it is encoded

    def test(self) -> bool:
        """Returns whether the operation has ended, successfully or not."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until the operation has ended. Raises an exception if it has failed."""
        raise NotImplementedError

    def exception(self) -> BaseException | None:
        raise NotImplementedError

    def take_elapsed(self) -> float:
        """Returns the seconds from post to end. 0 at later calls, and for work on a CUDA stream."""
        raise NotImplementedError


class UnderWay(Waitable):
    """An operation that the library is performing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: capi.ThinwireError | None = None
        self._done = False

    def _look(self, waits: bool) -> None:
        """Test whether the operation has ended, or wait for its end. Then set _done and _error."""
        raise NotImplementedError

    def test(self) -> bool:
        if not self._done and self._lock.acquire(blocking=False):
            try:
                if not self._done:
                    self._look(waits=False)
            finally:
                self._lock.release()
        return self._done

    def wait(self) -> None:
        with self._lock:
            if not self._done:
                self._look(waits=True)
        if self._error is not None:
            raise self._error

    def exception(self) -> BaseException | None:
        return self._error


class Request(UnderWay):
    """An operation on a communicator. Keeps the tensors alive that the library reads and writes."""

    def __init__(self, communicator: Communicator, pointer: C.c_void_p, keep: object, what: str,
                 elapsed: C.c_double):
        super().__init__()
        self._communicator, self._pointer, self._keep, self._what = communicator, pointer, keep, what
        self._elapsed, self.span, self.coded = elapsed, spans.begun(what), False

    def note_plan(self) -> None:
        """Ask the library how it encodes the operation. Must come before anyone can wait: the end of the wait
        frees the library's request."""
        plan = capi.Plan()
        capi.lib().tw_coll_request_plan(self._pointer, C.byref(plan))
        self.coded = bool(plan.quantized)
        if not self.coded:
            self.declined = (plan.reason or b"").decode()

    def _look(self, waits: bool) -> None:
        look = capi.lib().tw_coll_wait if waits else capi.lib().tw_coll_test
        status = look(self._pointer)
        if status != capi.IN_PROGRESS:
            self._end(status)

    def _end(self, status: int) -> None:
        self._done, self._keep = True, None
        try:
            self._communicator.engine.check(status, self._what)
        except capi.ThinwireError as error:
            self._error = error

    def enqueued(self) -> None:
        """Mark an operation on a CUDA stream as ended: nobody waits for it on the host."""
        self._end(capi.OK)

    def take_elapsed(self) -> float:
        seconds, self._elapsed.value = self._elapsed.value, 0.0
        return seconds


class Attached(typing.Protocol):
    """What Communicator calls of fsdp.replicas.Keeper. A protocol, because engine must not import fsdp."""

    def keep_time(self, timeout_sec: float) -> None: ...

    def sent_bytes(self) -> int: ...

    def close(self) -> None: ...


class Communicator:
    """The C library's communicator for the ranks of a process group, for host or for GPU memory (cuda)."""

    def __init__(self, engine: Engine, pointer: C.c_void_p, rank: int, world: int, timeout_sec: float,
                 cuda: bool = False):
        self._timeout_sec = timeout_sec
        self.engine, self.pointer, self.rank, self.world, self.cuda = engine, pointer, rank, world, cuda
        self.n_nodes = capi.lib().tw_coll_n_nodes(pointer)
        self.aside_bytes = 0  # bytes sent to other nodes for Thinwire's own purposes
        self.keeper: Attached | None = None  # made by replicas.keeper_of()
        self.is_uneven, self.keeping = False, threading.Lock()
        self._flight: list[Request] = []
        self._lock = threading.Lock()

    def post(self, args: capi.Args, keep: object, what: str) -> Request:
        """Post an operation. keep: objects that must stay alive until it has ended. what: its name."""
        pointer, elapsed = C.c_void_p(), C.c_double()
        self.engine.check_usable()
        with self._lock:
            # An operation on a CUDA stream needs no request: later work on the stream comes after it.
            wanted = None if self.cuda else C.byref(pointer)
            if not self.cuda:
                args.elapsed_sec = C.pointer(elapsed)
            self.engine.check(capi.lib().tw_coll_post(self.pointer, C.byref(args), wanted), what)
            request = Request(self, pointer, keep, what, elapsed)
            if self.cuda:
                request.enqueued()
                return request
            if args.codec:
                request.note_plan()
            # Keep requests and their tensors until they have ended: a caller may drop one without waiting.
            self._flight = [one for one in self._flight if not one.test()] + [request]
        return request

    def keep_time(self, timeout_sec: float) -> None:
        """Set the timeout to the process group's, which the program may have changed."""
        if timeout_sec != self._timeout_sec:
            self._timeout_sec = timeout_sec
            if own_timeout(timeout_sec):
                capi.lib().tw_coll_timeout_set(self.pointer, timeout_sec)
                if self.keeper is not None:
                    self.keeper.keep_time(timeout_sec)

    def planned_bytes(self, args: capi.Args) -> int:
        """Returns the bytes that this rank would send to other nodes in an operation with these arguments."""
        out = C.c_uint64()
        status = capi.lib().tw_coll_planned_inter_node_bytes(self.pointer, C.byref(args), C.byref(out))
        self.engine.check(status, "plan")
        return out.value

    def sent_bytes(self) -> int:
        """Returns the bytes that this rank has sent to other nodes, except for Thinwire's own purposes."""
        counters = capi.Counters()
        capi.lib().tw_coll_counters_get(self.pointer, C.byref(counters))
        kept = self.keeper.sent_bytes() if self.keeper is not None else 0
        return counters.inter_node_bytes - self.aside_bytes + kept

    def spared_bytes(self) -> int:
        """Returns the bytes by which messages of varying length to other nodes were shorter than planned."""
        counters = capi.Counters()
        capi.lib().tw_coll_counters_get(self.pointer, C.byref(counters))
        return counters.inter_node_spared_bytes

    def nonfinite_blocks(self) -> int:
        """Returns the number of blocks with NaN or Inf that this rank has encoded."""
        return capi.lib().tw_coll_nonfinite_blocks(self.pointer)


class Engine:
    """A transport between some ranks of a world, and its communicators. Making and closing are collective."""

    def __init__(self, world: World, ranks: tuple[int, ...], timeout_sec: float, frees: bool = True):
        """frees: when a rank has failed, also end torch's own collectives that wait for it (waiting.py)."""
        self.pid, self.rank = os.getpid(), world.rank
        self._ranks = ranks  # numbers in the world, ascending
        self._transport, self._all = C.c_void_p(), C.c_void_p()
        self._communicators: dict[tuple[str, bool], Communicator] = {}
        self._counted: dict[Callable[[Communicator], int], int] = {}  # {counter: sum}, set by close()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._meeting: Meeting | None = Meeting(world, ranks, timeout_sec)
        try:
            self._join(self._meeting, timeout_sec)
        except BaseException:
            self._meeting.leave()
            raise
        self._watcher: threading.Thread | None = None
        if frees:
            self._watcher = threading.Thread(target=self._watch, name="thinwire-watch", daemon=True)
            self._watcher.start()

    def _join(self, meeting: Meeting, timeout_sec: float) -> None:
        library = capi.lib()
        job, listener = meeting.job()
        place = capi.TransportParams(C.pointer(job), listener)
        capi.check(library.tw_transport_create_with(C.byref(place), C.byref(self._transport)), "join")
        meeting.forget()
        params = self._params(list(self._ranks), timeout_sec)
        status = library.tw_coll_create(C.byref(params), C.byref(self._all))
        if status < 0:
            failed = self._failed_rank()
            library.tw_transport_destroy(self._transport)
            self._transport = C.c_void_p()
            capi.check(status, "join", failed)
        # Only rank 0 logs this as INFO: other ranks' lines would differ only in the rank.
        log.log(logging.INFO if self.rank == 0 else logging.DEBUG, "rank %d: %s", self.rank,
                library.tw_transport_describe(self._transport).decode())

    def _params(self, ranks: list[int], timeout_sec: float) -> capi.Params:
        """Returns parameters of a communicator for host memory. ranks: numbers in the world."""
        places = (C.c_int * len(ranks))(*[self._ranks.index(rank) for rank in ranks])
        return capi.Params(transport=self._transport, ranks=places, n_ranks=len(ranks), deterministic=1,
                           progress_thread=1, timeout_sec=own_timeout(timeout_sec))

    def _failed_rank(self) -> int:
        """Returns the world's number of the rank that has failed, or -1."""
        failed = capi.lib().tw_transport_failed_rank(self._transport)
        return self._ranks[failed] if 0 <= failed < len(self._ranks) else -1

    def check(self, status: int, what: str) -> None:
        """Raise ThinwireError, with the failed rank, if `status` is a failure. what: the operation."""
        if status < 0:
            capi.check(status, what, self._failed_rank())

    def check_usable(self) -> None:
        """Raise RuntimeError after close(), and in a forked child, which lacks its parent's threads."""
        if os.getpid() != self.pid:
            raise RuntimeError("thinwire: a forked process cannot use its parent's communicators")
        if not self._all:
            raise RuntimeError("thinwire: its communicators are closed")

    def communicator(self, name: str, ranks: list[int], timeout_sec: float,
                     nccl_group: dist.ProcessGroup | None = None) -> Communicator:
        """Returns the communicator of that name. The first call makes it. ranks: the engine's ranks, in the
        process group's order. nccl_group: for GPU memory, the group whose NCCL communicator to use."""
        key = (name, nccl_group is not None)
        found = self._communicators.get(key)
        if found is not None:
            return found
        self.check_usable()
        with self._lock:
            if key not in self._communicators:
                self._communicators[key] = self._create(ranks, timeout_sec, nccl_group)
            return self._communicators[key]

    def _create(self, ranks: list[int], timeout_sec: float,
                nccl_group: dist.ProcessGroup | None) -> Communicator:
        pointer, library = C.c_void_p(), capi.lib()
        if nccl_group is not None:
            over = capi.NcclParams(comm=nccl_comm(nccl_group), deterministic=1,
                                   timeout_sec=own_timeout(timeout_sec))
            status = library.tw_coll_nccl_create(C.byref(over), C.byref(pointer))
        else:
            params = self._params(ranks, timeout_sec)
            status = library.tw_coll_create(C.byref(params), C.byref(pointer))
        self.check(status, "communicator of ranks %s" % ranks)
        return Communicator(self, pointer, ranks.index(self.rank), len(ranks), timeout_sec,
                            nccl_group is not None)

    def _count(self, of: Callable[[Communicator], int]) -> int:
        return sum(map(of, self._communicators.values())) if self._all else self._counted.get(of, 0)

    def sent_bytes(self) -> int:
        return self._count(Communicator.sent_bytes)

    def spared_bytes(self) -> int:
        return self._count(Communicator.spared_bytes)

    def nonfinite_blocks(self) -> int:
        return self._count(Communicator.nonfinite_blocks)

    def _watch(self) -> None:
        """Thread: when a rank has failed, end collectives of torch's backends that wait for it."""
        while not self._stop.wait(waiting.WATCH_SEC):
            status = capi.lib().tw_coll_progress(self._all)
            if status < 0:
                failure = capi.ThinwireError("the job has failed", status, self._failed_rank(),
                                             capi.last_error())
                log.error("%s", failure)
                for one in list(self._communicators.values()):
                    if one.cuda:
                        capi.lib().tw_coll_abort(one.pointer)
                waiting.abort_groups()
                waiting.watch(failure, self._stop)

    def abort(self) -> None:
        """End all operations of all ranks of this transport with an error."""
        if self._all and os.getpid() == self.pid:
            capi.lib().tw_coll_abort(self._all)

    def close(self) -> None:
        """Leave the transport. On its first rank this waits until the others have left or failed."""
        if os.getpid() != self.pid or not self._all:
            return
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
        library = capi.lib()
        counts = (Communicator.sent_bytes, Communicator.spared_bytes, Communicator.nonfinite_blocks)
        self._counted = {of: self._count(of) for of in counts}
        for one in self._communicators.values():
            if one.keeper is not None:
                one.keeper.close()
            library.tw_coll_destroy(one.pointer)
        library.tw_coll_destroy(self._all)
        library.tw_transport_destroy(self._transport)
        self._communicators, self._all, self._transport = {}, C.c_void_p(), C.c_void_p()
        if self._meeting is not None:
            self._meeting.leave()
            self._meeting = None


def nccl_comm(group: dist.ProcessGroup) -> int:
    """Returns the address of a group's NCCL communicator. An all-reduce makes it if there is none yet."""
    if not inside.nccl_comm(group):
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    return inside.nccl_comm(group)


class _Job:
    """The engines of torch's default group: {their ranks: engine}. A new default group closes old engines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group: Callable[[], dist.ProcessGroup | None] = lambda: None
        self.engines: dict[tuple[int, ...], Engine] = {}

    def engine(self, ranks: tuple[int, ...], timeout_sec: float) -> Engine:
        group = inside.default_group()
        with self._lock:
            if self._group() is not group:
                self.close()
                self._group = weakref.ref(group)
            if ranks not in self.engines:
                self.engines[ranks] = Engine(default_world(), ranks, timeout_sec)
            return self.engines[ranks]

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
        self.engines = {}


_job = _Job()
_separate: list[Engine] = []


def separate(world: World, timeout_sec: float) -> Engine:
    """Make an engine between all ranks of a world other than the default group's. The caller may close it;
    otherwise the end of the program does. A rank's failure does not end torch's own groups."""
    made = Engine(world, world.ranks, timeout_sec, frees=False)
    _separate.append(made)
    return made


def own_timeout(timeout_sec: float) -> float:
    """Returns the timeout for a communicator, given its process group's timeout. 0, the library's default, if
    TW_COLL_TIMEOUT is set."""
    return 0.0 if os.environ.get("TW_COLL_TIMEOUT") else timeout_sec


def timeout_of(group: dist.ProcessGroup, cuda: bool = False) -> float:
    """Returns a process group's timeout, in seconds. cuda: that of the group's backend for GPU memory."""
    return inside.timeout_sec(group, "cuda" if cuda else "cpu")


SETTINGS_BYTES = 512


def _disagreement(communicator: Communicator, ranks: list[int], settings: dict[str, str]) -> str:
    """Compare all ranks' settings. Collective. Returns which ranks' differ, or "" if all are equal."""
    if communicator.world == 1 or not settings:
        return ""
    texts = (C.c_char * SETTINGS_BYTES * communicator.world)()
    texts[communicator.rank].value = json.dumps(settings).encode()
    table = segments.RankMajor(communicator.world, communicator.rank, [segments.Piece(SETTINGS_BYTES, "")], 1)
    table.gather(C.addressof(texts))
    args = table.args(op=capi.ALLGATHER, type=capi.BYTE)
    communicator.post(args, texts, "settings").wait()
    communicator.aside_bytes += communicator.planned_bytes(args)
    states = {rank: agreement.State(agreement.READY, json.loads(text.value))
              for rank, text in zip(ranks, texts)}
    why = agreement.why_not(states, [], "")
    if why and communicator.rank == 0:
        log.warning("not over Thinwire: %s", why)
    return why


class Use:
    """How one user (a model's hooks, a c10d backend) finds communicators. For each process group either all
    ranks get one or none does."""

    def __init__(self, settings: dict[str, str]):
        """settings: the user's settings, which must be equal on all ranks of a group."""
        self._settings = settings
        self._groups: dict[object, tuple[Engine, str]] = {}  # (engine, how ranks' settings differ or "")
        self._locks: dict[object, threading.Lock] = {}

    def communicator(self, group: dist.ProcessGroup, cuda: bool = False,
                     staged: bool = False) -> Communicator | None:
        """Returns a process group's communicator for host memory, or for GPU memory (cuda) unless it is
        staged in host memory. None if torch has to do the operations. A group's first call is collective."""
        ranks = dist.get_process_group_ranks(group)
        return self.communicator_of(group.group_name, ranks, timeout_of(group, cuda),
                                    group if cuda and not staged else None)

    def communicator_of(self, name: str, ranks: list[int], timeout_sec: float,
                        nccl_group: dist.ProcessGroup | None = None) -> Communicator | None:
        """As communicator(), for ranks without a process group. name: the same on all ranks."""
        members = tuple(sorted(ranks))
        if agreement.refused(members, timeout_sec):
            return None
        engine = _job.engine(members, timeout_sec)
        found = engine.communicator(name, ranks, timeout_sec, nccl_group)
        found.keep_time(timeout_sec)
        key = (name, nccl_group is not None)
        # Only one thread compares settings: the comparison is collective.
        with self._locks.setdefault(key, threading.Lock()):
            known = self._groups.get(key)
            if known is None or known[0] is not engine:
                by_host = found
                if nccl_group is not None:
                    by_host = engine.communicator("settings of " + name, ranks, timeout_sec)
                known = self._groups[key] = (engine, _disagreement(by_host, ranks, self._settings))
        return None if agreement.may_fall_back(known[1]) else found

    def why_not(self, group: dist.ProcessGroup, cuda: bool = False, staged: bool = False) -> str:
        """Returns the reason why communicator() has returned None for a group."""
        known = self._groups.get((group.group_name, cuda and not staged))
        if known is not None and known[1]:
            return known[1]
        return agreement.refused(tuple(sorted(dist.get_process_group_ranks(group))), timeout_of(group, cuda))


def running() -> list[Engine]:
    """Returns this process's engines. Closed ones of separate() are among them: their bytes still count."""
    return [*_job.engines.values(), *_separate]


def close() -> None:
    """Close all engines; the next operation makes new ones. Rank 0 waits for the others to close theirs."""
    _job.close()
    for one in _separate:
        one.close()


@atexit.register
def _leave() -> None:
    if not any(engine.pid == os.getpid() for engine in running()):
        return
    if getattr(sys, "last_value", None) is not None:
        # An exception ended the program: the others must not wait for this rank.
        for engine in running():
            engine.abort()
    close()
    capi.stop_logging()
