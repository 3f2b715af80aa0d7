"""delta/verl.py: the checkpoint engine, with verl where it is installed, else with what it asks of verl."""

import asyncio
import concurrent.futures
import importlib.util
import sys
import types
import weakref

import pytest
import torch
from thinwire import delta
from thinwire.delta import link


def stand_ins():
    """What the engine imports, as verl 0.9.1 and ray have it."""

    async def ensure_async_iterator(weights):
        for one in weights:
            yield one

    made = {name: types.ModuleType(name) for name in (
        "ray", "ray.util", "verl", "verl.checkpoint_engine", "verl.workers", "verl.workers.rollout",
        "verl.workers.rollout.utils")}
    registered = {}
    made["ray"].util, made["verl"].__version__ = made["ray.util"], "0.9.1"
    engine = made["verl.checkpoint_engine"]
    engine.CheckpointEngine = object
    engine.CheckpointEngineRegistry = types.SimpleNamespace(
        register=lambda name: lambda kind: registered.setdefault(name, kind), get=registered.get)
    made["verl.workers.rollout.utils"].ensure_async_iterator = ensure_async_iterator
    return made


@pytest.fixture(scope="module")
def verl():
    """The engine's module, and verl's registry."""
    if importlib.util.find_spec("verl") is None:
        sys.modules |= stand_ins()
    from thinwire.delta import verl as engine

    return engine, engine.CheckpointEngineRegistry


class Job:
    """Two actors, and rollout workers on hosts; all run as verl's manager runs them."""

    def __init__(self, verl, monkeypatch, hosts, timeout_sec=60.0):
        engine, self.registry = verl
        self.monkeypatch, self.timeout_sec = monkeypatch, timeout_sec
        self.kind = self.registry.get("thinwire")
        self.util = engine.ray.util
        self.actors = [self.make("127.0.0.1", rank == 0) for rank in range(2)]
        self.workers = [self.make(host) for host in hosts]

    def make(self, host, is_master=False):
        self.monkeypatch.setattr(self.util, "get_node_ip_address", lambda: host, raising=False)
        return self.kind(bucket_size=1 << 20, is_master=is_master, timeout_sec=self.timeout_sec)

    def connect(self, pool):
        everybody = [*self.actors, *self.workers]
        both = self.kind.build_topology(len(self.actors), len(self.workers),
                                        [one.prepare() for one in everybody])
        each = [{name: values[i] for name, values in kwargs.items()}
                for kwargs in both for i in range(len(kwargs["rank"]))]
        for one in [pool.submit(one.init_process_group, **kwargs) for one, kwargs in zip(everybody, each)]:
            one.result(60)

    def update(self, weights):
        """Returns what each worker got."""

        async def received(worker):
            return {name: one.clone() async for name, one in worker.receive_weights(global_steps=1)}

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            self.connect(pool)
            sending = [pool.submit(asyncio.run, one.send_weights(iter(weights.items())))
                       for one in self.actors]
            receiving = [pool.submit(asyncio.run, received(one)) for one in self.workers]
            found = [one.exception(60) or one.result() for one in receiving]
            for one in sending:
                one.result(60)
        for one in [*self.actors, *self.workers]:
            one.finalize()
        return found


def changed(weights):
    """After a step: about one number in a hundred is another one."""
    return {name: torch.where(torch.rand(one.shape) < 0.01, one * 1.01, one) for name, one in weights.items()}


def initial():
    torch.manual_seed(0)
    return {"embed": torch.randn(500, 64).bfloat16(), "norm": torch.ones(64),
            "up": torch.randn(64, 300).half()}


def same(found, weights):
    return found.keys() == weights.keys() and all(
        torch.equal(found[name].view(torch.uint8), one.view(torch.uint8)) for name, one in weights.items())


@pytest.fixture
def lengths(verl, monkeypatch):
    """Lengths of what all send, of messages alone."""
    sent, send = [], link.Link.send

    def noting(self, data):
        if len(data) > 1 << 10:
            sent.append(len(data))
        send(self, data)

    monkeypatch.setattr(link.Link, "send", noting)
    return sent


@pytest.mark.parametrize("sealed", ["n", "y"])
def test_workers_follow(verl, monkeypatch, lengths, sealed):
    """Three workers on two hosts: a message goes once to each host, and once from worker to worker."""
    monkeypatch.setenv("TW_NET_ENCRYPT", sealed)
    job, weights = Job(verl, monkeypatch, ["127.0.0.1", "127.0.0.2", "127.0.0.1"]), initial()
    n_bytes = sum(one.nbytes for one in weights.values())
    for step in range(3):
        lengths.clear()
        assert all(same(found, weights) for found in job.update(weights))
        assert len(lengths) == 3 and len(set(lengths)) == 1
        assert lengths[0] < (1.1 if step == 0 else 0.2) * n_bytes
        weights = changed(weights)
    links = [one for engine in [*job.actors, *job.workers] for one in [*engine._links, engine._source] if one]
    assert [one._sealed for one in links] == [sealed == "y"] * 6
    _, rollout = job.kind.build_topology(2, 3, [one.prepare() for one in [*job.actors, *job.workers]])
    sources = rollout["source"]
    assert sources == [job.actors[0].prepare()] * 2 + [job.workers[0].prepare()]


def test_a_worker_that_comes_later(verl, monkeypatch, lengths):
    """It gets all weights, from the worker on its host; the others what has changed."""
    job, weights = Job(verl, monkeypatch, ["127.0.0.1"]), initial()
    job.update(weights)
    job.workers.append(job.make("127.0.0.1"))
    weights = changed(weights)
    lengths.clear()
    assert all(same(found, weights) for found in job.update(weights))
    first, second = lengths
    assert first < 0.2 * second


def test_after_a_break_all_is_as_before(verl, monkeypatch):
    """One worker's connection breaks: it says so; the next update connects anew and brings all up to date."""
    job, weights = Job(verl, monkeypatch, ["127.0.0.1", "127.0.0.2"]), initial()
    job.update(weights)
    job.workers[1]._source.close()
    weights = changed(weights)
    with pytest.raises(OSError):
        job.update(weights)
    weights = changed(weights)
    assert all(same(found, weights) for found in job.update(weights))


def test_tensors_of_the_stream_are_not_shared(verl, monkeypatch):
    """What a worker is given is its own copy of the newest weights; a later update does not fail for it."""
    job, weights = Job(verl, monkeypatch, ["127.0.0.1"]), initial()
    [found] = job.update(weights)
    assert isinstance(job.workers[0]._subscriber, delta.Subscriber) and same(found, weights)
    weights["norm"].zero_()  # the trainer goes on in place
    [found] = job.update(weights)
    assert same(found, weights)


def test_weights_are_gathered_one_by_one(verl, monkeypatch):
    """Actor rank 0 has one beside the publisher's; all are gathered though the first link breaks."""
    job, weights = Job(verl, monkeypatch, ["127.0.0.1"]), {str(i): torch.ones(1 << 21) for i in range(32)}
    alive, most, n_made = weakref.WeakSet(), [], 0

    class Weights(dict):
        def items(self):
            nonlocal n_made
            for name, one in super().items():
                made = one.clone()
                alive.add(made)
                most.append(len(alive))
                n_made += 1
                yield name, made

    [found] = job.update(Weights(weights))
    assert same(found, weights) and max(most) < 24 and n_made == 2 * len(weights)
    job.workers[0]._source.close()
    with pytest.raises(OSError):
        job.update(Weights(weights))
    assert n_made == 4 * len(weights)
