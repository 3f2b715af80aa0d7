"""agreement.py: all ranks use Thinwire or none, whatever one of them lacks."""

import gc
import multiprocessing
import os
import time

import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire import autoload
from thinwire.engine import agreement, communicators
from torch import nn
from torch.distributed.fsdp import fully_shard

JOIN_SEC = 4.0
ON = {"TW_FSDP": "1", "TW_MIN_BYTES": "1", "TW_JOIN_TIMEOUT": "%gs" % JOIN_SEC}
NOTHING = "nothing goes over Thinwire: "


def step(mesh=None):
    """One step of a job that knows nothing of Thinwire; its loss."""
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(64, 64), mesh=mesh)
    loss = model(torch.ones(4, 64)).square().mean()
    loss.backward()
    return loss.item()


def outcome():
    """(calls over Thinwire, what was said)"""
    return sum(tally.calls for tally in thinwire.report().values()), ranks.logged(NOTHING)


def run(world, differing, function=step, **environment):
    def check(rank):
        function()
        return outcome()

    return ranks.run(world, check, differing=differing, **(ON | environment))


def test_ranks_that_are_alike_use_it():
    results = run(3, {}, TW_JOIN_TIMEOUT="1000s")
    assert all(calls > 0 and not lines for calls, lines in results)


# What a rank lacks, what it is told as, whether it is heard at all.
LACKING = [
    ({"TW_LIBRARY": "/nowhere/lib.so"}, "rank 2: cannot load /nowhere/lib.so"),
    ({"TW_WEIGHTS": "int3"}, "rank 2: TW_WEIGHTS: 'int3' is not a codec"),
    ({"TW_MIN_BYTES": "many"}, "rank 2: variables: bad configuration value (config: TW_MIN_BYTES=many"),
    ({"TW_WEIGHTS": "int4"}, "ranks 0-1: TW_WEIGHTS=delta, rank 2: TW_WEIGHTS=int4:block=128"),
    ({"TW_MIN_BYTES": "2"}, "ranks 0-1: TW_MIN_BYTES=1, rank 2: TW_MIN_BYTES=2"),
    ({"TW_COLL_SCRATCH": "16M"}, "ranks 0-1: TW_COLL_SCRATCH=not set, rank 2: TW_COLL_SCRATCH=16M"),
    ({"TW_COLL_CHUNK": "64K"}, "ranks 0-1: TW_COLL_CHUNK=not set, rank 2: TW_COLL_CHUNK=64K"),
]


@pytest.mark.parametrize("lacking, told", LACKING)
def test_a_rank_that_is_not_ready_is_told_at_once(lacking, told):
    results = run(3, {2: lacking}, TW_JOIN_TIMEOUT="1000s")  # which is longer than the test's limit
    assert [calls for calls, _ in results] == [0, 0, 0]
    assert len(results[0][1]) == 1 and told in results[0][1][0]
    assert results[1][1] == results[2][1] == []


def test_versions_that_differ_are_told():
    def check(rank):
        ours = agreement.__version__
        if rank == 1:
            agreement.__version__ = "another"
        model = thinwire.enable(fully_shard(nn.Linear(64, 64)), min_bytes=1)
        model(torch.ones(4, 64)).sum().backward()
        return ours, *outcome()

    results = ranks.run(3, check)
    assert [calls for _, calls, _ in results] == [0] * 3
    version, _, lines = results[0]
    assert len(lines) == 1
    assert lines[0].endswith("ranks 0, 2: Thinwire=%s, rank 1: Thinwire=another" % version)


def test_a_rank_without_the_variable_is_waited_for_and_told():
    results = run(3, {1: {"TW_FSDP": ""}})
    assert [calls for calls, _ in results] == [0, 0, 0]
    lines = results[0][1]
    assert len(lines) == 1 and "nothing was heard from rank 1 within 4 s (TW_JOIN_TIMEOUT" in lines[0]


def test_without_rank_0_the_next_one_tells():
    results = run(3, {0: {"TW_FSDP": ""}})
    assert [calls for calls, _ in results] == [0, 0, 0]
    assert results[0][1] == results[2][1] == [] and "rank 0 within" in results[1][1][0]


def test_a_rank_that_is_late_finds_the_others_over_gloo():
    """The verdict holds, also for a rank that would be ready by then."""

    def check(rank):
        if rank == 1:
            # as if init_process_group took it so long
            time.sleep(JOIN_SEC + 2)
            autoload.begin()
        step()
        return outcome()[0], agreement.reasons()

    differing = {1: {"TW_FSDP": ""}}
    results = ranks.run(2, check, differing=differing, **ON)
    assert [calls for calls, _ in results] == [0, 0]


def test_a_rank_that_is_late_at_its_first_collective_is_waited_for():
    def check(rank):
        time.sleep((JOIN_SEC + 1) * rank)
        step()
        return outcome()[0], len(ranks.logged("has waited 4 s for rank 1 to come"))

    assert [(calls > 0, reminded) for calls, reminded in ranks.run(2, check, **ON)] == [(True, 1), (True, 0)]


def test_groups_of_a_job_fall_back_together():
    """Each of two groups shards by itself; the rank that lacks something is in one of them."""

    def check(rank):
        for members in ([0, 1], [2, 3]):
            group = dist.new_group(members)
            if rank in members:
                mesh = dist.DeviceMesh.from_group(group, "cpu")
        step(mesh)
        return outcome()

    results = ranks.run(4, check, differing={3: {"TW_GRADS": "int5"}}, **ON)
    assert [calls for calls, _ in results] == [0] * 4
    assert "rank 3: TW_GRADS: 'int5'" in results[0][1][0]


def test_programs_that_differ_are_told():
    """enable() with other arguments on one rank."""

    def check(rank):
        torch.manual_seed(0)
        model = thinwire.enable(fully_shard(nn.Linear(64, 64)), weights="int8" if rank else "int4",
                                min_bytes=1)
        model(torch.ones(4, 64)).sum().backward()
        return outcome()[0], ranks.logged("not over Thinwire")

    results = ranks.run(3, check)
    assert [calls for calls, _ in results] == [0] * 3
    assert "rank 0: TW_WEIGHTS=int4:block=128, ranks 1-2: TW_WEIGHTS=int8:block=2048" in results[0][1][0]


@pytest.mark.skipif(not ranks.python_backends(), reason="backends of this torch cannot be written in Python")
def test_a_backend_whose_limits_differ_leaves_all_to_gloo():
    def check(rank):
        one = torch.ones(10000)
        dist.all_reduce(one)
        return (one[0].item(), outcome()[0],
                len(ranks.logged("all goes to gloo: TW_MIN_BYTES is 1, 1000000 on ranks 0 to 1")))

    results = ranks.run(2, check, backend="thinwire", differing={1: {"TW_MIN_BYTES": "1000000"}},
                        TW_MIN_BYTES="1")
    assert results == [(2.0, 0, 1), (2.0, 0, 0)]


def test_a_second_default_group_agrees_anew(tmp_path):
    def check(rank):
        step()
        first = outcome()[0]
        communicators.close()
        dist.destroy_process_group()
        if rank == 1:
            # what it is like there has changed
            os.environ["TW_WEIGHTS"] = "int3"
        with ranks.job(str(tmp_path / "store"), rank, 2):
            step()
        return first > 0, outcome()[0] == first

    assert ranks.run(2, check, leave=False, **ON) == [(True, True)] * 2


def begin(rank, world, port):
    """init_process_group() as a job without torchrun calls it: rank 0 has the store."""
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)


# (what differs on a rank; what all ranks raise, where they can)
REQUIRED = [
    ({1: {"TW_LIBRARY": "/nowhere/lib.so"}}, "rank 1: cannot load /nowhere/lib.so"),
    ({0: {"TW_GRADS": "int5"}}, "rank 0: TW_GRADS: 'int5' is not a codec"),
    ({0: {"TW_GRADS": "int8"}}, "rank 0: TW_GRADS=int8"),
    ({rank: {"TW_FSDP": "requrie"} for rank in range(3)}, "TW_FSDP=requrie: expected one of"),
    # As without a wheel: it runs nothing of ours.
    ({2: {"TW_FSDP": ""}}, "nothing was heard from rank 2 within 3 s"),
]


@pytest.mark.parametrize("differing, told", REQUIRED, ids=[told.split(":")[0] for _, told in REQUIRED])
@pytest.mark.parametrize("switch", ["TW_FSDP", "TW_DDP"])
def test_what_is_required_ends_the_job_where_a_rank_cannot(switch, differing, told, monkeypatch):
    monkeypatch.setattr(agreement, "HERE_SEC", 3.0)
    port, silent = ranks.free_port(), "heard" in told

    def check(rank):
        autoload.run()
        try:
            begin(rank, 3, port)
            dist.barrier()
        except RuntimeError as error:
            if rank == 0:  # and with it the store
                dist.destroy_process_group()
            return str(error)
        return ""

    differing = {rank: {name.replace("TW_FSDP", switch): value for name, value in one.items()}
                 for rank, one in differing.items()}
    said = ranks.run(3, check, backend=None, differing=differing,
                     **(ON | {"TW_FSDP": "", switch: "Require", "TW_JOIN_TIMEOUT": "1000s"}))
    told = told.replace("TW_FSDP", switch)
    for rank, text in enumerate(said):
        if silent and rank == 2:
            assert "Connection" in text, text  # in gloo, once the others have gone
        else:
            assert "and nothing goes over Thinwire: " in text and told in text, (rank, text)


def test_what_is_required_is_used_where_all_can():
    results = run(2, {}, TW_FSDP="require")
    assert all(calls > 0 and not lines for calls, lines in results)


def test_what_is_required_ends_the_job_where_programs_differ():
    def check(rank):
        model = thinwire.enable(fully_shard(nn.Linear(64, 64)), weights="int8" if rank else "int4")
        with pytest.raises(RuntimeError, match="TW_FSDP=require, .*rank 0: TW_WEIGHTS=int4"):
            model(torch.ones(4, 64))
        return True

    assert all(ranks.run(2, check, **(ON | {"TW_FSDP": "require"})))


def test_groups_one_after_the_other_leave_nothing_behind():
    """As loops of reinforcement learning and restarts in a process have them. Each has a port of its own:
    FSDP2 itself keeps the first group's store."""
    rounds = 20
    ports = [ranks.free_port() for _ in range(rounds)]
    over = multiprocessing.get_context("fork").Barrier(2, timeout=60)

    def check(rank):
        autoload.run()
        found = []
        for k in range(rounds):
            begin(rank, 2, ports[k])
            losses = step(dist.device_mesh.init_device_mesh("cpu", (2,)))
            gc.collect()
            calls = outcome()[0]
            dist.destroy_process_group()
            gc.collect()
            over.wait()  # the store is rank 0's
            found.append((losses, *ranks.held()))
        return found, calls

    for found, calls in ranks.run(2, check, backend=None, **ON):
        assert calls == 2 * rounds and len({loss for loss, _, _ in found}) == 1
        assert len(set(found[1:])) == 1, found
