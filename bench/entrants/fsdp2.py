"""FSDP2: over gloo with gradients reduced in fp32 or in bf16, and over Thinwire."""

NEEDS: list[str] = []
ENTRANTS = {
    "fsdp2": {},
    "fsdp2-bf16": {},
    "thinwire-fsdp2": {"TW_FSDP": "1"},
    "thinwire-fsdp2-ecdq": {"TW_FSDP": "1", "TW_GRADS": "ecdq"},
}


def prepare(name, model, make_optimizer):
    import fsdp_job
    import torch

    sharded = fsdp_job.shard(model, 1, torch.bfloat16 if name == "fsdp2-bf16" else torch.float32)
    return sharded, make_optimizer(sharded)
