"""FSDP2 over gloo, with gradients reduced in fp32 or bf16, and over Thinwire in some modes of
//bench:torch."""

from torch_bench import MODES

NEEDS: list[str] = []
ENTRANTS = {"fsdp2": {}, "fsdp2-bf16": {}, "thinwire-fsdp2": MODES["default"],
            "thinwire-fsdp2-int4": MODES["delta-int4"], "thinwire-fsdp2-ecdq": MODES["delta-ecdq"]}


def prepare(name, model, make_optimizer):
    import fsdp_job
    import torch

    sharded = fsdp_job.shard(model, 1, torch.bfloat16 if name == "fsdp2-bf16" else torch.float32)
    return sharded, make_optimizer(sharded)
