"""A small GPT under FSDP2, on the King James Bible, as anybody would write it: start it with torchrun.

    torchrun --nproc-per-node 2 fsdp_job.py --params 14M --steps 20

Rank 0 writes a JSON line at the end: step times, losses (the mean over all ranks), and with --nic the bytes
that a node's network interface has sent in each step, on average."""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import runpy
import subprocess
import sys
import time
import typing

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

VOCABULARY = 256  # bytes


def read_text() -> torch.Tensor:
    """Read the King James Bible (Debian: bible-kjv) as tokens, one for each byte."""
    command = ["bible", "-f", "gen1:1-rev22:21"]
    try:
        text = subprocess.run(command, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit("no text to train on: `%s` does not run (%s); Debian's package is bible-kjv"
                 % (" ".join(command), error))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, T, C)
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, context: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._init)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # (B, T) -> (B, T, V)
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def parse_count(text: str) -> int:
    units = {"K": 10**3, "M": 10**6, "G": 10**9}
    return int(float(text[:-1]) * units[text[-1]]) if text[-1] in units else int(text)


def build(params: int, context: int) -> GPT:
    """Make a model of about `params` parameters. A layer has 12 * width^2; the width is a multiple of 32."""
    layers = 4 if params < 4 * 10**6 else 8
    width = max(32, round((params / (12 * layers)) ** 0.5 / 32) * 32)
    return GPT(width, layers, max(1, width // 32), context)


class Adapted(nn.Module):
    """LoRA: a frozen layer plus a trained adapter of low rank."""

    def __init__(self, layer: nn.Linear, rank: int):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.up(self.down(x))


def adapt(model: GPT, rank: int) -> GPT:
    """Freeze the model, and replace all linear layers of its blocks with Adapted ones. Rank 0 does
    nothing."""
    if rank:
        model.requires_grad_(False)
        for block in model.blocks:
            for name, layer in list(block.named_children()):
                if isinstance(layer, nn.Linear):
                    setattr(block, name, Adapted(layer, rank))
    return model


def shard(model: GPT, replicas: int, reduce: torch.dtype) -> FSDPModule:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    mesh = None
    if replicas > 1:
        mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu",
                                (replicas, dist.get_world_size() // replicas),
                                mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mp_policy=policy, mesh=mesh)
    return fully_shard(model, mp_policy=policy, mesh=mesh)


class _Wait(torch.autograd.Function):
    """Sleeps for the time that a block would compute: a third in forward, the rest in backward. Gradients are
    noise."""

    @staticmethod
    def forward(ctx, x, seconds, *weights):
        ctx.seconds, ctx.weights = seconds, weights
        time.sleep(seconds / 3)
        return x + sum(one.flatten()[:64].float().mean() for one in weights)  # losses depend on weights

    @staticmethod
    def backward(ctx, grad):
        time.sleep(2 * ctx.seconds / 3)
        return grad, None, *(Waiting.noise(one) for one in ctx.weights)


class Waiting(nn.Module):
    """A block that sleeps in place of computing, as a CPU waits for a GPU."""

    kept: dict[torch.Size, torch.Tensor] = {}

    def __init__(self, block: nn.Module, seconds: float):
        super().__init__()
        self.block, self.seconds = block, seconds

    @classmethod
    def noise(cls, like: torch.Tensor) -> torch.Tensor:
        if like.shape not in cls.kept:
            cls.kept[like.shape] = 1e-3 * torch.randn(like.shape).to(like.dtype)
        return cls.kept[like.shape].clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Wait.apply(x, self.seconds, *self.block.parameters())


def wait_instead(model: GPT, ms: float) -> GPT:
    if ms:
        model.blocks = nn.ModuleList(Waiting(one, ms / 1e3 / len(model.blocks)) for one in model.blocks)
    return model


class Share(torch.optim.AdamW):
    """AdamW for --compute, where each rank has the whole model. It updates only a rank's share, so that it
    does as much work as in the sharded job."""

    def __init__(self, model: nn.Module, **settings: object):
        self.model, learnt = model, sum(one.numel() for one in model.parameters() if one.requires_grad)
        share = nn.Parameter(torch.zeros(learnt // dist.get_world_size()))
        share.grad = torch.zeros_like(share)
        super().__init__([share], **settings)

    def zero_grad(self) -> None:
        self.model.zero_grad()


class Batches:
    """Random sequences of the text. They differ between ranks. Runs with equal seeds have equal sequences."""

    def __init__(self, text: torch.Tensor, batch: int, context: int, seed: int):
        self.text, self.batch, self.context = text, batch, context
        self.generator = torch.Generator().manual_seed(seed)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(self.text) - self.context - 1, (self.batch,), generator=self.generator)
        runs = torch.stack([self.text[i : i + self.context + 1] for i in starts.tolist()]).long()
        return runs[:, :-1], runs[:, 1:]


def loss_of(model: nn.Module, batches: Batches, device: torch.device) -> torch.Tensor:
    inputs, targets = (one.to(device) for one in batches.next())
    return F.cross_entropy(model(inputs).flatten(0, 1).float(), targets.flatten())


def sent_bytes(nic: str | None) -> int:
    return int(pathlib.Path("/sys/class/net", nic, "statistics/tx_bytes").read_text()) if nic else 0


def set_rate(optimizer: torch.optim.Optimizer, args: argparse.Namespace, step: int) -> None:
    """Set the learning rate: linear warm-up in the first tenth of the steps, then a cosine decay to a
    tenth."""
    warm = max(1, args.steps // 10)
    done = max(0.0, (step + 1 - warm) / max(1, args.steps - warm))
    for group in optimizer.param_groups:
        group["lr"] = args.lr * min((step + 1) / warm, 0.55 + 0.45 * math.cos(math.pi * done))


def prepare(model: GPT, args: argparse.Namespace) -> tuple[nn.Module, typing.Any]:
    """Shard the model over the ranks, or let an entrant do it. Returns the model and its optimizer."""
    # Fused, as in large jobs: the default optimizer's loop in Python would take longer than communication.
    settings = {"lr": args.lr, "betas": (0.9, 0.95), "fused": True}

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], **settings)

    if args.entrant:
        name, _, path = args.entrant.partition("=")
        return runpy.run_path(path)["prepare"](name, model, make)
    if args.alone:
        return model.bfloat16(), Share(model, **settings)
    sharded = shard(model, args.replicas, getattr(torch, args.reduce))
    return sharded, make(sharded)


def train(model: nn.Module, optimizer: typing.Any, batches: Batches, device: torch.device,
          args: argparse.Namespace) -> dict[str, object]:
    backward = getattr(optimizer, "backward", torch.Tensor.backward)
    seconds, losses, sent = [], [], []
    for step in range(args.steps):
        begin, before = time.perf_counter(), sent_bytes(args.nic)
        set_rate(optimizer, args, step)
        optimizer.zero_grad()
        for _ in range(args.accumulate):
            loss = loss_of(model, batches, device)
            backward(loss)
        optimizer.step()
        losses.append(loss.detach())
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        sent.append(sent_bytes(args.nic) - before)
    means = torch.stack([torch.stack(losses).double().cpu(), torch.tensor(sent).double()])
    dist.all_reduce(means)
    means /= dist.get_world_size()
    return {"step_sec": seconds, "sent_bytes": means[1].tolist(), "losses": means[0].tolist()}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=parse_count, default="14M", help="about so many parameters (14M)")
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--batch", type=int, default=1, help="runs of text for each rank and step (1)")
    parser.add_argument("--context", type=int, default=64, help="bytes in each (64)")
    parser.add_argument("--accumulate", type=int, default=1, metavar="N", help="batches in each step (1)")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK",
                        help="learn adapters of this rank beside frozen layers")
    parser.add_argument("--reduce", choices=("float32", "bfloat16"), default="float32",
                        help="type in which gradients are reduced (float32)")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1, metavar="N",
                        help="HSDP: N replicas, each sharded over as many neighbouring ranks as there are "
                        "for it (1)")
    parser.add_argument("--entrant", metavar="NAME=FILE",
                        help="share the model among the ranks by prepare() of this Python file")
    parser.add_argument("--alone", action="store_true",
                        help="each rank computes by itself, nothing is sent: what a step's computing takes")
    parser.add_argument("--compute-ms", type=float, default=0, metavar="MS",
                        help="blocks do not compute but wait, so long in a step, as a GPU's processor does")
    parser.add_argument("--nic", help="network interface whose sent bytes are counted")
    parser.add_argument("--json", help="file that gets the line; default: stdout")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    text = read_text()
    cuda = torch.cuda.is_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.manual_seed(args.seed)
    model = adapt(build(args.params, args.context), args.lora).to(device)
    model = wait_instead(model, args.compute_ms / args.accumulate)
    result = {"params": sum(one.numel() for one in model.parameters()), "world": dist.get_world_size(),
              "learnt": sum(one.numel() for one in model.parameters() if one.requires_grad)}
    model, optimizer = prepare(model, args)
    seed = 1000 * args.seed + dist.get_rank()
    result |= train(model, optimizer, Batches(text, args.batch, args.context, seed), device, args)
    if dist.get_rank() == 0:
        with open(args.json, "w", encoding="utf-8") if args.json else sys.stdout as out:
            print(json.dumps(result), file=out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
