"""Records when operations ran, and when the job waited for them. Shows them as ranges in torch's profiler if
that runs. Always keeps the last LIMIT of them, which write() writes as a trace."""

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

LIMIT = 16384  # most spans that are kept, of about 200 bytes each
_OPERATIONS = 1 << 23  # first thread id for lanes of operations in a trace, above any thread id of Linux
# Microseconds since 1970 when perf_counter() was 0. With these, times of several ranks' traces fit together.
_ORIGIN_US = time.time() * 1e6 - time.perf_counter() * 1e6


@dataclasses.dataclass(eq=False)
class Span:
    """When an operation ran or was waited for, in seconds of time.perf_counter()."""

    name: str
    begin: float
    end: float = 0.0  # 0: not yet known
    thread: tuple[int, str] | None = None  # the thread that waited; None for an operation
    of: Span | None = None  # the operation that was waited for


kept: collections.deque[Span] = collections.deque(maxlen=LIMIT)


def name_of(kind: str, of: str) -> str:
    """Returns the name of an operation, such as "all-gather of layers.0"."""
    name = of if of.startswith(kind) else kind + (" of " + of if of else "")
    return name + ("the root" if name.endswith(" of ") else "")


def shown(name: str) -> contextlib.AbstractContextManager[object]:
    """Returns a context that is a range in torch's profiler, if the profiler runs."""
    if not inside.profiler_runs():
        return contextlib.nullcontext()
    return inside.profiler_range("thinwire: " + name)


def begun(name: str) -> Span:
    """Returns the span of an operation that is posted now."""
    return Span(name, time.perf_counter())


def ended(span: Span, elapsed_sec: float) -> None:
    """Note that an operation ended elapsed_sec after its post. elapsed_sec 0: that is already noted."""
    if elapsed_sec:
        span.end = span.begin + elapsed_sec
        kept.append(span)


def waited(span: Span, begin: float) -> None:
    """Note that this thread has waited for an operation, from `begin` until now."""
    thread = threading.get_native_id(), threading.current_thread().name
    kept.append(Span("wait for " + span.name, begin, time.perf_counter(), thread, span))


def lanes(operations: list[Span]) -> dict[int, int]:
    """Assigns spans to lanes so that no two spans of a lane overlap. Returns {id() of a span: lane}."""
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
    """Returns a time of perf_counter() in microseconds since 1970. Viewers store it as a double, so its
    resolution is a quarter of a microsecond."""
    return _ORIGIN_US + seconds * 1e6


def _meta(pid: int, kind: str, name: str, tid: int = 0) -> dict[str, object]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}


def events(rank: int) -> list[dict[str, object]]:
    """Returns the events of a Chrome trace. The rank is shown as a process. Its threads are the threads that
    have waited, and lanes of operations. An arrow leads from each operation to the wait for it."""
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
            # Viewers attach the arrow's end to the slice at its time, so that time must be within the wait.
            made.append(arrow | {"ph": "f", "bp": "e", "tid": tid, "ts": max(begin, end - 1)})
    return made


def write(path: str | os.PathLike[str]) -> None:
    """Write this rank's last 16384 operations and waits as a Chrome trace, for Perfetto. Operations on GPU
    memory are not in it, because a CUDA stream runs them: torch.profiler shows them."""
    rank = inside.rank()
    pathlib.Path(path).write_text(
        json.dumps({"traceEvents": events(rank), "displayTimeUnit": "ms"}), encoding="utf-8")
