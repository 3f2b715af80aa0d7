"""ddp.py: DistributedDataParallel with Thinwire's hook."""

import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 48


def make():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 95), nn.ReLU(), nn.Linear(95, WIDTH)) for _ in range(3)])


def train(rank, hook=None, group=None, steps=4, dtype=torch.float32, accumulate=1):
    model = DistributedDataParallel(make().to(dtype), bucket_cap_mb=0.03, process_group=group)
    if hook is not None:
        model.register_comm_hook(group, hook)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        for part in range(accumulate):
            x = torch.randn(8, WIDTH, generator=generator, dtype=torch.float32).to(dtype)
            model.require_backward_grad_sync = part == accumulate - 1
            loss = (model(x) - x).float().square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, [one.detach().clone() for one in model.parameters()]


def same_everywhere(tensors):
    for one in tensors:
        others = [torch.empty_like(one) for _ in range(dist.get_world_size())]
        dist.all_gather(others, one)
        assert all(torch.equal(one, other) for other in others)
    return True


def test_exact_hook():
    def check(rank):
        losses, weights = train(rank)
        own_losses, own = train(rank, thinwire.ddp_hook("exact"))
        assert own_losses == losses and all(torch.equal(a, b) for a, b in zip(weights, own))
        train(rank, thinwire.ddp_hook("exact"), accumulate=2)
        return same_everywhere(own)

    assert all(ranks.run(2, check))


def test_quantized_hook():
    def check(rank):
        losses, _ = train(rank, steps=8)
        near, own = train(rank, thinwire.ddp_hook("int8:block=128", min_bytes=1024), steps=8)
        found = thinwire.report()["ddp all-reduce"]
        assert found.sent_bytes < 0.32 * found.plain_bytes and found.exact["norms and biases"] > 0
        torch.testing.assert_close(torch.tensor(near), torch.tensor(losses), rtol=0.02, atol=0.02)
        return same_everywhere(own)

    assert all(ranks.run(3, check))


def test_types_and_groups():
    def check(rank):
        pair = dist.new_group([0, 2])
        if rank != 1:
            losses, _ = train(rank, group=pair)
            own, _ = train(rank, thinwire.ddp_hook("exact"), pair)
            assert losses == own
        # a type that Thinwire has not: torch's own way
        losses, _ = train(rank, dtype=torch.float64)
        own, _ = train(rank, thinwire.ddp_hook("int4"), dtype=torch.float64)
        assert losses == own
        with thinwire.exact():
            losses, _ = train(rank, thinwire.ddp_hook("int4", min_bytes=0), dtype=torch.bfloat16)
        own, _ = train(rank, thinwire.ddp_hook("exact"), dtype=torch.bfloat16)
        assert losses == own
        return True

    assert all(ranks.run(3, check))


def test_a_wrong_codec_is_refused():
    def check(_rank):
        with pytest.raises(ValueError, match="int5"):
            thinwire.ddp_hook("int5")
        return True

    assert all(ranks.run(1, check, backend=None))
