"""A tiny Qwen, made from a config: nothing is fetched. In your job: from_pretrained("Qwen/Qwen3-0.6B")."""

import pathlib

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM


def model():
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=128))


def tokenizer():
    """A character a token."""
    made = Tokenizer(models.WordLevel({chr(i): i for i in range(128)}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="\0", eos_token="\n", unk_token="?")


def texts():
    """Some lines to learn: those of this file."""
    return [line for line in pathlib.Path(__file__).read_text().splitlines() if line] * 8
