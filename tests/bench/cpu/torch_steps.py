"""GPT-2 and Llama in PyTorch, as anybody would write them, whose steps others time: a step for each line on
stdin, a line of JSON after it. Eager, one fused AdamW, attention by PyTorch's own fused kernel."""

import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class GPT2Block(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.out = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x, _):  # (B, T, C)
        b, t, c = x.shape
        q, k, v = (one.view(b, t, self.heads, -1).transpose(1, 2)
                   for one in self.qkv(self.norm1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def turn(x, angles):  # (B, H, T, D)
    a, b = x.chunk(2, dim=-1)
    return x * angles[0] + torch.cat((-b, a), dim=-1) * angles[1]


class LlamaBlock(nn.Module):
    def __init__(self, c, heads, kv_heads, inner):
        super().__init__()
        self.heads, self.kv_heads, width = heads, kv_heads, c // heads
        self.norm1, self.norm2 = nn.RMSNorm(c, eps=1e-5), nn.RMSNorm(c, eps=1e-5)
        self.q, self.k, self.v, self.o = (
            nn.Linear(c, n * width, bias=False) for n in (heads, kv_heads, kv_heads, heads))
        self.gate, self.up, self.down = (
            nn.Linear(*shape, bias=False) for shape in ((c, inner), (c, inner), (inner, c)))

    def forward(self, x, angles):
        b, t, c = x.shape
        norm = self.norm1(x)
        q = turn(self.q(norm).view(b, t, self.heads, -1).transpose(1, 2), angles)
        k = turn(self.k(norm).view(b, t, self.kv_heads, -1).transpose(1, 2), angles)
        v = self.v(norm).view(b, t, self.kv_heads, -1).transpose(1, 2)
        if q.dtype != v.dtype:
            q = q.to(v.dtype)
        y = F.scaled_dot_product_attention(q, k.to(v.dtype), v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, c))
        norm = self.norm2(x)
        return x + self.down(F.silu(self.gate(norm)) * self.up(norm))


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        c, v, self.is_gpt2 = shape["width"], shape["vocabulary"], shape["family"] == "gpt2"
        self.tokens = nn.Embedding(v, c)
        self.head = nn.Linear(c, v, bias=False)
        if self.is_gpt2:
            self.places = nn.Embedding(shape["sequence"], c)
            self.head.weight = self.tokens.weight
            self.norm = nn.LayerNorm(c)
            self.blocks = nn.ModuleList(GPT2Block(c, shape["heads"]) for _ in range(shape["layers"]))
        else:
            self.norm = nn.RMSNorm(c, eps=1e-5)
            self.blocks = nn.ModuleList(
                LlamaBlock(c, shape["heads"], shape["kv_heads"], shape["inner"])
                for _ in range(shape["layers"]))
            width = c // shape["heads"]
            frequency = 10000.0 ** (-torch.arange(0, width, 2) / width)
            angles = torch.arange(shape["sequence"])[:, None] * torch.cat((frequency, frequency))[None, :]
            self.register_buffer("angles", torch.stack((angles.cos(), angles.sin())))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids)
        if self.is_gpt2:
            x = x + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, None if self.is_gpt2 else self.angles)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def step(model, optimizer, ids, autocast):
    begin, begin_processor = time.perf_counter(), time.process_time()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = model(ids[:, :-1], ids[:, 1:])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {"wall": time.perf_counter() - begin, "processor": time.process_time() - begin_processor,
            "loss": loss.item()}


def main():
    shape, mode, threads = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    model = Model(shape)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    params = sum(p.numel() for p in model.parameters())
    print(json.dumps({"torch": torch.__version__, "params": params}), flush=True)
    for _ in sys.stdin:
        ids = torch.randint(0, min(256, shape["vocabulary"]), (shape["batch"], shape["sequence"] + 1))
        print(json.dumps(step(model, optimizer, ids, mode == "autocast")), flush=True)


if __name__ == "__main__":
    main()
