#!/usr/bin/env python3
"""Makes llama/: small models of the Llama family by Hugging Face's transformers, with random weights, as
save_pretrained leaves them, and what PyTorch says of their loss and gradients for one batch.

    pip install torch transformers safetensors
    python3 tests/trainer/model/llama_reference.py tests/trainer/model/llama

Made with torch 2.15.0 and transformers 5.23.0 ("biased": 5.24.0). A folder has config.json, the weights
(bf16; "mistral" in two files with an index), and expected.safetensors: "grad.NAME" (fp32), "tokens",
"targets" (int32: a text, cut into sequences; -1: not learned), "loss" (fp32: the sum by the number of
targets), "angles" (fp32: the rotary frequencies). Shapes are odd on purpose, and all features are on.
"""

import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

BATCH, LENGTH = 2, 11
SMALL = {
    "vocab_size": 23,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
    "bos_token_id": None,
    "eos_token_id": None,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
YARN = {"rope_type": "yarn", "rope_theta": 30.0, "factor": 4.0, "original_max_position_embeddings": 40,
        "beta_fast": 4.0}

CASES = {
    "llama2": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 2, "rms_norm_eps": 1e-5}),
    "llama3": (LlamaConfig, LlamaForCausalLM, {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "rope_parameters": LLAMA3,
    }),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": 4}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {
        "num_attention_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": 160,
        "rope_parameters": YARN,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    }),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "tie_word_embeddings": True,
    }),
    "biased": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True}),
}
# Targets that are not learned: of the first sequence the beginning, of the second one the end.
MASKED = {"biased": [0, 1, 2, 19, 20]}


def make(folder, name):
    torch.manual_seed(1)
    kind, model_kind, more = CASES[name]
    config = kind(**dict(SMALL, **more))
    model = model_kind(config).double()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            centre = 1.0 if "norm" in key else 0.0
            weight.copy_((centre + 0.3 * torch.randn(weight.shape)).bfloat16().double())
    text = torch.randint(0, config.vocab_size, (BATCH * LENGTH + 1,))
    tokens, targets = text[:-1].reshape(BATCH, LENGTH), text[1:].reshape(BATCH, LENGTH).clone()
    targets.view(-1)[MASKED.get(name, [])] = -1
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, config.vocab_size), targets.reshape(-1),
                                             reduction="sum", ignore_index=-1) / targets.numel()
    loss.backward()

    out = {"tokens": tokens.int().contiguous(), "targets": targets.int().contiguous(),
           "loss": loss.detach().float().reshape(1)}
    out["angles"] = model.model.rotary_emb.inv_freq.float().clone()
    for key, weight in model.named_parameters():
        out["grad." + key] = weight.grad.float().contiguous()
    shutil.rmtree(folder, ignore_errors=True)
    model.bfloat16().save_pretrained(folder, max_shard_size=4000 if name == "mistral" else "1GB")
    save_file(out, os.path.join(folder, "expected.safetensors"))
    generation = os.path.join(folder, "generation_config.json")
    if os.path.exists(generation):
        os.unlink(generation)
    print("%s: loss %.9f, %d parameters" % (name, loss.item(), sum(p.numel() for p in model.parameters())))


def main():
    for name in CASES:
        make(os.path.join(sys.argv[1], name), name)


if __name__ == "__main__":
    main()
