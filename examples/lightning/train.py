"""train.py: Lightning's Trainer with FSDP2 (ModelParallelStrategy), as it is. It learns this file."""

import os
import pathlib

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard


class NextByte(LightningModule):
    def __init__(self, width=128, layers=2):
        super().__init__()
        blocks = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(),
                                nn.Linear(4 * width, width)) for _ in range(layers)]
        self.model = nn.Sequential(nn.Embedding(256, width), *blocks, nn.Linear(width, 256))

    def configure_model(self):
        mesh = self.device_mesh["data_parallel"]
        for block in self.model[1:-1]:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def training_step(self, batch):
        loss = nn.functional.cross_entropy(self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        self.print("loss %r" % loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


torch.manual_seed(0)
text = torch.tensor(list(pathlib.Path(__file__).read_bytes()))
data = torch.utils.data.DataLoader(list(text.unfold(0, 33, 8)), batch_size=8)
nodes, ranks = int(os.environ["GROUP_WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])  # torchrun's
trainer = Trainer(
    strategy=ModelParallelStrategy(data_parallel_size=nodes * ranks, tensor_parallel_size=1),
    num_nodes=nodes, devices=ranks, max_steps=6, logger=False, enable_checkpointing=False,
    enable_progress_bar=False)
trainer.fit(NextByte(), data)
