"""What a job's training puts on the wire: sealed, nothing that can be read, and the same losses."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import test_nodes

HERE = pathlib.Path(__file__).parent


def base():
    return test_nodes.cluster().parent.parent


def run(setting, before=":"):
    """Two nodes, what goes over the first one's device captured: (exit code, what was printed, what was
    logged)."""
    capture = base() / "tests/trainer/capture"
    script = '%s; [ $RANK = 0 ] && listen=%s; exec env TW_FSDP=1 TW_MIN_BYTES=1 TW_WEIGHTS=plain ' \
             'TW_GRADS=plain GLOO_SOCKET_IFNAME=eth0 %s $listen "$@"'
    command = [test_nodes.cluster(), "--nodes", "2", "--link", "none", "--", "sh", "-c",
               script % (before, capture, setting), "sh", sys.executable, HERE / "wire_job.py"]
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    return done.returncode, done.stdout, done.stderr


def losses(out):
    found = json.loads(re.search(r"{.*}", out).group())
    if not found["in_nodes"]:
        pytest.skip("no network namespaces here")
    assert found["calls"] > 0
    return found["losses"]


def test_sealed_training_is_the_same_and_cannot_be_read():
    code, out, err = run("TW_NET_ENCRYPT=n")
    assert code == 0, err
    expected = losses(out)
    assert "captured much, ones seen" in out
    code, out, err = run("TW_NET_ENCRYPT=y")
    assert code == 0, err
    assert losses(out) == expected
    assert "captured much, ones unseen" in out


def test_a_rank_without_the_token_ends_a_sealed_job():
    code, out, err = run("TW_NET_ENCRYPT=y TW_JOIN_TIMEOUT=20s", before="[ $RANK = 0 ] || unset TW_JOB_TOKEN")
    if code == 0:
        losses(out)
    assert code != 0, out
    assert "rank 1: TW_JOB_TOKEN=not set" in err, err
    assert "seen" not in out or "ones unseen" in out, out
