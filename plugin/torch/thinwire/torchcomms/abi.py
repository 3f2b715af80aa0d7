"""The names of torchcomms that are used, and checks that the installed version has them."""

from __future__ import annotations

import importlib.metadata
import types
from collections.abc import Iterator

NAME = "thinwire"
# Versions that this code was written for. Version 0.0.1 on PyPI is an empty package.
READ = ("0.3",)
NAMES = ("CommOptions", "ReduceOp", "TorchComm", "TorchCommBackend", "new_comm", "register_backend")
# {method of TorchComm that backend.py wraps: its parameters}
COLLECTIVES = {
    "all_gather": ("tensor_list", "tensor"),
    "all_gather_single": ("output", "input"),
    "all_gather_v": ("tensor_list", "tensor"),
    "all_reduce": ("tensor", "op"),
    "all_to_all": ("output_tensor_list", "input_tensor_list"),
    "all_to_all_single": ("output", "input"),
    "all_to_all_v_single": ("output", "input", "output_split_sizes", "input_split_sizes"),
    "barrier": (),
    "broadcast": ("tensor", "root"),
    "gather": ("output_tensor_list", "input_tensor", "root"),
    "gather_single": ("output", "input", "root"),
    "reduce": ("tensor", "root", "op"),
    "reduce_scatter": ("output", "input_list", "op"),
    "reduce_scatter_single": ("output", "input", "op"),
    "reduce_scatter_v": ("output", "input_list", "op"),
    "scatter": ("output_tensor", "input_tensor_list", "root"),
}
AT_EACH_CALL = ("async_op", "hints", "timeout")
OTHERS = {
    "abort": (), "get_backend": (), "get_backend_impl": (), "get_backend_version": (), "get_device": (),
    "is_abort_supported": (), "is_aborted": (), "set_hints": ("hints",),
    "split": ("ranks", "name", "hints", "timeout"),
}


def version() -> str:
    try:
        return importlib.metadata.version("torchcomms")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def parameters_of(function: object) -> tuple[str, ...] | None:
    """Returns a C++ function's parameters, from its docstring's first line; None if the line has none."""
    line = (getattr(function, "__doc__", None) or "").split("\n")[0]
    found, depth = [""], 0
    for character in line.partition("(")[2]:
        depth += {"[": 1, "(": 1, "<": 1, "{": 1, "]": -1, ")": -1, "}": -1}.get(character, 0)
        depth -= character == ">" and found[-1][-1:] != "-"
        if depth < 0:
            names = [one.partition(":")[0].strip() for one in found]
            return tuple(name for name in names if name not in ("self", ""))
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return None


def _differences(module: types.ModuleType) -> Iterator[str]:
    missing = [name for name in NAMES if not hasattr(module, name)]
    if missing:
        yield from missing
        return
    methods = {name: (*own, *AT_EACH_CALL) for name, own in COLLECTIVES.items()} | OTHERS
    for name, expected in methods.items():
        if parameters_of(getattr(module.TorchComm, name, None)) != expected:
            yield "TorchComm.%s(%s)" % (name, ", ".join(expected))


def difference(module: types.ModuleType, its_version: str) -> str:
    """Returns why there is no backend for this version of torchcomms; "" if there is one."""
    if not hasattr(module, "register_backend"):
        return "it takes no backends that are written in Python"
    if ".".join(its_version.split(".")[:2]) not in READ:
        return "its interface was read in %s" % ", ".join(one + ".x" for one in READ)
    found = list(_differences(module))
    return "it has no %s" % ", ".join(found) if found else ""
