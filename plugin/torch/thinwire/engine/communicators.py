"""Communicators, and operations on them.

A thread of the C library owns a transport and moves every operation on it; Python threads only post and wait.
Each set of ranks that some process group has gets a transport of its own, so a collective call involves that
group alone, as in torch."""

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
    """Something under way; any thread may test or wait."""

    span: spans.Span  # when it was posted, for the timeline
    declined = ""  # why it goes plain although it has a codec; "" if it does not
    coded = True  # whether any of it is encoded

    def test(self) -> bool:
        """Whether it has ended, well or not."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until the operation has ended. Raises an exception if it has failed."""
        raise NotImplementedError

    def exception(self) -> BaseException | None:
        raise NotImplementedError

    def take_elapsed(self) -> float:
        """Seconds from the post to the end, once; 0 afterwards, and on a CUDA stream."""
        raise NotImplementedError


class UnderWay(Waitable):
    """An operation of the library's that has begun."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: capi.ThinwireError | None = None
        self._done = False

    def _look(self, waits: bool) -> None:
        """Ask the library. If it has ended, set _done and _error."""
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
    """An operation. It holds the tensors that the library reads and writes."""

    def __init__(self, communicator: Communicator, pointer: C.c_void_p, keep: object, what: str,
                 elapsed: C.c_double):
        super().__init__()
        self._communicator, self._pointer, self._keep, self._what = communicator, pointer, keep, what
        self._elapsed, self.span, self.coded = elapsed, spans.begun(what), False

    def note_plan(self) -> None:
        """Learn how the operation is coded, before anybody can wait for it and so end it."""
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
        """Note that the operation is on a CUDA stream, whose order does the rest: nobody waits for it."""
        self._end(capi.OK)

    def take_elapsed(self) -> float:
        seconds, self._elapsed.value = self._elapsed.value, 0.0
        return seconds


class Attached(typing.Protocol):
    """What a communicator carries for replicas.Keeper, which this room does not know."""

    def keep_time(self, timeout_sec: float) -> None: ...

    def sent_bytes(self) -> int: ...

    def close(self) -> None: ...


class Communicator:
    """The C library's communicator of a process group's ranks."""

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
        """Start an operation. keep: what must stay in memory until it has ended."""
        pointer, elapsed = C.c_void_p(), C.c_double()
        self.engine.check_usable()
        with self._lock:
            # On a CUDA stream nobody waits for a request: what is put on the stream afterwards finds the
            # result.
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
            # Somebody may drop a request without waiting: the tensors stay here until it has ended.
            self._flight = [one for one in self._flight if not one.test()] + [request]
        return request

    def keep_time(self, timeout_sec: float) -> None:
        """Use the process group's timeout, which may have changed."""
        if timeout_sec != self._timeout_sec:
            self._timeout_sec = timeout_sec
            if own_timeout(timeout_sec):
                capi.lib().tw_coll_timeout_set(self.pointer, timeout_sec)
                if self.keeper is not None:
                    self.keeper.keep_time(timeout_sec)

    def planned_bytes(self, args: capi.Args) -> int:
        """Bytes that this rank sends to other nodes in such an operation."""
        out = C.c_uint64()
        status = capi.lib().tw_coll_planned_inter_node_bytes(self.pointer, C.byref(args), C.byref(out))
        self.engine.check(status, "plan")
        return out.value

    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to other nodes for the job, as the transport has counted them."""
        counters = capi.Counters()
        capi.lib().tw_coll_counters_get(self.pointer, C.byref(counters))
        kept = self.keeper.sent_bytes() if self.keeper is not None else 0
        return counters.inter_node_bytes - self.aside_bytes + kept

    def spared_bytes(self) -> int:
        """Bytes by which lossless messages to other nodes were shorter than planned."""
        counters = capi.Counters()
        capi.lib().tw_coll_counters_get(self.pointer, C.byref(counters))
        return counters.inter_node_spared_bytes

    def nonfinite_blocks(self) -> int:
        """Blocks with NaN or Inf that this rank has encoded."""
        return capi.lib().tw_coll_nonfinite_blocks(self.pointer)


class Engine:
    """A transport between some ranks of a world, and the communicators on it. Collective over these ranks."""

    def __init__(self, world: World, ranks: tuple[int, ...], timeout_sec: float, frees: bool = True):
        """frees: when a rank has failed, end what waits for it in torch, too."""
        self.pid, self.rank = os.getpid(), world.rank
        self._ranks = ranks  # in the world, ascending
        self._transport, self._all = C.c_void_p(), C.c_void_p()
        self._communicators: dict[tuple[str, bool], Communicator] = {}
        self._counted: dict[Callable[[Communicator], int], int] = {}  # their counters at close()
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
        # Rank 0 speaks for all: the others' lines would differ in the rank alone.
        log.log(logging.INFO if self.rank == 0 else logging.DEBUG, "rank %d: %s", self.rank,
                library.tw_transport_describe(self._transport).decode())

    def _params(self, ranks: list[int], timeout_sec: float) -> capi.Params:
        """Parameters of a communicator for host memory."""
        places = (C.c_int * len(ranks))(*[self._ranks.index(rank) for rank in ranks])
        return capi.Params(transport=self._transport, ranks=places, n_ranks=len(ranks), deterministic=1,
                           progress_thread=1, timeout_sec=own_timeout(timeout_sec))

    def _failed_rank(self) -> int:
        """The rank in the world that has failed, or -1."""
        failed = capi.lib().tw_transport_failed_rank(self._transport)
        return self._ranks[failed] if 0 <= failed < len(self._ranks) else -1

    def check(self, status: int, what: str) -> None:
        """Raise ThinwireError, with the rank to blame, if the status is a failure."""
        if status < 0:
            capi.check(status, what, self._failed_rank())

    def check_usable(self) -> None:
        """Raise RuntimeError in a forked child, which has neither the threads nor the connections, and after
        close()."""
        if os.getpid() != self.pid:
            raise RuntimeError("thinwire: a forked process cannot use its parent's communicators")
        if not self._all:
            raise RuntimeError("thinwire: its communicators are closed")

    def communicator(self, name: str, ranks: list[int], timeout_sec: float,
                     nccl_group: dist.ProcessGroup | None = None) -> Communicator:
        """Returns the communicator of that name, made at its first use. ranks: the engine's, in this group's
        order. nccl_group: it is for GPU memory, over this group's NCCL."""
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
        """When a rank has failed, end what waits in other libraries: they would wait much longer."""
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
        """Give the job up, on all ranks."""
        if self._all and os.getpid() == self.pid:
            capi.lib().tw_coll_abort(self._all)

    def close(self) -> None:
        """Leave the transport. Its first rank stays until the others have left or failed."""
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
    """The address of a process group's NCCL communicator, which exists once the group has been used."""
    if not inside.nccl_comm(group):
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    return inside.nccl_comm(group)


class _Job:
    """The engines of torch's present default group, by their ranks. Those of an older group are closed."""

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
    """Make an engine between all ranks of a world that is not the default group's. The caller closes it, or
    the program's end does. If it fails, torch's own groups are left alone, as it is one of several
    communicators."""
    made = Engine(world, world.ranks, timeout_sec, frees=False)
    _separate.append(made)
    return made


def own_timeout(timeout_sec: float) -> float:
    """The timeout for a communicator of a group that has this one; 0 if TW_COLL_TIMEOUT holds."""
    return 0.0 if os.environ.get("TW_COLL_TIMEOUT") else timeout_sec


def timeout_of(group: dist.ProcessGroup, cuda: bool = False) -> float:
    """A process group's timeout, in seconds."""
    return inside.timeout_sec(group, "cuda" if cuda else "cpu")


SETTINGS_BYTES = 512


def _disagreement(communicator: Communicator, ranks: list[int], settings: dict[str, str]) -> str:
    """Compare the ranks' settings. Returns whose differ from whose; "" if all are the same. Collective."""
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
    """The use of Thinwire in process groups by one user (a model, a backend): on all ranks of a group or on
    none."""

    def __init__(self, settings: dict[str, str]):
        """settings: what must be the same on all ranks of a group."""
        self._settings = settings
        self._groups: dict[object, tuple[Engine, str]] = {}  # (engine, why its ranks do not use it or "")
        self._locks: dict[object, threading.Lock] = {}

    def communicator(self, group: dist.ProcessGroup, cuda: bool = False,
                     staged: bool = False) -> Communicator | None:
        """Returns a process group's communicator, for host memory or for GPU memory, which may be staged in
        host memory. None if its operations are torch's own. Collective over the group when it is new here."""
        ranks = dist.get_process_group_ranks(group)
        return self.communicator_of(group.group_name, ranks, timeout_of(group, cuda),
                                    group if cuda and not staged else None)

    def communicator_of(self, name: str, ranks: list[int], timeout_sec: float,
                        nccl_group: dist.ProcessGroup | None = None) -> Communicator | None:
        """Returns a communicator under a name of its own, for ranks that may have no process group of
        torch's yet."""
        members = tuple(sorted(ranks))
        if agreement.refused(members, timeout_sec):
            return None
        engine = _job.engine(members, timeout_sec)
        found = engine.communicator(name, ranks, timeout_sec, nccl_group)
        found.keep_time(timeout_sec)
        key = (name, nccl_group is not None)
        # One of several threads compares the ranks' settings.
        with self._locks.setdefault(key, threading.Lock()):
            known = self._groups.get(key)
            if known is None or known[0] is not engine:
                by_host = found
                if nccl_group is not None:
                    by_host = engine.communicator("settings of " + name, ranks, timeout_sec)
                known = self._groups[key] = (engine, _disagreement(by_host, ranks, self._settings))
        return None if agreement.may_fall_back(known[1]) else found

    def why_not(self, group: dist.ProcessGroup, cuda: bool = False, staged: bool = False) -> str:
        """Why communicator() has returned None for a group."""
        known = self._groups.get((group.group_name, cuda and not staged))
        if known is not None and known[1]:
            return known[1]
        return agreement.refused(tuple(sorted(dist.get_process_group_ranks(group))), timeout_of(group, cuda))


def running() -> list[Engine]:
    """The engines of this process, with closed ones of separate(), whose bytes still count."""
    return [*_job.engines.values(), *_separate]


def close() -> None:
    """Leave the job; the next operation joins again. Rank 0 waits for the others."""
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
