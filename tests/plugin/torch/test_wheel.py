"""The wheel, installed by pip into an environment of its own."""

import ctypes
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import venv
import zipfile

import pytest
import ranks
import thinwire
import torch

HERE = pathlib.Path(__file__).parent


def wheel():
    for base in (pathlib.Path.cwd(), HERE.parent.parent.parent / "bazel-bin"):
        for found in base.glob("plugin/torch/thinwire-*.whl"):
            return found
    raise FileNotFoundError("the wheel")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of an environment that has the wheel, and no torch."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    found = folder / "bin" / "python3"
    done = run(sys.executable, "-m", "pip", "--python", found, "install", "--no-index", "--no-deps",
               "--disable-pip-version-check", wheel())
    assert done.returncode == 0, done.stderr
    return found


def start(python, *args, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TW_"))}
    return subprocess.Popen([python, *map(str, args)], env=kept | environment, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def run(python, *args, **environment):
    process = start(python, *args, **environment)
    out, err = process.communicate()
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def test_what_is_in_it():
    with zipfile.ZipFile(wheel()) as files:
        names = set(files.namelist())
    assert {"thinwire/py.typed", "thinwire/libthinwire.so.0.3", "thinwire/__main__.py",
            "thinwire/delta/__init__.py", "thinwire/nccl/libnccl-net-thinwire.so"} <= names


def newest_glibc(data):
    return max(int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", data))


def test_glibc_of_rhel_9_is_enough():
    """Whatever is shipped."""
    with zipfile.ZipFile(wheel()) as files:
        newest = {name: newest_glibc(files.read(name)) for name in files.namelist() if ".so" in name}
    assert len(newest) >= 2 and max(newest.values()) <= 34, newest


def test_the_libraries_for_nccl_are_found(python):
    folder = run(python, "-m", "thinwire", "nccl", "--path").stdout.strip()
    ctypes.CDLL(folder + "/libnccl-net-thinwire.so").ncclNetPlugin_v12
    lines = run(python, "-m", "thinwire", "nccl").stdout
    said = subprocess.run(["bash", "-c", lines + 'echo "$NCCL_NET_PLUGIN $LD_LIBRARY_PATH"'],
                          env={"LD_LIBRARY_PATH": "/mine"}, capture_output=True, text=True).stdout
    assert said == "thinwire %s:/mine\n" % folder


def test_info_without_torch(python):
    done = run(python, "-m", "thinwire", "info")
    assert done.returncode == 0 and done.stderr == ""
    found = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert found["thinwire"].startswith(thinwire.__version__)
    assert str(python.parent.parent) in found["library"]
    assert found["torch"] == "not usable: No module named 'torch'" and "ref" in found["codecs"]
    assert run(python, "-m", "thinwire", "--version").stdout == "thinwire %s\n" % thinwire.__version__
    done = run(python, "-c", "import thinwire; print(thinwire.__version__)")
    assert done.stdout.strip() == thinwire.__version__


def test_weights_without_torch(python, tmp_path):
    """bf16, as on a machine that only hands weights on."""
    header = b'{"a":{"dtype":"BF16","shape":[4000],"data_offsets":[0,8000]}}'
    for name, change in (("old", 0), ("new", 1)):
        values = struct.pack("<4000H",
                             *[0x3C00 + i % 500 + (change if i % 50 == 0 else 0) for i in range(4000)])
        (tmp_path / name).write_bytes(struct.pack("<Q", len(header)) + header + values)
    old, new, out, made = [tmp_path / name for name in ("old", "new", "out", "made")]
    assert "1 tensors" in run(python, "-m", "thinwire", "diff", old, new, "-o", out).stdout
    assert run(python, "-m", "thinwire", "patch", old, out, "-o", made).returncode == 0
    assert (tmp_path / "made").read_bytes() == (tmp_path / "new").read_bytes()
    assert (tmp_path / "out").stat().st_size < 2000


def test_doctor_without_torch(python, tmp_path):
    """Two ranks as of two nodes, on this machine's own devices."""
    job = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": "29500", "TW_RENDEZVOUS_PORT": str(ranks.free_port())}
    words = ["-m", "thinwire", "doctor", "--seconds", "1s", "--streams", "2", "--params", "7G",
             "--json", tmp_path / "doctor.json"]
    both = [start(python, *words, RANK=str(rank), TW_NODE_ID="node%d" % rank, **job) for rank in range(2)]
    (out, err), (nothing, other) = [one.communicate() for one in both]
    assert [one.returncode for one in both] == [0, 0], err + other
    assert [line.split()[0] for line in out.splitlines()[-4:]] == ["slow:", "why:", "change:", "thinwire:"]
    assert "a step of 7 G parameters" in out.splitlines()[-1]
    assert nothing == ""
    found = json.loads((tmp_path / "doctor.json").read_text())
    assert found["nodes"] == 2 and len(found["ranks"]) == 2 and all(one["bps"] > 0 for one in found["flows"])
    assert {one["streams"] for one in found["flows"]} == {1, 2}


def test_doctor_says_what_is_wrong_with_its_input(python):
    for words, variables, said in [
        (["--streams", "1"], {}, "thinwire: doctor: n_streams 1: "),
        (["--seconds", "1h"], {}, "--seconds: invalid"),
        (["--seconds", "4000"], {}, "thinwire: doctor: seconds 4000: 0 to 3600"),
        (["--params", "7 eggs"], {}, "--params: invalid"),
        (["--json", "/nowhere/doctor.json"], {}, "/nowhere/doctor.json: cannot write"),
        ([], {"TW_NET_DEVICES": "eth77"}, "network device eth77: there is none of that name"),
        ([], {"RANK": "0"}, "WORLD_SIZE"),
    ]:
        done = run(python, "-m", "thinwire", "doctor", *words, **variables)
        assert done.returncode != 0 and said in done.stderr, done.stderr


def test_plan_without_torch(python):
    plan = ["-m", "thinwire", "plan", "--nodes", "4"]
    slow = run(python, *plan, "--params", "7G", "--link", "1gbit")
    assert slow.returncode == 0, slow.stderr
    assert "in a step a node sends 31.5 GB plain, 8.794 GB with TW_FSDP=1, which keeps 21 GB" in slow.stdout
    assert "takes 252 s on these links, with Thinwire" in slow.stdout and "type TW_FSDP=1" in slow.stdout
    fast = run(python, *plan, "--ranks-per-node", "8", "--link", "100tbit")
    assert "it will not help you, plain is as fast" in fast.stdout
    assert len([line for line in fast.stdout.splitlines() if line.startswith("  ")]) == 5  # four sizes
    alone = run(python, "-m", "thinwire", "plan", "--nodes", "1", "--link", "1gbit")
    assert "one node: no byte crosses a network" in alone.stdout
    for words, said in [(["--link", "fast"], "--link fast: no rate"), (["--link", "0"], "link"),
                        (["--link", "1gbit", "--ranks-per-node", "0"], "ranks_per_node 0: 1 to"),
                        (["--link", "1gbit", "--params", "nan"], "n_params")]:
        done = run(python, *plan, *words)
        assert done.returncode != 0 and said in done.stderr, done.stderr


def test_import_torch_finds_it(python):
    site = next(python.parent.parent.glob("lib/python3*/site-packages"))
    (site / "torch.pth").write_text(str(pathlib.Path(torch.__file__).parent.parent) + "\n")
    done = run(python, "-m", "thinwire", "info")
    found = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert found["torch"].startswith(torch.__version__)
    assert "import torch   hooked" in done.stdout


def test_torchcomms_is_refused_with_a_reason(python):
    """As torchcomms loads a backend that it is asked for: without it, and with the empty package that PyPI
    has."""
    load = ("from importlib.metadata import entry_points as e; "
            "(one,) = e(group='torchcomms.backends', name='thinwire'); one.load()")
    done = run(python, "-c", load)
    none = ("thinwire has no backend for torchcomms (this is of unknown version): "
            "No module named 'torchcomms'")
    assert done.returncode == 1 and none in done.stderr.splitlines()[-1]
    site = next(python.parent.parent.glob("lib/python3*/site-packages"))
    info = site / "torchcomms-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchcomms\nVersion: 0.0.1\n")
    (site / "torchcomms").mkdir()
    (site / "torchcomms/__init__.py").touch()
    said = run(python, "-c", load).stderr
    assert "(this is 0.0.1): it takes no backends that are written in Python. Under" in said
