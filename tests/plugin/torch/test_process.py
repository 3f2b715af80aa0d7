"""The library inside a job's process: how it is switched on, how it fails, and what it leaves alone."""

import ctypes
import datetime
import json
import os
import pathlib
import platform
import select
import signal
import subprocess
import sys
import threading
import time

import pytest
import ranks
import thinwire
import torch
import torch.distributed as dist
from thinwire import capi
from thinwire.engine import communicators, waiting
from torch import nn
from torch.distributed.fsdp import fully_shard

FAST = {"TW_PEER_TIMEOUT": "3s"}
WITHIN_SEC = 30.0


def model_of(weights="plain"):
    torch.manual_seed(0)
    return thinwire.enable(fully_shard(nn.Linear(64, 64)), weights, "plain", min_bytes=1)


def step(model):
    model(torch.ones(4, 64)).sum().backward()


def python(program, *args, **environment):
    return subprocess.run([sys.executable, "-c", program, *args], env=os.environ | environment,
                          capture_output=True, text=True)


# What a program loads when torch is imported, and when it makes a process group.
IMPORTS = """
import sys, torch
loaded = (sorted(name for name in sys.modules if name.startswith("thinwire")),
          "torch.distributed.fsdp" in sys.modules)
print(*loaded[0], loaded[1], "libthinwire" in open("/proc/self/maps").read())
if len(sys.argv) > 1:
    torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
    print("group", torch.distributed.get_rank())
"""


@pytest.mark.parametrize("asked", ["0", "1"])
def test_the_import_of_torch_costs_nothing(asked):
    done = python(IMPORTS, TW_FSDP=asked, TW_WEIGHTS="nonsense", TW_LIBRARY="/nowhere/lib.so")
    loaded = "thinwire thinwire.autoload thinwire.switches thinwire.version False False\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, loaded, "")


def test_nothing_breaks_a_group(tmp_path):
    done = python(IMPORTS, str(tmp_path / "store"), TW_FSDP="1", TW_LIBRARY="/nowhere/lib.so")
    assert done.returncode == 0 and "group 0" in done.stdout
    assert done.stderr.count("thinwire is off") == 1 and "/nowhere/lib.so" in done.stderr


def find_job():
    name = "bench/fsdp_job.py"
    here = pathlib.Path(__file__).parent
    return next(base / name for base in (pathlib.Path.cwd(), here.parent.parent.parent)
                if (base / name).exists())


def test_torchrun_and_an_unchanged_job():
    # Each rank a node of its own, for which only the environment is changed.
    start = ["--no-python", "sh", "-c", 'TW_NODE_ID=$RANK exec "$@"', "sh", sys.executable, str(find_job())]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
               "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = os.environ | {"TW_FSDP": "1", "TW_NET_DEVICES": "lo"}
    done = subprocess.run(command + start + ["--params", "400K", "--steps", "4", "--lr", "0.01"],
                          env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # on stdout there is the job's line alone, but for what gloo of some versions says
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    assert len(lines) == 1
    result = json.loads(lines[0])
    assert result["losses"][-1] < result["losses"][0] - 0.5
    # one process speaks: torchrun's agent and the other rank do not
    assert done.stderr.count("FSDP2 over thinwire: weights delta") == done.stderr.count("as counted") == 1
    # rank 0's report, with its counted bytes
    assert done.stderr.count("all-gather:") == 1
    assert "to other nodes, plain " in done.stderr


def test_what_the_process_keeps():
    """No signal handlers, nothing on stdout, no launcher needed, forked children are refused."""

    def caught():
        line = next(one for one in pathlib.Path("/proc/self/status").read_text().splitlines()
                    if one.startswith("SigCgt"))
        return line.split()[1]

    def forked(model):
        pid = os.fork()
        if pid == 0:
            try:
                model.unshard()
            except RuntimeError as error:
                os._exit(42 if "forked" in str(error) else 1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def check(rank):
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]
        before, model = caught(), model_of()
        step(model)
        assert caught() == before
        assert forked(model) == 42
        step(model)
        return True

    assert all(ranks.run(2, check))


def error_of(function):
    begin = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        function()
    assert time.monotonic() - begin < WITHIN_SEC
    return caught.value


def test_a_killed_rank_is_named():
    def check(rank):
        model = model_of()
        step(model)
        if rank == 1:
            ranks.die()
        error = error_of(lambda: [step(model) for _ in range(1000)])
        return isinstance(error, thinwire.ThinwireError) and error.failed_rank == 1 and "rank 1" in str(error)

    assert ranks.run(3, check, may_die=(1,), leave=False, **FAST) == [True, None, True]


@pytest.mark.skipif(not ranks.python_backends(), reason="backends of this torch cannot be written in Python")
def test_a_killed_rank_of_a_subgroup_is_named():
    def check(rank):
        group, store = dist.new_group([0, 2], backend="thinwire"), dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["done"])
            return True
        one = torch.ones(100000)
        dist.all_reduce(one, group=group)
        if rank == 2:
            ranks.die()
        error = error_of(lambda: [dist.all_reduce(one, group=group) for _ in range(1000)])
        store.set("done", "")
        return str(error)

    results = ranks.run(3, check, may_die=(2,), leave=False, **FAST)
    assert results[1:] == [True, None] and "rank 2" in results[0]


@pytest.mark.parametrize("how", ["barrier", "recv"])
def test_no_rank_waits_in_gloo_for_a_stopped_rank(how):
    def check(rank):
        model = model_of()
        step(model)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        if rank == 2:
            time.sleep(2)
        errors = [error_of(dist.barrier if how == "barrier" else lambda: dist.recv(torch.ones(1000), 1)),
                  error_of(lambda: step(model))]
        return [(isinstance(one, thinwire.ThinwireError), one.failed_rank, "rank 1" in str(one))
                for one in errors]

    expected = [(True, 1, True)] * 2
    assert ranks.run(3, check, stopped=(1,), leave=False, **FAST) == [expected, None, expected]


def test_threads_that_wait_as_gloos_are_found():
    """By both calls of the system, where the machine has both."""
    assert waiting.EPOLL_WAITS["aarch64"] == (22,)
    for number in waiting.EPOLL_WAITS[platform.machine()]:
        with select.epoll() as poll:
            arguments = (number, poll.fileno(), ctypes.create_string_buffer(64 * 16), 64, 10, None, 8)
            waits = threading.Thread(target=lambda given=arguments: [
                ctypes.CDLL(None).syscall(*given) for _ in range(300)])
            waits.start()
            found = [poll.fileno() in waiting._epoll_sets() for _ in range(100) if not time.sleep(0.01)]
            waits.join()
            assert any(found), number


def test_an_exception_on_one_rank_ends_the_others():
    def check(rank):
        model = model_of()
        if rank == 0:
            step(model)
            sys.last_value = ValueError("of the job")  # as the interpreter does with what nobody catches
            communicators._leave()
            return True
        return error_of(lambda: [step(model) for _ in range(1000)]).failed_rank

    assert ranks.run(2, check, leave=False, **FAST) == [True, 0]


def set_timeout(seconds):
    """Of the default group; older versions of torch call it otherwise."""
    set_it = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
    set_it(datetime.timedelta(seconds=seconds))


# A group's timeout after its first use, what the variable says; whether a late rank is waited for.
@pytest.mark.parametrize("weights", ["plain", "delta"])
@pytest.mark.parametrize("timeout, variable, waits",
                         [(1, "", False), (1, "1000s", True), (1000, "4s", False)])
def test_a_rank_is_waited_for_as_long_as_torch_does(timeout, variable, waits, weights):
    def check(rank):
        model, store = model_of(weights), dist.distributed_c10d._get_default_store()
        step(model)
        set_timeout(timeout)
        if rank == 1:
            # evaluates alone
            if waits:
                time.sleep(3)
            else:
                store.wait(["gave up"], datetime.timedelta(seconds=60))
                return True
        if waits:
            step(model)
            return True
        error = error_of(lambda: step(model))
        store.set("gave up", "")
        return (error.status == capi.TIMEOUT and "TW_COLL_TIMEOUT" in str(error)
                and "init_process_group(timeout=...)" in str(error))

    variables = {"TW_COLL_TIMEOUT": variable} if variable else {}
    assert ranks.run(2, check, leave=False, **variables) == [True, True]


def test_ddp_hears_of_a_killed_rank():
    def check(rank):
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
        model.register_comm_hook(None, thinwire.ddp_hook("plain"))
        # DDP rebuilds its buckets after the first steps, over gloo
        for _ in range(4):
            step(model)
        if rank == 1:
            ranks.die()
        return str(error_of(lambda: [step(model) for _ in range(1000)]))

    survivor, _ = ranks.run(2, check, may_die=(1,), leave=False, **FAST)
    assert "rank 1" in survivor
