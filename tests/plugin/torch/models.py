"""Small FSDP2 models and their training, for tests."""

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
WIDTH = 48


class Block(nn.Module):
    """Sizes that no number of ranks divides."""

    def __init__(self, n=WIDTH, hidden=None):
        super().__init__()
        hidden = hidden or 2 * n - 1
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, hidden), nn.Linear(hidden, n)

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
        for micro in range(accumulate):
            if not sync:
                model.set_requires_gradient_sync(micro == accumulate - 1)
            loss = loss_of(model, rank, 10 * step + micro)
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses
