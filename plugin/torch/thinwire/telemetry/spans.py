"""When operations ran, and when the job waited for them: ranges in torch's profiler, while it runs, and a
trace of our own, which is always there, of the last so many of them."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import heapq
import json
import os
import pathlib
import threading
import time

from .. import inside

LIMIT = 16384  # spans that are kept, of about 200 bytes each
_OPERATIONS = 1 << 23  # the trace's thread ids for operations begin here, above Linux's
# Microseconds since 1970 at perf_counter() 0, so that traces of several ranks fit together.
_ORIGIN_US = time.time() * 1e6 - time.perf_counter() * 1e6


@dataclasses.dataclass(eq=False)
class Span:
    """When an operation ran or was waited for, in seconds of time.perf_counter()."""

    name: str
    begin: float
    end: float = 0.0  # 0: not known
    thread: tuple[int, str] | None = None  # the thread that waited; None for an operation
    of: Span | None = None  # the operation that was waited for


kept: collections.deque[Span] = collections.deque(maxlen=LIMIT)


def name_of(kind: str, of: str) -> str:
    """Name an operation: "all-gather of layers.0"."""
    name = of if of.startswith(kind) else kind + (" of " + of if of else "")
    return name + ("the root" if name.endswith(" of ") else "")


def shown(name: str) -> contextlib.AbstractContextManager[object]:
    """Open a range in torch's profiler, if it runs."""
    if not inside.profiler_runs():
        return contextlib.nullcontext()
    return inside.profiler_range("thinwire: " + name)


def begun(name: str) -> Span:
    """Note that an operation is posted."""
    return Span(name, time.perf_counter())


def ended(span: Span, elapsed_sec: float) -> None:
    """Note that an operation has ended elapsed_sec after its post; 0: this was noted before."""
    if elapsed_sec:
        span.end = span.begin + elapsed_sec
        kept.append(span)


def waited(span: Span, begin: float) -> None:
    """Note that this thread has waited for an operation, from `begin` until now."""
    thread = threading.get_native_id(), threading.current_thread().name
    kept.append(Span("wait for " + span.name, begin, time.perf_counter(), thread, span))


def lanes(operations: list[Span]) -> dict[int, int]:
    """Returns {id of a span: lane}; no two spans of a lane overlap."""
    found: dict[int, int] = {}
    free: list[int] = []
    busy: list[tuple[float, int]] = []  # (end, lane)
    for one in sorted(operations, key=lambda span: span.begin):
        while busy and busy[0][0] <= one.begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (one.end, lane))
        found[id(one)] = lane
    return found


def _us(seconds: float) -> float:
    """Microseconds since 1970. Readers hold them in doubles, which are a quarter of a microsecond apart
    there."""
    return _ORIGIN_US + seconds * 1e6


def _meta(pid: int, kind: str, name: str, tid: int = 0) -> dict[str, object]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}


def events(rank: int) -> list[dict[str, object]]:
    """Events of a Chrome trace. The rank is a process; its threads are those that have waited and as many
    lanes as overlapping operations need; an arrow leads from each operation to the wait that it ended."""
    made_of = list(kept)
    lane_of = lanes([one for one in made_of if one.thread is None])
    made = [_meta(rank, "process_name", "rank %d" % rank)]
    made += [_meta(rank, "thread_name", "operations %d" % lane, _OPERATIONS + lane)
             for lane in sorted(set(lane_of.values()))]
    made += [_meta(rank, "thread_name", name, tid)
             for tid, name in sorted({one.thread for one in made_of if one.thread is not None})]
    for number, one in enumerate(made_of):
        tid = one.thread[0] if one.thread is not None else _OPERATIONS + lane_of[id(one)]
        begin, end = _us(one.begin), _us(one.end)
        made.append({"ph": "X", "cat": "wait" if one.thread else "operation", "name": one.name, "pid": rank,
                     "tid": tid, "ts": begin, "dur": end - begin})
        if one.of is not None and id(one.of) in lane_of:
            arrow = {"cat": "waited for", "name": "waited for", "id": number, "pid": rank}
            lane = _OPERATIONS + lane_of[id(one.of)]
            made.append(arrow | {"ph": "s", "tid": lane, "ts": _us(one.of.begin)})
            # Readers bind the arrow's end to the slice that is open at its time: it must lie within the wait.
            made.append(arrow | {"ph": "f", "bp": "e", "tid": tid, "ts": max(begin, end - 1)})
    return made


def write(path: str | os.PathLike[str]) -> None:
    """Write, as a Chrome trace for Perfetto, when this rank's operations ran, and when it waited for which,
    of the last 16384 of both. The trace lacks operations on GPU memory, which run in a stream's order:
    torch.profiler shows them."""
    rank = inside.rank()
    pathlib.Path(path).write_text(
        json.dumps({"traceEvents": events(rank), "displayTimeUnit": "ms"}), encoding="utf-8")
