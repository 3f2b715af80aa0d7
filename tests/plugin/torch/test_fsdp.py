"""fsdp.py: FSDP2 over Thinwire, between processes over UCX."""

import hashlib

import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire import engine, fsdp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
WIDTH = 48


class Block(nn.Module):
    """Sizes that no number of ranks divides."""

    def __init__(self, n=WIDTH):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 2 * n - 1), nn.Linear(2 * n - 1, n)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def make(policy=BF16, blocks=2, mesh=None, seed=0, **kwargs):
    torch.manual_seed(seed)
    model = nn.Sequential(*[Block() for _ in range(blocks)])
    for block in model:
        fully_shard(block, mp_policy=policy, mesh=mesh, **kwargs)
    return fully_shard(model, mp_policy=policy, mesh=mesh, **kwargs)


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, WIDTH, generator=generator)


def loss_of(model, rank, step):
    x = batch(rank, step)
    return (model(x).float() - x.roll(1, 1)).square().mean()


def train(model, rank, steps=3, accumulate=1, sync=True, first=0):
    """Losses of some steps."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for step in range(first, first + steps):
        for part in range(accumulate):
            if not sync:
                model.set_requires_gradient_sync(part == accumulate - 1)
            loss = loss_of(model, rank, 10 * step + part)
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def weights(model):
    """All parameters, whole, as torch itself gathers them."""
    return [one.full_tensor().clone() if hasattr(one, "full_tensor") else one for one in model.parameters()]


def digest(tensors):
    return hashlib.sha256(b"".join(one.detach().float().numpy().tobytes() for one in tensors)).hexdigest()


def both(rank, prepare=lambda model: model, **kwargs):
    """(gloo's, Thinwire's exact) losses and weights of the same training."""
    options = {name: kwargs.pop(name) for name in ("policy", "mesh", "reshard_after_forward") if name in kwargs}
    results = []
    for over_thinwire in (False, True):
        model = prepare(make(**options))
        if over_thinwire:
            thinwire.enable(model, "exact", "exact")
        losses = train(model, rank, **kwargs)
        results.append((losses, digest(weights(model)), weights(model)))
    assert thinwire.report()["all-gather"].calls > 0
    return results


def bit_equal(rank, **kwargs):
    (losses, bits, _), (own_losses, own_bits, _) = both(rank, **kwargs)
    return losses == own_losses and bits == own_bits


def close(rank, tolerance=1e-5, **kwargs):
    (losses, _, whole), (own_losses, _, own_whole) = both(rank, **kwargs)
    torch.testing.assert_close(torch.tensor(own_losses), torch.tensor(losses), rtol=tolerance, atol=tolerance)
    for mine, theirs in zip(own_whole, whole):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)
    return True


def test_exact_is_gloo_to_the_last_bit_on_two_ranks():
    def check(rank):
        assert bit_equal(rank)
        assert bit_equal(rank, accumulate=2)
        assert bit_equal(rank, accumulate=2, sync=False)
        assert bit_equal(rank, policy=MixedPrecisionPolicy())
        assert bit_equal(rank, policy=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16))
        assert bit_equal(rank, reshard_after_forward=False)
        return True

    assert all(ranks.run(2, check))


@pytest.mark.parametrize("world", [3, 4])
def test_exact_is_close_to_gloo_on_more(world):
    assert all(ranks.run(world, lambda rank: close(rank)))


def test_divide_factors():
    def factor(model):
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(4.0)
        return model

    def summed(model):
        for module in model.modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                module.set_force_sum_reduction_for_comms(True)
        return factor(model)

    def fp16(rank):
        return bit_equal(rank, policy=MixedPrecisionPolicy(torch.float16, torch.float16))

    def premultiplied(rank):
        # gloo has no PREMUL_SUM: what FSDP2 makes of sums is the measure.
        model = thinwire.enable(factor(make()), "exact", "exact")
        return train(model, rank), train(summed(make()), rank)

    def check(rank):
        assert fp16(rank)
        assert bit_equal(rank, prepare=summed)
        own, expected = premultiplied(rank)
        torch.testing.assert_close(torch.tensor(own), torch.tensor(expected))
        return True

    assert all(ranks.run(2, check))


def test_quantized_training():
    """Bytes as promised, all ranks gather the same bits, and the losses stay near."""

    def check(rank):
        plain = train(make(), rank, 6)
        model = thinwire.enable(make(), "int8:block=128", "int4", min_bytes=1024)
        near = train(model, rank, 6)
        model[0].unshard()
        gathered = digest([model[0].up.weight, model[0].down.weight])
        exact = torch.equal(model[0].norm.weight, weights(model)[0].bfloat16())
        model[0].reshard()
        found = thinwire.report()
        return plain, near, gathered, exact, found

    results = ranks.run(4, check)
    assert len({gathered for _, _, gathered, _, _ in results}) == 1
    for plain, near, _, exact, found in results:
        assert plain != near
        torch.testing.assert_close(torch.tensor(near), torch.tensor(plain), rtol=0.05, atol=0.05)
        assert exact
        gather, scatter = found["all-gather"], found["reduce-scatter"]
        assert found.counted_bytes == gather.sent_bytes + scatter.sent_bytes
        assert gather.sent_bytes < 0.6 * gather.plain_bytes and scatter.sent_bytes < 0.2 * scatter.plain_bytes
        assert gather.exact["norms and biases"] == 4 * gather.calls
        assert scatter.exact["norms and biases"] == 4 * scatter.calls


def test_small_parameters_and_single_nodes_stay_exact():
    def small(rank):
        model = thinwire.enable(make(), "int8", "int4", min_bytes=1 << 20)
        assert train(model, rank) == train(make(), rank)
        found = thinwire.report()["all-gather"]
        assert found.exact["smaller than TW_MIN_BYTES"] == 2 * found.calls and found.sent_bytes == found.plain_bytes
        return True

    def one_node(rank):
        model = thinwire.enable(make(), "int8", "int4", min_bytes=0)
        assert train(model, rank) == train(make(), rank)
        return thinwire.report()["all-gather"].exact["ranks of one node"] > 0

    assert all(ranks.run(2, small))
    assert all(ranks.run(2, one_node, nodes=[0, 0]))


def test_switches():
    """enable, disable and exact() at any step."""

    def check(rank):
        expected = train(make(), rank, 4)
        model, found = make(), []
        found += train(thinwire.enable(model, "exact", "exact"), rank, 1)
        with thinwire.exact():
            thinwire.enable(model, "int8", "int4", min_bytes=0)
            calls = thinwire.report()["all-gather"].calls
            assert train(model, rank, 1, first=1) and thinwire.report()["all-gather"].calls > calls
        sent = thinwire.report().counted_bytes
        thinwire.disable(model)
        train(model, rank, 1, first=2)
        assert thinwire.report().counted_bytes == sent
        assert thinwire.report()["all-gather"].sent_bytes == thinwire.report()["all-gather"].plain_bytes
        with pytest.raises(ValueError, match="fully_shard"):
            thinwire.enable(nn.Linear(2, 2))
        return found == expected[:1]

    assert all(ranks.run(2, check))


def test_exact_block_is_bit_equal_and_a_patched_torch_needs_no_call():
    def check(rank):
        expected = train(make(), rank)
        fsdp.patch()
        with thinwire.exact():
            found = train(make(), rank)
        assert found == expected and thinwire.report()["all-gather"].exact["exact()"] > 0
        # torch may put its own in our place again
        make().set_allocate_memory_from_process_group_for_comm(True)
        return train(make(), rank) != expected

    assert all(ranks.run(2, check, TW_MIN_BYTES="1"))


class Branches(nn.Module):
    """Uses one of two layers: the other one has no gradient."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.which = 0

    def forward(self, x):
        return self.layers[2](self.layers[self.which](x))


def test_unused_parameters():
    def losses(rank, enable):
        torch.manual_seed(0)
        model = enable(fully_shard(Branches(), mp_policy=BF16))
        found = []
        for step in range(4):
            model.which = step % 2
            found += train(model, rank, 1, first=step)
        return found

    def check(rank):
        expected = losses(rank, lambda model: model)
        assert losses(rank, lambda model: thinwire.enable(model, "exact", "exact")) == expected
        near = losses(rank, lambda model: thinwire.enable(model, "int8", "int8", min_bytes=0))
        torch.testing.assert_close(torch.tensor(near), torch.tensor(expected), rtol=0.02, atol=0.02)
        # boundaries are known although a part of the parameters is reduced
        return fsdp.UNKNOWN not in thinwire.report()["reduce-scatter"].exact

    assert all(ranks.run(2, check))


class Some(nn.Module):
    """Uses the first n of its layers."""

    def __init__(self):
        super().__init__()
        self.layers, self.n = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)]), 3

    def forward(self, x):
        for layer in self.layers[: self.n]:
            x = layer(x)
        return x


def make_some():
    torch.manual_seed(0)
    model = Some()
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def gathers_and_computations(model):
    """A list that gets ("gather", layer) and ("compute", layer) as they come."""
    log = []

    def watch(number, comm, layer):
        def gather(*args, **kwargs):
            log.append(("gather", number))
            return comm(*args, **kwargs)

        gather.allocate = comm.allocate
        layer.register_forward_hook(lambda *_: log.append(("compute", number)))
        return gather

    for number, (group, layer) in enumerate(zip(fsdp._groups(model), model.layers)):
        group._all_gather_comm = watch(number, group._all_gather_comm, layer)
    return log


@torch.no_grad()
def test_the_next_gather_runs_beside_the_computation():
    def passed(model, n, log):
        log.clear()
        model.n = n
        result = model(torch.ones(4, WIDTH))
        return [(what[0], number) for what, number in log], result

    def check(rank):
        model, plain = thinwire.enable(make_some(), "exact", "exact"), make_some()
        log = gathers_and_computations(model)
        in_turn = [("g", 0), ("c", 0), ("g", 1), ("c", 1), ("g", 2), ("c", 2)]
        assert passed(model, 3, log)[0] == in_turn
        assert passed(model, 3, log)[0] == [("g", 0), ("g", 1), ("c", 0), ("g", 2), ("c", 1), ("c", 2)]
        # A gather in vain is the last of its kind, and nobody sees its weights, which are old by then.
        assert passed(model, 1, log)[0] == [("g", 0), ("g", 1), ("c", 0)]
        for one in (model, plain):
            one.layers[1].weight.to_local().fill_(0.5)
        order, result = passed(model, 3, log)
        assert order == in_turn
        return torch.equal(result, plain(torch.ones(4, WIDTH)))

    assert all(ranks.run(2, check))


def test_meshes():
    """HSDP, and a part of the ranks kept between forward and backward."""

    def check(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        assert close(rank, mesh=mesh)
        assert close(rank, reshard_after_forward=2)
        calls = thinwire.report()["all-gather"].calls
        near = thinwire.enable(make(reshard_after_forward=2), "int8", "int4", min_bytes=0)
        torch.testing.assert_close(torch.tensor(train(near, rank)), torch.tensor(train(make(), rank)), rtol=0.05, atol=0.05)
        found = thinwire.report()
        # ranks 0 and 1 share a node: their gather for the backward pass is not quantized
        assert found["all-gather"].calls > calls and found["all-gather"].exact["ranks of one node"] > 0
        return fsdp.UNKNOWN not in found["all-gather"].exact

    assert all(ranks.run(4, check, nodes=[0, 0, 1, 1]))


def test_mixed_types_travel_as_bytes():
    def gathered(enable):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
        model[1].requires_grad_(False).to(torch.bfloat16)
        enable(fully_shard(model)).unshard()
        return digest(model.parameters())

    def check(rank):
        expected = gathered(lambda model: model)
        assert gathered(lambda model: thinwire.enable(model, "int8", "int4", min_bytes=0)) == expected
        return thinwire.report()["all-gather"].exact["mixed types"] > 0

    assert all(ranks.run(2, check))


def test_activation_checkpointing_and_two_models():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    def build(seed, enable):
        torch.manual_seed(seed)
        model = nn.Sequential(*[checkpoint_wrapper(Block()) for _ in range(2)])
        for block in model:
            fully_shard(block, mp_policy=BF16)
        return enable(fully_shard(model, mp_policy=BF16))

    def losses(rank, enable):
        one, two = build(1, enable), build(2, enable)
        return [train(one, rank, 1, first=step) + train(two, rank, 1, first=step) for step in range(2)]

    def check(rank):
        expected = losses(rank, lambda model: model)
        return losses(rank, lambda model: thinwire.enable(model, "exact", "exact")) == expected

    assert all(ranks.run(2, check))


def test_checkpoints_are_exact(tmp_path):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    def check(rank):
        model = thinwire.enable(make(), "int8", "int4", min_bytes=0)
        train(model, rank)
        before = weights(model)
        checkpoint.save(get_model_state_dict(model), checkpoint_id=str(tmp_path))
        other = thinwire.enable(make(seed=7), "int8", "int4", min_bytes=0)
        state = get_model_state_dict(other)
        checkpoint.load(state, checkpoint_id=str(tmp_path))
        set_model_state_dict(other, state)
        return all(torch.equal(a, b) for a, b in zip(before, weights(other)))

    assert all(ranks.run(2, check))


def test_not_a_number_is_not_hidden():
    def check(rank):
        model = thinwire.enable(make(), "int8", "int4", min_bytes=0)
        if rank == 1:
            with torch.no_grad():
                model[0].up.weight.to_local().view(-1)[0] = float("nan")
        model[0].unshard()
        return torch.isnan(model[0].up.weight).any().item()

    assert ranks.run(2, check) == [True, True]


def test_a_second_job_in_the_process(tmp_path):
    def check(rank):
        found = []
        for number in range(2):
            with ranks.job(str(tmp_path / str(number)), rank, 2):
                found.append(train(thinwire.enable(make(), "exact", "exact"), rank))
                assert len(engine.running()) == 1
        return found[0] == found[1]

    assert all(ranks.run(2, check, backend=None))


@pytest.mark.parametrize("version", ["2.8.0", "2.16.0", "3.0.1"])
def test_versions_that_are_not_known_are_refused(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    for function in (fsdp.patch, lambda: thinwire.enable(nn.Linear(2, 2))):
        with pytest.raises(RuntimeError, match=r"torch %s is not known here, only that of 2\.9 to 2\.15" % version):
            function()


@pytest.mark.parametrize("version", ["2.9.0", "2.10.0a0+git", "2.15.0+cu132"])
def test_versions_that_are_known(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    fsdp.check_version()


def test_default_group_is_needed():
    with pytest.raises((ValueError, RuntimeError)):
        engine.Use({}).communicator_of("none", [0], 1.0)
    assert not dist.is_initialized()
