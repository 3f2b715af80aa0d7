"""The wheel, installed by pip into an environment of its own."""

import os
import pathlib
import struct
import subprocess
import sys
import venv
import zipfile

import pytest
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
    done = run(sys.executable, "-m", "pip", "--python", found, "install", "--no-index", "--no-deps", "--disable-pip-version-check", wheel())
    assert done.returncode == 0, done.stderr
    return found


def run(python, *args, **environment):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TW_"))} | environment
    return subprocess.run([python, *map(str, args)], env=environment, capture_output=True, text=True)


def test_what_is_in_it():
    with zipfile.ZipFile(wheel()) as files:
        names = set(files.namelist())
    assert {"thinwire/py.typed", "thinwire/libthinwire.so.0", "thinwire/__main__.py", "thinwire/delta.py"} <= names


def test_info_without_torch(python):
    done = run(python, "-m", "thinwire", "info")
    assert done.returncode == 0 and done.stderr == ""
    found = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert found["thinwire"].startswith(thinwire.__version__) and str(python.parent.parent) in found["library"]
    assert found["torch"] == "not usable: No module named 'torch'" and "ref" in found["codecs"]
    assert run(python, "-m", "thinwire", "--version").stdout == "thinwire %s\n" % thinwire.__version__
    assert run(python, "-c", "import thinwire; print(thinwire.__version__)").stdout.strip() == thinwire.__version__


def test_weights_without_torch(python, tmp_path):
    """bf16, as on a machine that only hands weights on."""
    header = b'{"a":{"dtype":"BF16","shape":[4000],"data_offsets":[0,8000]}}'
    for name, change in (("old", 0), ("new", 1)):
        values = struct.pack("<4000H", *[0x3C00 + i % 500 + (change if i % 50 == 0 else 0) for i in range(4000)])
        (tmp_path / name).write_bytes(struct.pack("<Q", len(header)) + header + values)
    old, new, out, made = [tmp_path / name for name in ("old", "new", "out", "made")]
    assert "1 tensors" in run(python, "-m", "thinwire", "diff", old, new, "-o", out).stdout
    assert run(python, "-m", "thinwire", "patch", old, out, "-o", made).returncode == 0
    assert (tmp_path / "made").read_bytes() == (tmp_path / "new").read_bytes()
    assert (tmp_path / "out").stat().st_size < 2000


def test_import_torch_finds_it(python):
    site = next(python.parent.parent.glob("lib/python3*/site-packages"))
    (site / "torch.pth").write_text(str(pathlib.Path(torch.__file__).parent.parent) + "\n")
    done = run(python, "-m", "thinwire", "info")
    found = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert found["torch"].startswith(torch.__version__)
    assert "import torch   hooked" in done.stdout


def test_torchcomms_is_refused_with_a_reason(python):
    """As torchcomms loads a backend that it is asked for."""
    load = "from importlib.metadata import entry_points as e; (one,) = e(group='torchcomms.backends', name='thinwire'); one.load()"
    done = run(python, "-c", load)
    assert done.returncode == 1 and "thinwire has no backend for torchcomms (this is of unknown version)" in done.stderr.splitlines()[-1]
    info = next(python.parent.parent.glob("lib/python3*/site-packages")) / "torchcomms-9.8.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchcomms\nVersion: 9.8\n")
    assert "(this is 9.8)" in run(python, "-c", load).stderr
