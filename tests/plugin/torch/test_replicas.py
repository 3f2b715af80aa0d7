"""replicas.py: gathers of weights that carry what has changed, under FSDP2, between processes over UCX."""

import gc

import pytest
import ranks
import thinwire
import torch
from device import Simulated
from models import BF16, WIDTH, Block, loss_of, make, train
from thinwire import inside
from thinwire.collectives import estimate, staging
from thinwire.fsdp import replicas
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

CHECKED = {"TW_HPZ_CHECK_STEPS": "2"}
OFFLOADED = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}


def sent():
    return thinwire.report()["all-gather"].sent_bytes


def bytes_of(action):
    """What this rank has sent to other nodes for gathers meanwhile."""
    before = sent() if "all-gather" in thinwire.report() else 0
    action()
    return sent() - before


def gathered(model):
    """What FSDP2 computes with, group by group."""
    found = []
    for group in inside.groups_of(model):
        group.lazy_init()
        group.unshard()
        group.wait_for_unshard()
        found += [param.unsharded_param.detach().clone() for param in group.fsdp_params]
        group.reshard()
    return found


def gathered_locals(model):
    return [one.to_local() if isinstance(one, DTensor) else one for one in gathered(model)]


def bits(tensors):
    return [one.contiguous().view(torch.uint8).clone() for one in tensors]


def same(one, other):
    """Bit for bit, NaN too."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(bits(one), bits(other)))


def enable(model, **kwargs):
    return thinwire.enable(model, "delta", "plain", **kwargs)


def twins(**kwargs):
    """(torch's own, over Thinwire): the same model twice."""
    return make(**kwargs), enable(make(**kwargs))


def locals_of(model):
    return [one.to_local() for one in model.parameters()]


@torch.no_grad()
def manual(model, rank):
    """An edit of shards that no optimizer made, on some ranks alone."""
    if rank % 2 == 0:
        for one in locals_of(model)[:3]:
            if one.numel():
                one.view(-1)[-1] += 1.0


@torch.no_grad()
def nans(model, _rank):
    for one in locals_of(model)[2:4]:
        one.fill_(float("nan"))
        if one.numel() > 1:
            one.view(-1)[0] = -0.0


def scaled_state(model, _rank):
    state = {name: one * 0.5 for name, one in model.state_dict().items()}
    model.load_state_dict(state)


def swapped(model, _rank):
    for one in locals_of(model):
        one.data.copy_(one.data.roll(1, 0) if one.numel() else one.data)


def one_step(model, rank):
    train(model, rank, 1)


def evaluated(model, rank):
    with torch.no_grad():
        loss_of(model, rank, 3)


POLICIES = {
    "bf16": BF16,
    "fp32": MixedPrecisionPolicy(),
    "fp16": MixedPrecisionPolicy(torch.float16, torch.float16),
}


@pytest.mark.parametrize("world, nodes, policy",
                         [(4, [0, 0, 1, 1], "bf16"), (3, None, "fp16"), (4, [0, 1, 0, 1], "fp32")])
def test_what_is_gathered_is_what_torch_gathers(world, nodes, policy):
    """After whatever has been done to the weights. Of three ranks, two have a GPU."""

    def check(rank):
        if world == 3 and rank > 0:
            staging.device = Simulated()
        plain, ours = twins(policy=POLICIES[policy])
        for change in (evaluated, one_step, evaluated, manual, one_step, scaled_state, swapped, one_step,
                       nans, evaluated):
            for model in (plain, ours):
                torch.manual_seed(1)
                change(model, rank)
            # The reductions may add in another order: the weights are made the same.
            for one, other in zip(locals_of(plain), locals_of(ours)):
                other.data.copy_(one.data)
            assert same(gathered(plain), gathered(ours)), change.__name__
        return thinwire.report()

    for found in ranks.run(world, check, nodes=nodes, **CHECKED):
        tally = found["all-gather"]
        assert not tally.unkept and tally.sent_bytes < tally.plain_bytes
        assert found.counted_bytes == tally.sent_bytes + found["reduce-scatter"].sent_bytes


def test_losses_are_those_of_plain():
    def losses(rank, weights):
        return train(thinwire.enable(make(), weights, "plain"), rank, 6, accumulate=2)

    def check(rank):
        expected = train(make(), rank, 6, accumulate=2)
        assert losses(rank, "plain") == losses(rank, "delta")
        return expected == losses(rank, "delta")

    assert all(ranks.run(2, check))
    ranks.run(4, lambda rank: losses(rank, "plain") == losses(rank, "delta") or pytest.fail("differ"),
              nodes=[0, 0, 1, 1])


def test_lossless_without_replicas():
    """Weights and gradients, in bf16 and fp32: the losses of plain, and of gloo on two ranks."""

    def check(rank):
        for policy in (BF16, MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16), MixedPrecisionPolicy()):
            expected = train(make(policy=policy), rank)
            found = train(thinwire.enable(make(policy=policy), "lossless", "lossless", min_bytes=0), rank)
            assert found == expected
            found = train(thinwire.enable(make(policy=policy), "delta", "lossless", min_bytes=0), rank)
            assert found == expected
        return True

    assert all(ranks.run(2, check))


def worst(values, others):
    return max((one.float() - other.float()).abs().max().item() for one, other in zip(values, others))


@torch.no_grad()
def moved(model, rank, by):
    generator = torch.Generator().manual_seed(rank)
    for one in locals_of(model):
        one += by * (2 * torch.rand(one.shape, generator=generator) - 1)


@pytest.mark.parametrize("world, nodes, policy", [(2, None, "bf16"), (4, [0, 0, 1, 1], "fp32")])
def test_changes_with_loss(world, nodes, policy):
    """All ranks compute with the same weights, which are not far from the shards; norms and biases are the
    shards. exact() is."""
    by, four = 0.005, 1 / 14 + 1 / 64  # of the largest change: half a step of int4, and its scale's rounding

    def check(rank):
        plain = make(policy=POLICIES[policy])
        ours = thinwire.enable(make(policy=POLICIES[policy]), "delta4", "plain", min_bytes=0)
        assert same(gathered(plain), gathered(ours))  # the first time
        found, costs = [], []
        for _ in range(3):
            moved(plain, rank, by), moved(ours, rank, by)
            costs.append(bytes_of(lambda: found.append(gathered(ours))))
            expected = gathered(plain)
            for one, other in zip(found[-1], expected):
                # what was left, too
                limit = 2 * by * four + (2**-9 if policy == "bf16" else 1e-6) if one.dim() > 1 else 0
                assert worst([one], [other]) <= limit
            assert worst(found[-1], expected) > 0
        again = bytes_of(lambda: found.append(gathered(ours)))
        assert same(found[-1], found[-2]) and again <= 4 * 80 < min(costs)
        with thinwire.unquantized():
            assert same(gathered(ours), gathered(plain))
        text = str(thinwire.report())
        assert "changes with loss: int4:block=128 " in text and "not quantized: norms and biases" in text
        assert ranks.logged("FSDP2 over thinwire: weights delta4:block=128, gradients plain") or rank
        return bits(found[0] + found[-1])

    first, *others = ranks.run(world, check, nodes=nodes, **CHECKED)
    assert all(same(first, one) for one in others)


def test_training_with_loss():
    """A third of the bytes of delta where weights are fp32, about the same losses."""

    def check(rank):
        def steps(weights):
            model, losses = thinwire.enable(make(POLICIES["fp32"]), weights, "plain", min_bytes=0), []
            optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
            gathered(model)
            taken = bytes_of(lambda: [one_loss(model, optimizer, losses, step) for step in range(8)])
            return losses, taken

        def one_loss(model, optimizer, losses, step):
            loss = loss_of(model, rank, step)
            loss.backward()
            optimizer.step(), optimizer.zero_grad()
            losses.append(loss.item())

        return [steps(weights) for weights in ("delta", "delta4", "delta2:hadamard")]

    for (losses, lossless), (four_losses, four), (two_losses, two) in ranks.run(2, check):
        assert two < four < 0.4 * lossless
        assert max(abs(one - other) for one, other in zip(losses, four_losses)) < 0.02 * losses[0]
        assert max(abs(one - other) for one, other in zip(losses, two_losses)) < 0.1 * losses[0]


def test_what_has_not_changed_costs_nothing():
    """The backward gather, further micro-batches, an evaluation, and what is frozen."""

    def check(rank):
        model = enable(make(blocks=3))
        for block in list(model)[:2]:
            block.requires_grad_(False)
        optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 1e-3)

        def passes(n):
            for part in range(n):
                loss_of(model, rank, part).backward()

        def step():
            optimizer.step()
            optimizer.zero_grad()

        first = bytes_of(lambda: passes(1))
        again = bytes_of(lambda: passes(1))
        step()
        one = bytes_of(lambda: passes(1))
        step()
        four = bytes_of(lambda: passes(4))
        looked = bytes_of(lambda: evaluated(model, rank))
        calls = thinwire.report()["all-gather"].calls
        return first, again, one, four, looked, calls

    for first, again, one, four, looked, calls in ranks.run(2, check):
        nothing = 60  # bytes a gather
        assert again <= 8 * nothing and looked <= 4 * nothing
        assert again < one < 0.4 * first
        assert four <= 1.2 * one + 24 * nothing, calls


class Adapted(nn.Module):
    """A LoRA by hand: a layer that is frozen, as parameters or as a buffer, which FSDP2 does not see, and
    adapters."""

    def __init__(self, n, rank, is_buffer):
        super().__init__()
        whole = nn.Linear(n, n, bias=False)
        if is_buffer:
            self.register_buffer("whole", whole.weight.detach())
        else:
            self.whole = nn.Parameter(whole.weight.detach(), requires_grad=False)
        self.down, self.up = nn.Linear(n, rank, bias=False), nn.Linear(rank, n, bias=False)

    def forward(self, x):
        return x + nn.functional.linear(x, self.whole.to(x.dtype)) + self.up(self.down(x))


def test_frozen_weights_cost_nothing():
    """A step of adapters beside frozen weights costs what the adapters alone would."""
    n, rank_of_adapters = 512, 16

    def steps(rank, is_buffer):
        torch.manual_seed(0)
        model = nn.Sequential(*[Adapted(n, rank_of_adapters, is_buffer) for _ in range(2)])
        for layer in model:
            fully_shard(layer, mp_policy=BF16)
        model = enable(fully_shard(model, mp_policy=BF16))
        optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], 1e-3)

        def step():
            torch.manual_seed(rank)
            model(torch.randn(4, n)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        return bytes_of(lambda: [step() for _ in range(3)])

    def check(rank):
        return steps(rank, False), steps(rank, True)

    for beside, alone in ranks.run(2, check):
        assert 3 * 1000 < alone and beside <= 1.05 * alone


def test_memory_is_said_again_only_where_it_grows():
    """A model after another one, which is in circles of references, as FSDP2's are; then one beside it."""
    def check(_rank):
        def used():
            model = thinwire.enable(fully_shard(nn.Linear(512, 512)))
            model(torch.ones(2, 512)).sum().backward()
            return model

        gc.disable()
        for _ in range(3):
            used()
        alone = len(ranks.logged("weights are kept in host memory"))
        _both = used(), used()
        return alone, ranks.logged("weights are kept in host memory")

    (alone, lines), _ = ranks.run(2, check)
    one, two = [float(line.split(": ")[1].split()[0]) for line in lines]
    assert alone == 1 and two == pytest.approx(2 * one, rel=0.1)


def test_memory_is_said_beforehand():
    def check(rank):
        train(enable(make()), rank, 1)
        return ranks.logged("weights are kept in host memory")

    for limit, text in (("0", "on each rank (TW_REPLICA_MEM bounds it)"),
                        ("60K", "at most 0.1 MB (TW_REPLICA_MEM)")):
        lines, nothing = ranks.run(2, check, TW_REPLICA_MEM=limit)
        assert len(lines) == 1 and lines[0].endswith(text) and nothing == []


def test_the_report_says_what_lossless_messages_took():
    """And, of gradients with loss, what they would have taken."""

    def check(rank):
        estimate.EVERY = 10
        train(thinwire.enable(make(), "plain", "int4", min_bytes=0), rank, 30)
        before = thinwire.report()["reduce-scatter"]
        says = "lossless would have been about" in str(thinwire.report())
        assert says == (before.samples == 6) == (rank == 0)
        train(thinwire.enable(make(), "plain", "lossless"), rank, 30)
        after = thinwire.report()["reduce-scatter"]
        taken = (after.sent_bytes - before.sent_bytes) / (after.plain_bytes - before.plain_bytes)
        assert before.samples == 0 or abs(before.lossless_bytes() / before.plain_bytes - taken) < 0.05
        gathered = thinwire.report()["all-gather"]
        train(thinwire.enable(make(), "lossless", "lossless"), rank)
        found = thinwire.report()
        sent, plain = [found["all-gather"].__dict__[name] - gathered.__dict__[name]
                       for name in ("sent_bytes", "plain_bytes")]
        assert sent < 0.95 * plain and not found["all-gather"].unquantized
        return found.counted_bytes == sum(found[kind].sent_bytes
                                          for kind in ("all-gather", "reduce-scatter", "column scales"))

    assert all(ranks.run(2, check, **ranks.SLOW))


def test_the_report_says_what_of_fp32_is_not_coded():
    def check(rank):
        train(enable(make()), rank, 2)
        before = thinwire.report()["all-gather"].unquantized.total()
        train(enable(make(MixedPrecisionPolicy())), rank, 2)
        return before, replicas.HALVES + " " in str(thinwire.report())

    assert ranks.run(2, check) == [(0, True)] * 2


def test_memory_is_freed_with_the_model():
    def check(rank):
        model, another = enable(make()), enable(make(seed=1))
        evaluated(model, rank), evaluated(another, rank), evaluated(model, rank)
        both = replicas.memory.taken
        numbers = sum(one.padded_sharded_param_size.numel() for group in inside.groups_of(model)
                      for one in group.fsdp_params)
        assert both == 2 * 2 * 3 * numbers  # nodes, models, bytes of a number of bf16
        del model
        gc.collect()
        assert replicas.memory.taken == both // 2
        evaluated(another, rank)
        again = enable(make())
        evaluated(again, rank)
        return replicas.memory.taken == both and same(gathered(again), gathered(make()))

    assert all(ranks.run(2, check))


def test_a_limit_on_memory():
    """Groups beyond it are gathered another way, as exactly; all ranks find the same."""

    def check(rank):
        plain, ours = twins(blocks=4)
        for model in (plain, ours):
            torch.manual_seed(0)
            train(model, rank, 2)
        assert same(gathered(plain), gathered(ours))
        return dict(thinwire.report()["all-gather"].unkept), replicas.memory.taken

    results = ranks.run(2, check, TW_REPLICA_MEM="60K")
    assert results[0] == results[1]
    unkept, taken = results[0]
    assert set(unkept) == {replicas.NO_ROOM} and 0 < taken <= 60 << 10
    said = ranks.run(2, lambda rank: (check(rank), str(thinwire.report()))[1], TW_REPLICA_MEM="60K")[0]
    assert "without replicas: beyond TW_REPLICA_MEM" in said


@pytest.mark.parametrize("differing", [{"TW_REPLICA_MEM": "1M"}, {"TW_WEIGHTS": "delta4"}])
def test_ranks_that_differ_use_torch(differing):
    def check(rank):
        expected = train(make(), rank)
        model = thinwire.enable(make(), grads="plain")  # the environment's weights: delta by default
        assert train(model, rank) == expected
        name = next(iter(differing))
        return name in str(thinwire.report()) and "all-gather" not in thinwire.report()

    assert all(ranks.run(2, check, differing={1: differing}))


def test_a_skipped_gather_is_an_error_that_names_the_group():
    def check(rank):
        if rank == 1:
            staging.device = Simulated()
        model = enable(make())
        evaluated(model, rank)
        try:
            for group in list(inside.groups_of(model))[rank:]:
                group.unshard()
                group.wait_for_unshard()
        except thinwire.ThinwireError as error:
            return str(error)
        return "no error"

    texts = ranks.run(2, check, leave=False)
    assert "no error" not in texts
    assert any("rank 1 gathers another unit" in one or "rank 0 gathers another unit" in one
               for one in texts), texts


@pytest.mark.parametrize("reshard", [False, 2])
def test_resharding(reshard):
    def check(rank):
        plain, ours = twins(reshard_after_forward=reshard)
        assert train(plain, rank, 1) == train(ours, rank, 1)
        manual(plain, rank), manual(ours, rank)
        for one, other in zip(locals_of(plain), locals_of(ours)):
            other.data.copy_(one.data)
        plain_losses, losses = train(plain, rank, 3), train(ours, rank, 3)
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(plain_losses), rtol=1e-3, atol=1e-3)
        return True

    assert all(ranks.run(4, check))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.block = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), Block()
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.block(self.first(x)))


def tied(offload):
    torch.manual_seed(0)
    model, policy = Tied(), OFFLOADED if offload else {}
    fully_shard(model.block, mp_policy=BF16, **policy)
    return fully_shard(model, mp_policy=BF16, **policy)


@pytest.mark.parametrize("offload", [False, True])
def test_tied_weights_and_offload(offload):
    """With the default, which loses nothing."""

    def check(rank):
        expected = train(tied(offload), rank)
        assert expected == train(enable(tied(offload)), rank)
        assert expected == train(thinwire.enable(tied(offload)), rank)
        found = thinwire.report()["reduce-scatter"]
        return found.sent_bytes < found.plain_bytes

    assert all(ranks.run(2, check, **ranks.SLOW))


def test_replicated_models():
    """HSDP: each set of replicas keeps its own."""

    def check(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        plain, ours = twins(mesh=mesh)
        train(ours, rank)
        assert not thinwire.report()["all-gather"].unkept
        for one, other in zip(locals_of(plain), locals_of(ours)):
            one.data.copy_(other.data)
        return same(gathered(plain), gathered(ours))

    assert all(ranks.run(4, check))


def parallel(mesh, policy):
    """Each layer split over two ranks, whose parts are sharded over the nodes."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(hidden=2 * WIDTH) for _ in range(2)])
    for block in model:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["shard"], mp_policy=BF16, **policy)
    return fully_shard(model, mesh=mesh["shard"], mp_policy=BF16, **policy)


@pytest.mark.parametrize("policy", [{}, OFFLOADED], ids=["here", "offloaded"])
def test_tensor_parallel(policy):
    """What is sharded over the nodes goes over Thinwire, the same bits; what a layer's ranks exchange is
    torch's own."""

    def check(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
        plain, ours = parallel(mesh, policy), enable(parallel(mesh, policy))
        default = thinwire.enable(parallel(mesh, policy))
        expected = train(plain, rank // 2, 4)
        assert expected == train(ours, rank // 2, 4) == train(default, rank // 2, 4)
        assert same(gathered_locals(plain), gathered_locals(default))
        assert not thinwire.report()["all-gather"].unkept
        assert thinwire.report()["reduce-scatter"].sent_bytes > 0
        return same(gathered_locals(plain), gathered_locals(ours))

    assert all(ranks.run(4, check, nodes=[0, 0, 1, 1], **CHECKED, **ranks.SLOW))


def test_compiled():
    """A compiled layer is gathered and reduced as others are."""

    def check(rank):
        plain, ours = twins()
        ours[0].compile(backend="eager")
        assert train(plain, rank, 2) == train(ours, rank, 2)
        found = thinwire.report()
        assert found["all-gather"].sent_bytes > 0 and found["reduce-scatter"].sent_bytes > 0
        assert not found["all-gather"].unkept
        return same(gathered(plain), gathered(ours))

    assert all(ranks.run(2, check))


class Mixed(nn.Module):
    """Two types in one group: FSDP2 gathers bytes."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.free = nn.Linear(WIDTH, 2 * WIDTH - 1)
        self.frozen.to(torch.bfloat16)

    def forward(self, x):
        return self.free(self.frozen(x.bfloat16()).float())[:, :WIDTH]


def test_mixed_types():
    def mixed():
        torch.manual_seed(0)
        return fully_shard(Mixed())

    def check(rank):
        plain, ours = mixed(), enable(mixed())
        assert train(plain, rank, 4) == train(ours, rank, 4)
        assert not thinwire.report()["all-gather"].unkept
        return same(gathered(plain), gathered(ours))

    assert all(ranks.run(2, check))


def test_unequal_nodes_and_one_node():
    def unequal(rank):
        plain, ours = twins()
        train(ours, rank, 1)
        for one, other in zip(locals_of(plain), locals_of(ours)):
            one.data.copy_(other.data)
        assert same(gathered(plain), gathered(ours))
        return dict(thinwire.report()["all-gather"].unkept)

    for found in ranks.run(3, unequal, nodes=[0, 0, 1]):
        assert set(found) == {replicas.UNEVEN}
    assert ranks.run(2, unequal, nodes=[0, 0]) == [{}, {}]
