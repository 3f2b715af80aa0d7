"""What the trainer saves, transformers opens with the same validation loss; models that transformers made,
trained here."""

import importlib.util
import json
import os
import pathlib
import socket
import subprocess

import pytest
import torch

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

TRAIN = os.path.abspath("trainer/train")
REFERENCE = "tests/trainer/model/llama_reference.py"
HELD = pathlib.Path("tests/trainer/model/llama")
LENGTH = 11


def reference():
    spec = importlib.util.spec_from_file_location("llama_reference", REFERENCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CASES = reference().CASES


def make_gpt2(folder):
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=23, n_positions=16, n_embd=12, n_layer=2, n_head=2, bos_token_id=None,
                        eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    GPT2LMHeadModel(config).bfloat16().save_pretrained(folder)


def write_text(path):
    torch.manual_seed(2)
    text = torch.randint(0, 23, (40 * LENGTH + 1,))
    path.write_bytes(text.to(torch.uint16).numpy().tobytes())
    return text


def train(folder, text, *sets):
    """One rank, three steps: the validation loss after the last."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = dict(os.environ, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    keys = ["thinwire.data=%s" % text, "thinwire.val_data=%s" % text, "thinwire.sequence_length=%d" % LENGTH,
            "thinwire.steps=3", "thinwire.val_sequences=40", "train_batch_size=4", "scheduler.type=none",
            "optimizer.params.lr=1e-2", "thinwire.products=fp32"]
    command = [TRAIN, "--metrics", str(folder / "metrics.jsonl")]
    for key in keys + list(sets):
        command += ["--set", key]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])["val_loss"]


@pytest.mark.parametrize("name", ["gpt2"] + list(CASES))
def test_the_saved_model_has_the_same_loss(tmp_path, name):
    start, out = tmp_path / "start", tmp_path / "out"
    if name == "gpt2":
        make_gpt2(start)
    else:
        reference().make(str(start), name)
    text = write_text(tmp_path / "text.bin")
    ours = train(tmp_path, tmp_path / "text.bin", "model.init_from=%s" % start,
                 "thinwire.checkpoint=%s" % (tmp_path / "checkpoints"), "thinwire.save_model=%s" % out)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager")
    assert type(model).__name__ == json.loads((start / "config.json").read_text())["architectures"][0]
    with torch.no_grad():
        logits = model(text[:-1].reshape(-1, LENGTH)).logits
    theirs = torch.nn.functional.cross_entropy(logits.reshape(-1, 23), text[1:]).item()
    assert ours == pytest.approx(theirs, rel=2e-6)
    before = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = before(text[:-1].reshape(-1, LENGTH)).logits
    assert theirs < torch.nn.functional.cross_entropy(logits.reshape(-1, 23), text[1:]).item() - 0.01


def loss_of(model, text):
    with torch.no_grad():
        logits = model(text[:-1].reshape(-1, LENGTH)).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, 23), text[1:]).item()


def descend(model, text, steps):
    """PyTorch's losses: all sequences at every step, AdamW with decay for matrices alone."""
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(steps):
        logits = model(text[:-1].reshape(-1, LENGTH)).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 23), text[1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ["gpt2", "llama3"])
def test_fp32_training_has_pytorchs_losses(tmp_path, name):
    """Weights that bf16 has no bits for, trained by both, and saved as they are."""
    start, out = tmp_path / "start", tmp_path / "out"
    if name == "gpt2":
        make_gpt2(start)
    else:
        reference().make(str(start), name)
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0 + 2.0 ** -11)
    model.save_pretrained(start)
    text = write_text(tmp_path / "text.bin")
    val_loss = train(tmp_path, tmp_path / "text.bin", "model.init_from=%s" % start, "bf16.enabled=false",
                     "thinwire.delta_lossless=false", "train_batch_size=40", "thinwire.steps=8",
                     "optimizer.params.weight_decay=0.1",
                     "thinwire.checkpoint=%s" % (tmp_path / "checkpoints"), "thinwire.save_model=%s" % out)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    ours = [line["loss"] for line in lines if "loss" in line]
    assert ours == pytest.approx(descend(model, text, 8), rel=1e-5)
    assert ours[7] < ours[0] - 0.05
    assert val_loss == pytest.approx(loss_of(model, text), rel=1e-5)
    saved = AutoModelForCausalLM.from_pretrained(out, dtype="auto", attn_implementation="eager")
    assert {weight.dtype for weight in saved.parameters()} == {torch.float32}
    assert loss_of(saved, text) == pytest.approx(val_loss, rel=1e-6)


@pytest.mark.parametrize("name", list(CASES))
def test_autograd_still_gives_the_gradients_that_are_held(tmp_path, name):
    """The C tests compare with files; here they are made anew, by this torch and transformers."""
    from safetensors.torch import load_file

    reference().make(str(tmp_path / name), name)
    now, held = (load_file(folder / name / "expected.safetensors") for folder in (tmp_path, HELD))
    assert now.keys() == held.keys()
    for key in now:
        largest = held[key].abs().max().item()
        assert torch.allclose(now[key].double(), held[key].double(), rtol=0, atol=1e-5 * largest), key
