"""train.py [TEXT]: a small GPT under FSDP2, a byte a token. Without a text it learns this file."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

LENGTH = 64
text = torch.tensor(list(open(sys.argv[-1], "rb").read()))
rank, gpu = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
device = torch.device("cuda", rank) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)
dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")


class GPT(nn.Module):
    def __init__(self, width=128, layers=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(
            width, 4, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, ids):  # (B, T) -> (B, T, 256)
        x = self.tokens(ids) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=ids.device)
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return self.head(x)


torch.manual_seed(0)
model = GPT().to(device)
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(dist.get_rank())  # each rank has batches of its own
for step in range(6):
    starts = torch.randint(len(text) - LENGTH - 1, (8, 1))
    ids = text[starts + torch.arange(LENGTH + 1)].to(device)
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("step %d: loss %r" % (step, loss.item()), flush=True)
dist.destroy_process_group()
