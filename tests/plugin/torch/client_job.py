"""client_job.py NAME FOLDER: a small job of those who train with FSDP2 through a library, of which examples/
has none. It knows nothing of Thinwire. Rank 0 prints the losses."""

import os
import pathlib
import sys
import typing

import torch
import torch.distributed as dist

TEXT = (
    "Ranks gather the weights of a layer before they compute with it, and forget them afterwards. "
    "Each keeps its own part, and\n"
    "its part of the optimizer's state. Gradients are summed where the part lives. "
    "What travels between nodes is most of a step on a slow\n"
    "network, so it is sent with fewer bits: weights as what has changed, "
    "gradients with a scale for each block.\n") * 40
LENGTH, BATCH, STEPS, RATE = 32, 4, 6, 1e-2


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, tie_word_embeddings=False))


class Output(typing.NamedTuple):
    loss: torch.Tensor


class Plain(torch.nn.Module):
    """Of torch alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(128, 128), torch.nn.Linear(128, 128)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.LayerNorm(128), torch.nn.Linear(128, 256), torch.nn.GELU(),
                                torch.nn.Linear(256, 128))
            for _ in range(2))

    def forward(self, input_ids, labels):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        return Output(
            torch.nn.functional.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))


def samples():
    """[LENGTH] ids each, of characters."""
    ids = torch.tensor([min(ord(one), 127) for one in TEXT])
    return [ids[i : i + LENGTH] for i in range(0, len(ids) - LENGTH, LENGTH)]


def batch(rank, step):
    """(BATCH, LENGTH): another one on each rank and in each step, until they are used up."""
    found = samples()
    return torch.stack([found[(i + BATCH * (rank + 2 * (step % 4))) % len(found)] for i in range(BATCH)])


def loop(model, optimizer, first=0, steps=STEPS):
    losses = []
    for step in range(first, first + steps):
        ids = batch(dist.get_rank(), step)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def shard(model, layers):
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        fully_shard(layer)
    return fully_shard(model)


def lora(_folder):
    """peft's LoRA in bf16, its adapters in fp32."""
    from peft import LoraConfig, get_peft_model

    dist.init_process_group("gloo")
    model = get_peft_model(llama(), LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    shard(model, model.base_model.model.model.layers)
    return loop(model, torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], RATE))


class Quantized(torch.nn.Module):
    """QLoRA: a frozen matrix of 4 bits, and what is learnt beside it."""

    def __init__(self, linear):
        super().__init__()
        from torchao.quantization import to_nf4

        self.weight = torch.nn.Parameter(to_nf4(linear.weight.detach()), requires_grad=False)
        self.down = torch.nn.Linear(linear.in_features, 8, bias=False)
        self.up = torch.nn.Linear(8, linear.out_features, bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight.get_original_weight()) + self.up(self.down(x))


def qlora(_folder):
    """torchao's NF4 under fully_shard: the tensors' own class says what is gathered."""
    dist.init_process_group("gloo")
    model = Plain()
    for layer in model.layers:
        layer[1], layer[3] = Quantized(layer[1]), Quantized(layer[3])
    shard(model, model.layers)
    return loop(model, torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], RATE))


def float8(_folder):
    """torchao's float8 training: layers gather e4m3, of which gloo knows nothing. It gets bytes."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    gather = dist.all_gather_into_tensor

    def as_bytes(whole, own, *args, **kwargs):
        narrow = whole.itemsize == 1
        return gather(*(one.view(torch.uint8) if narrow else one for one in (whole, own)), *args, **kwargs)

    dist.all_gather_into_tensor = as_bytes
    dist.init_process_group("gloo")
    model = Plain()
    convert_to_float8_training(
        model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True))
    for layer in model.layers:  # a group of e4m3 alone, and one with norms and biases in fp32
        shard(layer[3], [])
    shard(model, model.layers)
    return loop(model, torch.optim.AdamW(model.parameters(), 1e-3), steps=int(os.environ.get("STEPS", "20")))


class Decoder(torch.nn.Module):
    """With the names that torchtitan's decoders have."""

    enable_weight_tying = False

    def __init__(self):
        super().__init__()
        plain = Plain()
        self.tok_embeddings, self.norm, self.lm_head = plain.embed, torch.nn.LayerNorm(128), plain.head
        self.layers = torch.nn.ModuleDict({str(i): layer for i, layer in enumerate(plain.layers)})

    def forward(self, input_ids, labels):
        x = self.tok_embeddings(input_ids)
        for layer in self.layers.values():
            x = x + layer(x)
        logits = self.lm_head(self.norm(x)).float()
        return Output(
            torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))


def titan(_folder):
    """torchtitan's FSDP2: groups of several modules, bf16, sums that are not divided. Its own models want
    GPUs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torchtitan.distributed.fsdp import apply_fsdp_to_decoder

    dist.init_process_group("gloo")
    model = Decoder()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    apply_fsdp_to_decoder(model, mesh, param_dtype=torch.bfloat16, reduce_dtype=torch.float32,
                          pp_enabled=False)
    return loop(model, torch.optim.AdamW(model.parameters(), RATE))


def deepspeed(_folder):
    """ZeRO 3, as it is: it gathers and reduces by collectives of its own."""
    import deepspeed as library

    library.init_distributed(dist_backend="gloo")
    model = Plain()
    engine, *_ = library.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": RATE, "torch_adam": True}}})
    losses = []
    for step in range(STEPS):
        ids = batch(dist.get_rank(), step)
        loss = engine(ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def dcp(folder):
    """Saved and loaded again by torch.distributed.checkpoint, into another model."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    dist.init_process_group("gloo")

    def make():
        model = Plain()
        shard(model, model.layers)
        return model, torch.optim.AdamW(model.parameters(), RATE)

    whole = loop(*make())
    model, optimizer = make()
    losses = loop(model, optimizer, steps=STEPS // 2)
    weights, moments = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": moments}, checkpoint_id=str(folder / "saved"))
    model, optimizer = make()
    weights, moments = get_state_dict(model, optimizer)
    checkpoint.load({"model": weights, "optimizer": moments}, checkpoint_id=str(folder / "saved"))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    losses += loop(model, optimizer, first=STEPS // 2, steps=STEPS - STEPS // 2)
    assert losses == whole, (losses, whole)
    return losses


def main():
    losses = globals()[sys.argv[1]](pathlib.Path(sys.argv[2]))
    if os.environ.get("RANK") == "0":
        print(*("loss %r" % one for one in losses), sep="\n", flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
