"""spans.py: ranges in torch's profiler, and a Chrome trace of what waited for what."""

import collections
import json

import pytest
import ranks
import thinwire
import torch
from thinwire import inside
from thinwire.telemetry import spans
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64


def sharded(weights, grads="plain"):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    for layer in model:
        fully_shard(layer)
    return thinwire.enable(fully_shard(model), weights, grads, min_bytes=1)


def train(model, steps=2):
    for _ in range(steps):
        model(torch.ones(4, WIDTH)).sum().backward()


@pytest.mark.parametrize("weights, grads", [("plain", "plain"), ("delta", "lossless"), ("int8", "int4")])
def test_ranges_in_the_profiler(weights, grads):
    def check(_rank):
        model = sharded(weights, grads)
        train(model, 1)  # modules have names from then on
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            train(model)
        return {one.key: one.count for one in profiler.key_averages() if one.key.startswith("thinwire: ")}

    found = ranks.run(2, check)[0]
    for name in ("0", "1"):
        # a step gathers twice, forward and backward
        for what, times in (("all-gather", 4), ("wait for all-gather", 4), ("reduce-scatter", 2),
                            ("wait for reduce-scatter", 2)):
            assert found["thinwire: %s of %s" % (what, name)] == times, found


def test_without_a_profiler_there_are_none():
    def check(_rank):
        def refuse(_text):
            raise AssertionError("a range is made, and nobody looks")

        inside.profiler_range = refuse
        train(sharded("delta"))
        return True

    assert all(ranks.run(2, check))


# The fields of Chrome's trace events by their phase, as "Trace Event Format" documents them.
EVERY = {"ph": str, "pid": int, "tid": int, "name": str}
FIELDS = {
    "M": EVERY | {"args": dict},
    "X": EVERY | {"cat": str, "ts": float, "dur": float},
    "s": EVERY | {"cat": str, "ts": float, "id": int},
    "f": EVERY | {"cat": str, "ts": float, "id": int, "bp": str},
}


def by_phase(path):
    found, trace = collections.defaultdict(list), json.loads(path.read_text())
    assert trace.keys() == {"traceEvents", "displayTimeUnit"} and trace["displayTimeUnit"] in ("ms", "ns")
    for one in trace["traceEvents"]:
        assert {name: type(value) for name, value in one.items()} == FIELDS[one["ph"]], one
        found[one["ph"]].append(one)
    assert {one["name"] for one in found["M"]} <= {"process_name", "thread_name"}
    assert all(isinstance(one["args"]["name"], str) for one in found["M"])
    assert all(one["bp"] == "e" for one in found["f"]) and all(one["dur"] >= 0 for one in found["X"])
    return found


def test_the_trace_of_a_job(tmp_path):
    def check(rank):
        train(sharded("delta"))
        model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH))
        model.register_comm_hook(None, thinwire.ddp_hook("plain"))
        train(model)
        thinwire.timeline(tmp_path / str(rank))
        return True

    assert all(ranks.run(2, check))
    for rank in range(2):
        found = by_phase(tmp_path / str(rank))
        assert all(one["pid"] == rank for events in found.values() for one in events)
        names = collections.Counter(one["name"] for one in found["X"])
        assert names["all-gather of 1"] >= 2 and names["wait for all-gather of 1"] >= 2
        assert names["reduce-scatter of 0"] == 2 and names["ddp all-reduce of bucket 0"] == 2
        # each wait has an arrow from what it waited for, which had begun and ended by then
        ends = {one["id"]: one for one in found["f"]}
        waits = [one for one in found["X"] if one["cat"] == "wait"]
        assert len(found["s"]) == len(ends) == len(waits)
        operations = {(one["tid"], one["ts"]): one for one in found["X"] if one["cat"] == "operation"}
        for arrow in found["s"]:
            source, end = operations[arrow["tid"], arrow["ts"]], ends[arrow["id"]]
            assert source["ts"] + source["dur"] <= end["ts"] + 2
            # the arrow's end lies inside the wait, or readers find no slice for it
            assert any(one["tid"] == end["tid"] and one["name"] == "wait for " + source["name"]
                       and one["ts"] <= end["ts"] < one["ts"] + max(one["dur"], 0.25) for one in waits)
        # in one row nothing overlaps
        for tid in {one["tid"] for one in found["X"]}:
            row = sorted((one["ts"], one["ts"] + one["dur"]) for one in found["X"] if one["tid"] == tid)
            assert all(before[1] <= after[0] for before, after in zip(row, row[1:]))
        assert {one["tid"] for one in found["X"]} <= {one["tid"] for one in found["M"]}


def test_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(spans, "kept", collections.deque(maxlen=spans.LIMIT))
    for _ in range(2 * spans.LIMIT):
        span = spans.begun("one")
        spans.ended(span, 1e-6)
        spans.waited(span, span.begin)
    spans.write(tmp_path / "trace")
    assert len(by_phase(tmp_path / "trace")["X"]) == spans.LIMIT


def test_operations_that_overlap_have_rows_of_their_own():
    made = [spans.Span(str(i), begin, end) for i, (begin, end) in
            enumerate([(0, 4), (1, 2), (2, 3), (3.5, 6), (4, 5)])]
    lanes = spans.lanes(made)
    assert [lanes[id(one)] for one in made] == [0, 1, 1, 1, 0]


def test_an_operation_of_which_only_the_wait_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(spans, "kept", collections.deque(maxlen=1))
    span = spans.begun("one")
    spans.ended(span, 1e-6)
    spans.waited(span, span.begin)
    spans.write(tmp_path / "trace")
    found = by_phase(tmp_path / "trace")
    assert len(found["X"]) == 1 and not found["s"] and not found["f"]
