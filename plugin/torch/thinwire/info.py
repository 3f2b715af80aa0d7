"""The output of `thinwire info`: versions, the library, UCX, devices, what is used with torch, or why not."""

from __future__ import annotations

import ctypes as C
import importlib
import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Callable, Iterator

from . import capi, policy, switches
from .version import __version__

Line = tuple[str, str]  # (name, its state in words)
NCCL = pathlib.Path(__file__).resolve().parent / "nccl"  # the wheel's folder of libraries that NCCL loads
PLUGIN, INTERPOSER = "libnccl-net-thinwire.so", "libthinwire-nccl.so"
NO_INTERPOSER = "no interposer (%s): this wheel was built without CUDA and NCCL" % INTERPOSER


def _backends(memory: int) -> list[str]:
    names = (C.c_char_p * 16)()
    n = capi.lib().tw_quant_backends(memory, names, len(names))
    return [(names[i] or b"").decode() for i in range(n)]


def _ucx() -> str:
    """Returns which UCX the library loads: its version and its path."""
    if not capi.find_ucx():
        return "none: ranks that share a node cannot use Thinwire"
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = sorted({line.split()[-1] for line in maps if "/libucp" in line})
    version = C.CDLL(paths[0]).ucp_get_version_string
    version.restype = C.c_char_p
    return "%s (%s)" % (version().decode(), paths[0])


def _library() -> Iterator[Line]:
    try:
        capi.lib()
    except ImportError as error:
        yield "library", "not usable: %s" % error
        return
    yield "library", str(capi.path())
    yield "ucx", _ucx()
    yield "codecs", "on the host %s; on GPUs %s" % (
        ", ".join(_backends(capi.HOST)),
        ", ".join(_backends(capi.CUDA)) or "none: built without CUDA, or no GPU")
    yield "nccl", _nccl()


def _nccl() -> str:
    if not (NCCL / PLUGIN).exists():
        return "nothing: this is not the wheel"
    return "net plugin (%s), %s" % (NCCL, "interposer" if (NCCL / INTERPOSER).exists() else NO_INTERPOSER)


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _networks() -> Iterator[Line]:
    found = []
    for device in sorted(pathlib.Path("/sys/class/net").glob("*")):
        speed, up = _read(device / "speed"), _read(device / "operstate") != "down"
        if up:
            found.append(device.name + (" (%s Mb/s)" % speed if speed.isdigit() else ""))
    yield "networks", ", ".join(found) or "none"
    rdma = sorted(one.name for one in pathlib.Path("/sys/class/infiniband").glob("*"))
    if rdma:
        yield "rdma", ", ".join(rdma)


def _hook(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception as error:
        return "not used: %s" % error
    return "used with TW_FSDP=1"


def _entry_point() -> str:
    """Returns why TW_FSDP would have no effect; "" if it would have its effect."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        return "TORCH_DEVICE_BACKEND_AUTOLOAD=0 is set"
    points = importlib.metadata.entry_points(group="torch.backends")
    if any(one.name == "thinwire" for one in points):
        return ""
    return "thinwire is imported, but its wheel is not installed"


def _torch() -> Iterator[Line]:
    try:
        import torch
    except Exception as error:
        yield "torch", "not usable: %s" % error
        return
    yield "torch", "%s (%s)" % (torch.__version__, pathlib.Path(torch.__file__).parent)
    if not torch.distributed.is_available():
        yield "torch.distributed", "not in this torch"
        return
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield "gpus", ", ".join(torch.cuda.get_device_name(i) for i in range(gpus)) or "none"
    inside = importlib.import_module(".inside", __package__)  # it imports torch
    missing = _entry_point()
    yield "import torch", "not hooked: " + missing if missing else "hooked"
    yield "FSDP2", _hook(inside.check)
    yield "DDP", _hook(inside.check_base).replace(
        "TW_FSDP=1", "TW_DDP=1, or with register_comm_hook(None, thinwire.ddp_hook())")
    yield "backend", _hook(inside.check_backend).replace(
        "used with TW_FSDP=1", 'init_process_group("cpu:thinwire,cuda:nccl")')


def _variables() -> Iterator[Line]:
    names = sorted(name for name in os.environ if name.startswith("TW_"))
    for name in names:
        # A secret is not printed.
        yield name, "set" if name == "TW_JOB_TOKEN" else os.environ[name]
    if not names:
        yield "TW_ variables", "none"
    try:
        yield "policy", str(policy.from_environment())
    except Exception as error:
        yield "policy", "not usable: %s" % error


def lines() -> list[Line]:
    """Returns (name, state) of everything that text() shows."""
    switches.set_up_logging()
    first = [("thinwire", "%s (%s)" % (__version__, pathlib.Path(__file__).parent)),
             ("python", platform.python_version())]
    return [*first, *_library(), *_networks(), *_torch(), *_variables()]


def text() -> str:
    """Returns lines() as a table."""
    found = lines()
    width = max(len(what) for what, _ in found)
    return "\n".join("%-*s  %s" % (width, what, how) for what, how in found)
