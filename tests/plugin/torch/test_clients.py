"""Libraries that train with FSDP2 and DDP, as they are: each test is skipped where its library is not
installed."""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
LIMIT_SEC = 150


def run(job, folder, **environment):
    """(losses, what was said on stderr) of two ranks, each a node of its own."""
    folder.mkdir(exist_ok=True)
    start = ["--no-python", "sh", "-c", 'TW_NODE_ID=$RANK exec "$@"', "sh", sys.executable,
             str(HERE / "client_job.py"), job, str(folder)]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
               "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *start]
    settings = {"TW_NET_DEVICES": "lo", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""} | environment
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True,
                          timeout=LIMIT_SEC)
    assert done.returncode == 0, done.stdout + done.stderr
    (losses,) = filter(None, map(losses_of, done.stdout.splitlines()))
    return losses, done.stderr


def losses_of(line):
    """None of a line that somebody else has printed."""
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        return found if isinstance(found, list) else None


# (job, libraries that it needs, what it says)
FSDP2, DDP = "FSDP2 over thinwire: weights delta", "DDP over thinwire: gradients lossless"
# Gloo of torch 2.15 does not take their sums, which are scaled (PREMUL_SUM). They are compared with plain.
REFUSED_BY_GLOO = ("titan",)
PLAIN = {"TW_FSDP": "1", "TW_WEIGHTS": "plain", "TW_GRADS": "plain"}
JOBS = [
    ("dcp", [], FSDP2),
    ("accelerate", ["transformers", "accelerate"], FSDP2),
    ("lora", ["transformers", "peft"], FSDP2),
    ("fabric", ["transformers", "lightning"], FSDP2),
    ("titan", ["torchtitan"], FSDP2),
    ("qlora", ["torchao"], FSDP2),
    ("trainer_ddp", ["transformers", "accelerate"], DDP),
    ("trl_ddp", ["transformers", "trl", "datasets"], DDP),
    ("trl_lora_ddp", ["transformers", "trl", "datasets", "peft"], DDP),
    ("fabric_ddp", ["transformers", "lightning"], DDP),
]


def test_a_library_with_collectives_of_its_own(tmp_path):
    """It trains as it does without us, and the report says what takes its collectives."""
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("not installed: deepspeed")
    losses, said = run("deepspeed", tmp_path, TW_FSDP="1", DS_ACCELERATOR="cpu")
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert said.count("nothing went over thinwire to other nodes, because of DeepSpeed: "
                      "it calls collectives of its own; under NCCL: LD_PRELOAD=libthinwire-nccl.so") == 1


# {TW_WEIGHTS: the most of what plain takes that its gathers may send}
FLOAT8 = {"plain": 1.0, "delta": 0.3}


def test_float8_gathers(tmp_path):
    """Gloo's bytes and ours, over 50 steps, bit for bit."""
    if importlib.util.find_spec("torchao") is None:
        pytest.skip("not installed: torchao")
    expected, _ = run("float8", tmp_path / "base")
    assert len(expected) == 50 and expected[-1] < expected[0] - 0.2
    for weights, most in FLOAT8.items():
        losses, said = run("float8", tmp_path / weights, TW_COLL_MODEL="inter:beta=1mbit", TW_FSDP="1",
                           TW_WEIGHTS=weights)
        assert losses == expected, weights
        assert "not over thinwire" not in said
        (share,) = re.findall(r"all-gather: .* plain .* MB \(([0-9.]+)\)", said)
        assert float(share) <= most, said


@pytest.mark.parametrize("job, needs, says", JOBS, ids=[job for job, _, _ in JOBS])
def test_a_library_as_it_is(job, needs, says, tmp_path):
    """The default loses nothing: on two ranks the losses are gloo's, to the last bit."""
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip("not installed: " + ", ".join(missing))
    expected, _ = run(job, tmp_path / "base", **(PLAIN if job in REFUSED_BY_GLOO else {}))
    # on a fast link what is so small goes plain
    losses, said = run(job, tmp_path / "ours", TW_COLL_MODEL="inter:beta=1mbit",
                       **{"TW_FSDP" if says == FSDP2 else "TW_DDP": "1"})
    assert losses == expected
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.2
    assert said.count(says) == 1 and said.count("MB sent to other nodes, as counted") == 1
    assert "not over thinwire" not in said
