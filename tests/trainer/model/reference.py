#!/usr/bin/env python3
"""Makes reference.safetensors: a small GPT-2 of Hugging Face's transformers with random weights, one batch,
and what PyTorch says of its loss and gradients, computed in fp64.

    pip install torch transformers safetensors
    python3 tests/trainer/model/reference.py tests/trainer/model/reference.safetensors

Made with torch 2.9.1 and transformers 5.23.0. In the file: the weights under their names (bf16), "grad.NAME"
(fp32), "tokens", "targets" (int32), "loss" (fp32). The shape is odd on purpose; test_gpt2.cc knows it too.
"""

import sys

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, LENGTH = 2, 11


def main():
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=31,
        n_positions=13,
        n_embd=24,
        n_layer=2,
        n_head=3,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="eager",
    )
    model = GPT2LMHeadModel(config).double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            centre = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
            weight.copy_((centre + 0.2 * torch.randn(weight.shape)).bfloat16().double())
    tokens = torch.randint(0, config.vocab_size, (BATCH, LENGTH))
    targets = torch.randint(0, config.vocab_size, (BATCH, LENGTH))
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, config.vocab_size), targets.reshape(-1))
    loss.backward()

    out = {"tokens": tokens.int(), "targets": targets.int(), "loss": loss.detach().float().reshape(1)}
    for name, weight in model.named_parameters():
        out[name] = weight.detach().bfloat16().contiguous()
        out["grad." + name] = weight.grad.float().contiguous()
    save_file(out, sys.argv[1])
    print("loss %.9f, %d parameters" % (loss.item(), sum(p.numel() for p in model.parameters())))


if __name__ == "__main__":
    main()
