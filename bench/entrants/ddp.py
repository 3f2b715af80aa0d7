"""DistributedDataParallel over gloo: unchanged, and with two hooks of PyTorch; and over Thinwire."""

NEEDS: list[str] = []
ENTRANTS = {
    "ddp": {},
    "ddp-bf16": {},
    "ddp-powersgd": {},
    "thinwire-ddp": {"TW_DDP": "1"},
    "thinwire-ddp-ecdq": {"TW_DDP": "1", "TW_GRADS": "ecdq"},
}


def prepare(name, model, make_optimizer):
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    # One bucket: PowerSGD's callbacks start collectives, and gloo mixes up collectives of two buckets.
    bucket_mb = 1024 if name == "ddp-powersgd" else None
    found = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    if name == "ddp-bf16":
        found.register_comm_hook(None, default_hooks.bf16_compress_hook)
    if name == "ddp-powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=10)
        found.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return found, make_optimizer(found)
