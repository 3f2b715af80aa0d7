"""What both ends of the example share: a model, and what it is asked."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


def make_model():
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=False)).bfloat16()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(64).view(4, 16)).logits.view(torch.uint8).numpy().tobytes()
