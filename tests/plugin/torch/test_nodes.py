"""Ranks in network namespaces: names of hosts do not resolve there, and are all the same."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
NODES = 4


def cluster():
    """The cluster in a box, as a program."""
    for base in (pathlib.Path.cwd(), HERE.parent.parent.parent / "bazel-bin"):
        if (base / "bench/cluster").exists():
            return base / "bench/cluster"
    raise FileNotFoundError("bench/cluster")


def in_cluster(program, *arguments, flags=(), **environment):
    """[what each rank has printed as JSON]"""
    setting = ["%s=%s" % pair for pair in environment.items()]
    command = [cluster(), "--nodes", str(NODES), "--link", "none", *flags, "--",
               "env", "-u", "TW_NET_DEVICES", *setting, "sh", "-c", 'hostname same 2>&-; exec "$@"', "sh",
               sys.executable, program, *arguments]
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return sorted((json.loads(text) for text in re.findall(r"{.*}", done.stdout)),
                  key=lambda one: one["rank"])


@pytest.mark.parametrize("flags, network", [((), "10.77.0."), (("--ipv6",), "fd77::")])
def test_groups_meet_where_names_do_not_resolve(flags, network):
    found = in_cluster(HERE / "nodes_job.py", flags=flags, TW_FSDP="1", TW_MIN_BYTES="1",
                       GLOO_SOCKET_IFNAME="eth0")
    if not found[0]["in_nodes"]:
        pytest.skip("no network namespaces here")
    assert [one["host"] for one in found] == ["same"] * NODES
    assert len({one["place"] for one in found}) == NODES
    for one in found:
        shard, pair = one["rank"] // 2 * 2, one["rank"] % 2
        assert one["groups"] == sorted([[0, 1, 2, 3], [shard, shard + 1], [pair, pair + 2]])
        # HSDP: gather, reduction, and one between the replicas; twice a gather and a reduction; one gather
        # more for backward
        assert one["calls"] == 8
        own = network + str(one["rank"] + 1)
        assert one["by_gloo"] == own and one["by_name"] == ("::1" if flags else "127.0.0.1")
        assert one["by_store"] == own


def test_doctor_under_torchrun(tmp_path):
    """A node with a smaller MTU is named."""
    out = tmp_path / "doctor.json"
    script = '[ "$TW_CLUSTER" = nodes ] || exec echo nowhere; PATH=$PATH:/usr/sbin:/sbin; ' \
             '[ $RANK != 1 ] || ip link set eth0 mtu 1300 || exit 1; exec "$@" --node-rank $RANK ' \
             '--master-addr $MASTER_ADDR --master-port 29400 -m thinwire doctor --seconds 1 --json %s' % out
    command = [cluster(), "--nodes", "2", "--link", "none", "--", "sh", "-c", script, "sh", sys.executable,
               "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "nowhere" in done.stdout:
        pytest.skip("no network namespaces here")
    found = json.loads(out.read_text())
    assert [one["host"] for one in found["ranks"]] == ["node0", "node1"]
    pairs = sorted((one["from"], one["to"]) for one in found["flows"] if one["kind"] == "in pairs")
    assert pairs == [(0, 1), (1, 0)]
    assert any("node 1 (node1): eth0 has an MTU of 1300" in one["what"] for one in found["findings"])
    assert "slow: " in done.stdout
