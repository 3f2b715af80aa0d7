"""delta: streams of versions, from one who trains to those that serve."""

import os
import pathlib
import struct
import subprocess
import sys
import weakref

import pytest
import torch
from thinwire import delta
from thinwire.delta import chunks, message
from torch import nn

ROOT = pathlib.Path("examples/weight_sync")


def state(seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = {"embed": 0.02 * torch.randn(80, 64, generator=generator).bfloat16(),
             "norm": torch.randn(64, generator=generator), "steps": torch.tensor(seed)}
    return found | {"half": found["embed"][:40].half()}


def stepped(weights, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {name: (one.double() + 1e-4 * torch.randn(one.shape, generator=generator)).to(one.dtype)
            if one.is_floating_point() else one + 1 for name, one in weights.items()}


def copy_of(weights):
    return {name: one.clone() for name, one in weights.items()}


def same(a, b):
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and torch.equal(
        a[name].reshape(-1).view(torch.uint8), b[name].reshape(-1).view(torch.uint8)) for name in a)


def published(n=3, keep=8):
    """A publisher after n versions, and what the weights were in each."""
    versions = [state()]
    publisher = delta.Publisher(versions[0], keep=keep)
    for i in range(n - 1):
        versions.append(stepped(versions[-1], seed=i))
        publisher.publish(versions[-1])
    return publisher, versions


def follow(subscriber, publisher):
    return [subscriber.apply(data) for data in publisher.since(subscriber.version)]


def test_a_subscriber_follows_in_its_own_memory():
    publisher, versions = published(1)
    subscriber = delta.Subscriber({name: torch.zeros_like(one) for name, one in versions[0].items()})
    places = {name: one.data_ptr() for name, one in subscriber.weights.items()}
    assert follow(subscriber, publisher) == [True] and same(subscriber.weights, versions[0])
    for i in range(3):
        new = stepped(versions[0], seed=i)
        assert publisher.publish(new) == publisher.since(subscriber.version)[0]
        assert follow(subscriber, publisher) == [True] and same(subscriber.weights, new)
        assert subscriber.version == publisher.version and publisher.version.number == i + 2
    assert follow(subscriber, publisher) == []
    assert {name: one.data_ptr() for name, one in subscriber.weights.items()} == places


def test_who_is_behind_gets_what_it_lacks():
    publisher, versions = published(6, keep=3)
    full, small = len(publisher.since(None)[0]), len(publisher.since(publisher.version)) == 0
    assert small and full > 5000
    bases = [message.read_head(message.taker(data)).versions for data in publisher.since(None)]
    assert bases == [(None, publisher.version)]
    subscriber = delta.Subscriber(copy_of(versions[2]))
    subscriber.version = message.read_head(message.taker(publisher._messages[0][1])).versions[0]
    assert subscriber.version.number == 3
    assert follow(subscriber, publisher) == [True] * 3 and same(subscriber.weights, versions[5])
    # too far behind: all weights
    subscriber = delta.Subscriber(copy_of(versions[1]))
    subscriber.version = delta.Version(2, "0" * 16)
    assert follow(subscriber, publisher) == [True] and same(subscriber.weights, versions[5])
    # the same number of another run
    other = delta.Publisher(stepped(state(), seed=7))
    assert len(other.since(delta.Version(1, publisher.version.check))) == 1


def test_weights_that_are_made_one_after_the_other():
    """No more than one is alive beside the publisher's own; an end in the middle changes nothing."""
    alive, most = weakref.WeakSet(), []

    def made(weights, n=None):
        for name, one in list(weights.items())[:n]:
            new = one.clone()
            alive.add(new)
            most.append(sum(other.nbytes for other in alive))
            yield name, new
        if n is not None:
            raise KeyError("no more")

    first, second = ({str(i): torch.full((1 << 20,), 0.01 * (i + seed)).bfloat16() for i in range(24)}
                     for seed in (0, 1))
    publisher = delta.Publisher(made(first), threads=1)
    subscriber = delta.Subscriber({})
    follow(subscriber, publisher)
    with pytest.raises(KeyError):
        publisher.publish(made(second, 12))
    assert publisher.since(subscriber.version) == [] and publisher.version.number == 1
    with pytest.raises(TypeError, match="^3: given twice"):
        publisher.publish([("3", first["3"]), ("3", first["3"])])
    publisher.publish(made(second))
    assert follow(subscriber, publisher) == [True] and same(subscriber.weights, second)
    assert 0 < max(most) < sum(one.nbytes for one in first.values()) / 2


def test_another_versions_message_is_refused():
    publisher, versions = published(3)
    first, second = publisher.since(publisher._messages[0][0])
    subscriber = delta.Subscriber(copy_of(versions[0]))
    with pytest.raises(delta.DeltaError, match=r"1 \([0-9a-f]{16}\), these weights are of no version"):
        subscriber.apply(first)
    subscriber.version = publisher._messages[0][0]
    with pytest.raises(delta.DeltaError, match=r"for version 2 \(.*\), these weights are 1 \("):
        subscriber.apply(second)
    with pytest.raises(delta.DeltaError, match="names no versions"):
        subscriber.apply(delta.encode(versions[0], versions[1]))
    assert same(subscriber.weights, versions[0]) and subscriber.version.number == 1
    assert subscriber.apply(first) and not subscriber.apply(first)
    assert same(subscriber.weights, versions[1])


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(message.Head.__init__, "__defaults__", (500, None))


def test_what_is_spoilt_or_breaks_off_changes_nothing(small_chunks):
    publisher, versions = published(2)
    (data,) = publisher.since(publisher._messages[0][0])
    n_head = struct.unpack_from("<Q", data, 8)[0] + 24
    broken = [data[:n] for n in (0, 30, n_head, n_head + 20, len(data) // 2, len(data) - 1)]
    broken += [data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :]
               for n in (n_head + 6, len(data) // 2, len(data) - 1)]
    subscriber = delta.Subscriber(copy_of(versions[0]))
    subscriber.version = publisher._messages[0][0]
    for one in (*broken, data + b"x"):
        with pytest.raises(delta.DeltaError):
            subscriber.apply(one)
        assert same(subscriber.weights, versions[0]) and subscriber.version.number == 1
    # weights that are not what the version says: found in the last tensor, before the first is written
    subscriber.weights["half"].view(-1)[-1] += 1
    with pytest.raises(delta.DeltaError, match="^half: the old values"):
        subscriber.apply(data)
    subscriber.weights["half"].copy_(versions[0]["half"])
    assert same(subscriber.weights, versions[0]) and subscriber.apply(data)


def forged(data):
    """A message whose last chunk has a payload that does not decode, under checksums that are right."""
    take, at = message.taker(data), 24 + struct.unpack_from("<Q", data, 8)[0]
    for chunk, written in message.read_chunks(message.read_head(take), take):
        begin, at = at, at + chunks.HEAD.size + len(written.table) + len(written.payload)
    payload = written.payload[:-40] + bytes(40)
    assert written.form == chunks.DELTA and payload != written.payload and len(chunk) == 1
    check = chunks._check(written.form, written.table, payload)
    return data[:begin] + chunks.HEAD.pack(written.form, len(payload), check) + written.table + payload


def test_a_forged_message_leaves_no_version():
    publisher, versions = published(2)
    data = forged(publisher.since(publisher._messages[0][0])[0])
    old = copy_of(versions[0])
    with pytest.raises(delta.DeltaError, match="does not decode") as caught:
        delta.decode(old, data)
    assert not isinstance(caught.value, delta.TornError) and same(old, versions[0])
    subscriber = delta.Subscriber(old)
    subscriber.version = publisher._messages[0][0]
    with pytest.raises(delta.TornError, match="some old weights are overwritten"):
        subscriber.apply(data)
    assert subscriber.version is None and not same(old, versions[0])
    assert follow(subscriber, publisher) == [True] and same(subscriber.weights, versions[1])


def test_tensors_come_and_go():
    publisher, versions = published(1)
    subscriber = delta.Subscriber(copy_of(versions[0]))
    follow(subscriber, publisher)
    new = stepped(versions[0]) | {"more": torch.ones(3)}
    new["renamed"] = new.pop("half")
    publisher.publish(new)
    assert follow(subscriber, publisher) == [True] and same(subscriber.weights, new)
    # all weights into memory of other shapes: what fits is used
    other = delta.Subscriber({"embed": torch.zeros(80, 64).bfloat16(), "norm": torch.zeros(3)})
    kept = other.weights["embed"]
    assert follow(other, publisher) == [True] and same(other.weights, new)
    assert other.weights["embed"] is kept


def test_a_tensor_that_gets_another_type_is_refused():
    """Its own memory could not follow it. Memory that the subscriber was not given may be of any type."""
    publisher, versions = published(1)
    subscriber, free = delta.Subscriber(copy_of(versions[0])), delta.Subscriber({})
    follow(subscriber, publisher)
    follow(free, publisher)
    version, new = subscriber.version, stepped(versions[0])
    new["norm"] = new["norm"].double()
    publisher.publish(new)
    with pytest.raises(delta.DeltaError, match="^norm: the message has it as F64, and here it is F32"):
        follow(subscriber, publisher)
    assert same(subscriber.weights, versions[0]) and subscriber.version == version
    follow(free, publisher)
    assert same(free.weights, new)


def test_a_model_is_served_with_all_weights_and_with_changes():
    torch.manual_seed(0)
    trained, served = nn.Linear(64, 64).bfloat16(), nn.Linear(64, 64).bfloat16()
    publisher, subscriber = delta.Publisher(trained.state_dict()), delta.Subscriber(served.state_dict())
    batch = torch.randn(3, 64).bfloat16()
    for _ in range(3):
        follow(subscriber, publisher)
        assert torch.equal(trained(batch), served(batch))
        with torch.no_grad():
            trained.weight.add_(1e-3)
        publisher.publish(trained.state_dict())
    assert not torch.equal(trained(batch), served(batch))


def test_a_message_is_applied_in_little_memory():
    """To 64 MB of weights in two tensors, by a process that may have no more than a part of them beside."""
    program = """
import pathlib, torch
from thinwire import delta
def peak(): return int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10
n = 1 << 24
old = {name: torch.full((n,), 0.02).bfloat16() for name in "ab"}
subscriber = delta.Subscriber(old, threads=1)
subscriber.version, new = delta.Version(1, "0" * 16), delta.Version(2, "1" * 16)
data = delta.encode(old, {name: one + 0.001 for name, one in old.items()}, 1,
                    versions=(subscriber.version, new))
small = {"a": torch.ones(3)}
delta.decode(small, delta.encode(small, {"a": torch.zeros(3)}, 1), threads=1)  # what is loaded once
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = peak()
assert subscriber.apply(data)
print(peak() - before, len(data), 4 * n)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    more, message_bytes, whole = map(int, done.stdout.split())
    assert more < whole / 4 and message_bytes < whole / 4


def test_the_example():
    """Sealed: nothing else differs."""
    pytest.importorskip("transformers")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TW_NET_ENCRYPT": "y"}
    done = subprocess.run([sys.executable, str(ROOT / "trainer.py"), "--steps", "4"], capture_output=True,
                          text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["version %d" % n for n in range(1, 6)]
    assert all("logits equal, bit for bit" in line for line in lines)
    sizes = [int(line.split(": ")[1].split()[0]) for line in lines]
    assert max(sizes[1:]) < sizes[0]
