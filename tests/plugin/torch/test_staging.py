"""Reductions of GPU memory in host memory, between processes, on GPUs that are none."""

import collections
import contextlib
import types
import typing
import weakref

import pytest
import ranks
import thinwire
import torch
from device import Simulated
from models import BF16, make, train
from test_backward import fails_in_backward
from test_ddp import train as train_ddp
from thinwire.collectives import operations, staging
from thinwire.fsdp import replicas
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

POLICIES = {"bf16": BF16, "fp32": MixedPrecisionPolicy(),
            "fp16": MixedPrecisionPolicy(torch.float16, torch.float16)}


class OldDriver(Simulated):
    """Its streams have no memory operations."""

    def write(self, _count, _value, _stream):
        return False


class Counting(Simulated):
    """Counts what a GPU is asked for; reads and writes of counts are memory operations."""

    calls: typing.ClassVar[collections.Counter[str]] = collections.Counter()

    def _counted(self, of, *names):
        def counted(name, call):
            def and_count(*args):
                self.calls[name] += 1
                return call(*args)

            return and_count

        for name in names:
            setattr(of, name, counted(name, getattr(of, name)))
        return of

    def __init__(self):
        self._counted(self, "copy", "write", "wait_for")

    def current(self, tensor):
        return self._counted(super().current(tensor), "record_event", "wait_event")

    def stream(self, tensor):
        return self._counted(super().stream(tensor), "record_event", "wait_event")


@contextlib.contextmanager
def gpu(device=Simulated):
    """What is not staged goes over a communicator of its own, NCCL's. Here it is the same one, so it waits
    for its turn."""
    posted = []

    def post(*args):
        posted.append(posting(*args))
        return posted[-1]

    def find(*args):
        if not args[-1]:
            for one in posted:
                one.is_coded()
        return carrying(*args)

    host, posting, carrying = staging.device, staging.post, operations.carrier
    staging.device, staging.post, operations.carrier = device(), post, find
    try:
        yield
    finally:
        staging.device, staging.post, operations.carrier = host, posting, carrying


def staged():
    """How many operations have been staged so far, with or without memory operations."""
    return sum(lane._last for lane in staging._lanes.values())


def both(training):
    """Whether a training has the same bits from GPU memory as from host memory."""
    expected, before = training(), staged()
    with gpu():
        found = training()
    assert staged() > before
    return found == expected


@pytest.mark.parametrize("world, nodes, policy, grads, options",
                         [(2, None, "bf16", "lossless;0.*=plain;1.up.*=int4", {}),
                          (2, None, "fp32", "lossless", {"accumulate": 2, "sync": False}),
                          (4, [0, 0, 1, 1], "fp16", "lossless", {}),
                          (4, [0, 0, 1, 1], "bf16", "ecdq:step=0.5", {"accumulate": 2})])
def test_training_has_the_same_bits(world, nodes, policy, grads, options):
    def check(rank):
        def training():
            model = thinwire.enable(make(policy=POLICIES[policy]), "delta", grads)
            return train(model, rank, **options)

        return both(training)

    assert all(ranks.run(world, check, nodes=nodes, **ranks.SLOW))


def test_what_a_step_asks_of_a_gpu():
    """Two gathers and a reduction of each group: docs/gpu_step.py counts on it."""

    def check(rank):
        model, blocks, steps = thinwire.enable(make(blocks=4), "delta", "lossless"), 4, 2
        with gpu(Counting):
            train(model, rank, steps)
        return dict(Counting.calls), 3 * blocks * steps, blocks * steps

    for calls, operations_, reductions in ranks.run(2, check, **ranks.SLOW):
        assert calls == {"copy": 2 * operations_, "write": operations_, "wait_for": operations_,
                         "record_event": 2 * operations_, "wait_event": 2 * operations_ + reductions}


def test_one_rank_without_a_gpu_and_one_with_an_old_driver():
    def check(rank):
        def training():
            return train(thinwire.enable(make(), "lossless", "lossless"), rank)

        expected = training()
        with contextlib.nullcontext() if rank == 0 else gpu(OldDriver if rank == 1 else Simulated):
            return training() == expected

    assert all(ranks.run(3, check, **ranks.SLOW))


def test_replicas():
    """HSDP with shards in the node: the all-reduce is staged."""

    def check(rank):
        def training():
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            return train(thinwire.enable(make(mesh=mesh), "delta", "lossless"), rank)

        return both(training)

    assert all(ranks.run(4, check, nodes=[0, 0, 1, 1], **ranks.SLOW))


@pytest.mark.parametrize("grads", ["lossless", "ecdq"])
def test_ddp(grads):
    def check(rank):
        def training():
            losses, weights = train_ddp(rank, thinwire.ddp_hook(grads), accumulate=2)
            return losses, [one.tolist() for one in weights]

        return both(training)

    assert all(ranks.run(2, check, **ranks.SLOW))


def test_who_posts_all_before_waiting_does_not_pin_all(monkeypatch):
    """As DDP does with its buckets: three operations hold memory, of which two may be over the limit."""
    held = most = 0

    class Measured(Simulated):
        def pinned(self, n_elems, dtype):
            nonlocal held, most
            held, made = held + 1, super().pinned(n_elems, dtype)
            most = max(most, held)
            weakref.finalize(made, freed)
            return made

    def freed():
        nonlocal held
        held -= 1

    def post(together, _ranks):
        rooms = [together[0].buffer]  # as a request, which keeps them until it has ended
        return types.SimpleNamespace(wait=lambda: rooms.pop().add_(1), coded=True)

    def make(room, _back):
        shape = types.SimpleNamespace(staged=True)
        return [types.SimpleNamespace(kind="all-reduce", of="", shape=shape, buffer=room)]

    monkeypatch.setattr(staging, "device", Measured())
    monkeypatch.setattr(staging, "_lanes", {})
    monkeypatch.setattr(staging, "_MOST_BYTES", 1)
    monkeypatch.setattr(operations, "post", post)
    buckets = [torch.full((100,), float(i)) for i in range(12)]
    posted = [staging.operate(make, one, one, None, 0) for one in buckets]
    for one in posted:
        one.wait()
    assert [one.tolist() for one in buckets] == [[i + 1.0] * 100 for i in range(12)]
    counts = 2  # of the lane, which stay
    assert counts + 2 <= most <= counts + 5  # the last ones' copies to the GPU may not have ended


def test_on_a_fast_link_they_are_staged_once():
    def check(rank):
        def training():
            return train(thinwire.enable(make(), "plain", "lossless"), rank, 4)

        expected = training()
        with gpu():
            assert training() == expected
        assert staged() == 2  # one for each group of parameters
        return set(thinwire.report()["reduce-scatter"].unquantized) == {operations.DECLINED}

    assert all(ranks.run(2, check, TW_COLL_MODEL="inter:beta=100gbit"))


@pytest.mark.parametrize("speed, n_without", [("1gbit", 0), ("100gbit", 0), ("100gbit", 1)])
def test_on_a_fast_link_replicas_of_gpu_memory_are_declined(speed, n_without):
    """n_without: ranks without a GPU; all ranks decline if one of them does."""

    def check(rank):
        def training():
            return train(thinwire.enable(make(), "delta", "plain"), rank, 4)

        expected = training()
        with contextlib.nullcontext() if rank < n_without else gpu():
            assert training() == expected
        return set(thinwire.report()["all-gather"].unkept)

    declined = {replicas.TOO_FAST} if speed == "100gbit" else set()
    assert ranks.run(2, check, TW_COLL_MODEL="inter:beta=" + speed) == [declined] * 2


@pytest.mark.parametrize("device", [Simulated, OldDriver])
def test_a_rank_that_dies_is_an_error_of_backward(device):
    def check(rank):
        with gpu(device):
            return fails_in_backward(thinwire.enable(make(blocks=4), "delta", "lossless"), rank)

    assert ranks.run(2, check, may_die=(1,), leave=False, TW_PEER_TIMEOUT="3s", **ranks.SLOW)[0]
