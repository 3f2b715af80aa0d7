"""delta/sharded.py: shards of real ranks, put together where the weights are whole, or sharded otherwise."""

import functools

import pytest
import torch
import torch.distributed as dist
from ranks import run
from thinwire import delta
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

N_STEPS = 3


def model():
    """Rows that neither two nor four ranks divide."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 13), nn.ReLU(), nn.Linear(13, 10), nn.LayerNorm(10)).bfloat16()


def whole_of(weights):
    return {name: (one.full_tensor() if isinstance(one, DTensor) else one).clone()
            for name, one in weights.items()}


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8).tolist()


def trained(make, rank):
    """Versions of a sharded model: each rank's messages, and what the whole weights were."""
    made = make()
    state = made.state_dict() if isinstance(made, nn.Module) else made
    publisher, versions = delta.Publisher(delta.shards(state)), [whole_of(state)]
    messages = publisher.since(None)
    for step in range(N_STEPS - 1):
        with torch.no_grad():
            for one in state.values():
                local = one.to_local() if isinstance(one, DTensor) else one
                local.mul_(1 + 0.01 * (step + 1))
        messages.append(publisher.publish(delta.shards(state)))
        versions.append(whole_of(state))
    return messages, versions, sorted(delta.shards(state))


def fsdp():
    made = model()
    fully_shard(made)
    return made


def hsdp():
    made = model()
    fully_shard(made, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))
    return made


def fsdp_and_tp():
    mesh, made = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor")), model()
    parallelize_module(made, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(made, mesh=mesh["data"])
    return made


def experts():
    """Experts over one dimension of the mesh, their columns over the other; and a buffer that is on all."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("columns", "experts"))
    torch.manual_seed(0)
    whole = torch.randn(3, 7, 5)
    return {"up": distribute_tensor(whole, mesh, [Shard(2), Shard(0)]), "scale": torch.full((3,), 0.5),
            "one": distribute_tensor(torch.tensor(2.0), mesh, [Replicate(), Replicate()]),
            "few": distribute_tensor(torch.ones(1), mesh, [Shard(0), Replicate()])}


def by_version(found):
    """[[a message of each rank], ...], and the versions."""
    assert all(
        bits(mine[name]) == bits(one) for _, versions, _ in found for i, mine in enumerate(versions)
        for name, one in found[0][1][i].items())
    return list(zip(*(messages for messages, _, _ in found))), found[0][1]


def same(weights, version):
    return weights.keys() == version.keys() and all(
        bits(weights[name]) == bits(one) for name, one in version.items())


@functools.cache
def job(make):
    return run(4, lambda rank: trained(make, rank))


@pytest.mark.parametrize("make", [fsdp, hsdp, fsdp_and_tp, experts])
def test_shards_become_the_whole(make):
    """In the receiver's own memory; no rank sends what another has sent."""
    found = job(make)
    messages, versions = by_version(found)
    names = [name for _, _, sent in found for name in sent]
    assert len(set(names)) == len(names)
    weights = {name: torch.zeros_like(one) for name, one in versions[0].items()}
    places = {name: one.data_ptr() for name, one in weights.items()}
    subscriber = delta.ShardsSubscriber(weights)
    assert subscriber.versions == []
    for number, (one, version) in enumerate(zip(messages, versions), 1):
        subscriber.apply(one)
        assert same(weights, version) and {name: one.data_ptr() for name, one in weights.items()} == places
        assert [have.number for have in subscriber.versions] == [number] * 4
        if number == N_STEPS:
            assert sum(map(len, one)) < sum(map(len, messages[0])) + 4000


def test_strided_shards_are_what_fsdp_has():
    """With tensor parallelism: rows 0 to 6 and 7 to 12 are the tensor's halves, and FSDP2 halves them."""
    found = job(fsdp_and_tp)
    rows = [next(name for name in sent if name.startswith("0.weight")) for _, _, sent in found]
    assert rows == ["0.weight[0:4,0:10]", "0.weight[7:10,0:10]", "0.weight[4:7,0:10]", "0.weight[10:13,0:10]"]


def receive(rank, messages, versions):
    """By three ranks that split columns, where rows were split."""
    mesh = init_device_mesh("cpu", (3,))
    weights = {name: distribute_tensor(torch.zeros_like(one), mesh, [Shard(one.dim() - 1)])
               for name, one in versions[0].items()}
    subscriber = delta.ShardsSubscriber(weights)
    for one, version in zip(messages, versions):
        subscriber.apply(one)
        assert same(whole_of(weights), version)
    return True


def test_receivers_that_are_sharded_otherwise():
    messages, versions = by_version(job(fsdp_and_tp))
    assert run(3, lambda rank: receive(rank, messages, versions)) == [True] * 3


@pytest.fixture
def following():
    """A subscriber after the first messages, its weights, the next messages, the versions."""
    messages, versions = by_version(job(fsdp))
    weights = {name: torch.zeros_like(one) for name, one in versions[0].items()}
    subscriber = delta.ShardsSubscriber(weights)
    subscriber.apply(messages[0])
    return subscriber, weights, messages, versions


def test_nothing_changes_unless_all_messages_are_right(following):
    subscriber, weights, messages, versions = following
    broken = [
        (messages[1][:3] + (messages[1][3][:-10],), "rank 3: the message ends too early"),
        (messages[2], r"rank 0: the message is for version 2 \(.*\), these weights are 1"),
        (messages[1][:3] + (messages[2][3],), "rank 3's message leads to version 3, rank 0's to 2"),
        (messages[1][:3], "0: the message is for version 1 .* of no version|not the whole of it"),
        (messages[0][:3], "not the whole of it, each element once"),
        (messages[0][:3] + (messages[0][2],), "not the whole of it, each element once"),
    ]
    for one, text in broken:
        with pytest.raises(delta.DeltaError, match=text):
            subscriber.apply(one)
        assert same(weights, versions[0])
        assert [have.number for have in subscriber.versions] == [1] * 4
    weights["3.bias"][-1] += 1  # no longer what the version says
    with pytest.raises(delta.DeltaError, match=r"rank \d: 3\.bias\[\d+:10\]: the old values"):
        subscriber.apply(messages[1])
    weights["3.bias"].copy_(versions[0]["3.bias"])
    assert same(weights, versions[0])
    subscriber.apply(messages[1])
    assert same(weights, versions[1])
    subscriber.apply(messages[0])  # all weights are taken from any version
    assert same(weights, versions[0])


def test_weights_of_another_kind_are_refused(following):
    _, weights, messages, _ = following
    for other, text in ((weights | {"more": torch.ones(3)}, "^more: the ranks' shards are not the whole"),
                        (weights | {"0.bias": torch.zeros(12)}, r"^0\.bias\[.*here it is F32\[12\]"),
                        ({"0.bias": weights["0.bias"]}, "there is no such tensor here")):
        with pytest.raises(delta.DeltaError, match=text):
            delta.ShardsSubscriber(other).apply(messages[0])
    with pytest.raises(delta.DeltaError, match="^a: not a name of a shard"):
        delta.ShardsSubscriber({"a": torch.ones(2)}).apply(delta.Publisher({"a": torch.ones(2)}).since(None))


def test_a_shard_that_gets_another_type_is_refused():
    weights = {"a": torch.zeros(6), "b": torch.zeros(2)}
    publisher = delta.Publisher({"a[0:6]": torch.ones(6), "b[0:2]": torch.ones(2)})
    subscriber = delta.ShardsSubscriber(weights)
    subscriber.apply(publisher.since(None))
    data = publisher.publish({"a[0:6]": torch.ones(6).double(), "b[0:2]": torch.zeros(2)})
    with pytest.raises(delta.DeltaError, match=r"^rank 0: a\[0:6\]: the message has it as F64, .* is F32"):
        subscriber.apply([data])
    assert weights["b"].tolist() == [1, 1] and subscriber.versions[0].number == 1


def unsendable(rank):
    mesh = init_device_mesh("cpu", (2,))
    partial = DTensor.from_local(torch.ones(3), mesh, [Partial()])
    with pytest.raises(TypeError, match="^sum: no parts of the whole: its placements are .*Partial"):
        delta.shards({"sum": partial})
    with pytest.raises(TypeError, match=r"a DTensor; give shards\(\)"):
        delta.Publisher({"sum": partial})
    with pytest.raises(TypeError, match=r"^uneven: a rank has \[.*\] of it"):
        delta.shards({"uneven": DTensor.from_local(torch.ones(1 + 2 * rank), mesh, [Shard(0)],
                                                   shape=(4,), stride=(1,))})
    return dist.get_rank()


def test_what_is_no_part_of_a_whole_is_refused():
    assert run(2, unsendable) == [0, 1]


def test_without_a_job_all_is_sent():
    assert list(delta.shards({"a": torch.ones(2, 3), "empty": torch.ones(0)})) == ["a[0:2,0:3]"]


# What two ranks train, by FSDP2, and what two serve by tensor parallelism, as vLLM's layers have it.
HIDDEN, Q, KV, UP = 12, 16, 4, 20
FUSED = {"qkv_proj": {"q_proj": Q, "k_proj": KV, "v_proj": KV},
         "gate_up_proj": {"gate_proj": UP, "up_proj": UP}}


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.mlp, self.norm = nn.Module(), nn.Module(), nn.LayerNorm(HIDDEN)
        for name, rows in FUSED["qkv_proj"].items():
            setattr(self.attn, name, nn.Linear(HIDDEN, rows))
        self.attn.o_proj = nn.Linear(Q, HIDDEN, bias=False)
        for name, rows in FUSED["gate_up_proj"].items():
            setattr(self.mlp, name, nn.Linear(HIDDEN, rows, bias=False))


def for_a_server():
    torch.manual_seed(0)
    made = Trained().bfloat16()
    fully_shard(made)
    return made


def served(rank, whole):
    """What a rank of tensor parallelism computes with: its heads' rows of q, k and v, one after the other,
    and so on."""
    def half(one, dim):
        n = one.shape[dim] // 2
        return one.narrow(dim, rank * n, n)

    found = {name: half(one, 1).contiguous() if "o_proj" in name else one
             for name, one in whole.items() if "o_proj" in name or "norm" in name}
    for fused, parts in FUSED.items():
        first, *_ = parts
        for name in [name for name in whole if first in name]:
            found[name.replace(first, fused)] = torch.cat(
                [half(whole[name.replace(first, part)], 0) for part in parts])
    return found


def serve_fused(rank, messages, versions):
    mesh, mine = init_device_mesh("cpu", (2,)), {name: torch.zeros_like(one)
                                                 for name, one in served(rank, versions[0]).items()}
    weights = {name: DTensor.from_local(one, mesh, [Shard(int("o_proj" in name))]) if "proj" in name else one
               for name, one in mine.items()}
    assert "attn.qkv_proj.bias" in weights and weights["mlp.gate_up_proj.weight"].shape == (2 * UP, HIDDEN)
    subscriber = delta.ShardsSubscriber(delta.unfused(weights, FUSED))
    for one, version in zip(messages, versions):
        subscriber.apply(one)
        assert same(mine, served(rank, version))
    return True


def test_a_server_whose_tensors_are_fused():
    """q, k and v, and gate and up, in one tensor each, of which a rank has its heads' rows of each."""
    messages, versions = by_version(run(2, lambda rank: trained(for_a_server, rank)))
    assert run(2, lambda rank: serve_fused(rank, messages, versions)) == [True] * 2


def test_one_that_has_all_of_a_fused_tensor():
    parts = {"q_proj": torch.randn(6, 4), "k_proj": torch.randn(2, 4), "v_proj": torch.randn(2, 4)}
    publisher = delta.Publisher({"a.%s.weight" % name: one for name, one in parts.items()})
    fused = torch.zeros(10, 4)
    rows = {name: one.shape[0] for name, one in parts.items()}
    subscriber = delta.Subscriber(delta.unfused({"a.qkv.weight": fused}, {"qkv": rows}))
    subscriber.apply(publisher.since(None)[0])
    assert bits(fused) == bits(torch.cat(list(parts.values())))


def test_rows_that_are_no_parts_are_refused():
    for rows in ({"q": 3, "k": 2}, {"q": 7}):
        with pytest.raises(TypeError, match=r"^a\.qkv\.weight: its 6 rows on 1 ranks are not parts of"):
            delta.unfused({"a.qkv.weight": torch.ones(6, 2)}, {"qkv": rows})


def test_a_head_is_read_once(following, monkeypatch):
    subscriber, weights, messages, versions = following
    read, n_read = delta.message.read_head, []
    monkeypatch.setattr(delta.message, "read_head", lambda take: n_read.append(1) or read(take))
    subscriber.apply(messages[1])
    assert same(weights, versions[1]) and len(n_read) == len(messages[1])
