"""Reads Bazel's BUILD files for a build without Bazel. They are run as Python. Each rule is a function that
only records the arguments of its call."""

from __future__ import annotations

import builtins
import pathlib
import re
import typing

Attributes = dict[str, typing.Any]
# Values that BUILD files load from @local_cuda. This build compiles nothing for GPUs.
LOCAL_CUDA = {"CUDA_FOUND": False, "NCCL_FOUND": False, "NVCC": ""}
LABEL = re.compile(r"(?://([^:]*))?:?(.*)")


class _Names(dict):
    """The globals of a BUILD file. A name that Python does not know is taken for a rule: a function that
    records its call's arguments in `targets`."""

    def __init__(self, tree: Tree, folder: str):
        super().__init__(glob=self._glob, load=self._load, select=self._select)
        self._tree, self._folder = tree, folder
        self.targets: dict[str, Attributes] = {}

    def __missing__(self, name: str) -> object:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        return lambda *_, **said: self.targets.update({said.get("name", ""): {"rule": name, **said}})

    def _glob(self, include: list[str], exclude: typing.Sequence[str] = ()) -> list[str]:
        base = self._tree.root / self._folder
        found, out = ({str(path.relative_to(base)) for pattern in patterns for path in base.glob(pattern)}
                      for patterns in (include, exclude))
        return sorted(found - out)

    def _select(self, choices: Attributes) -> object:
        return choices.get("@platforms//cpu:" + self._tree.machine, choices.get("//conditions:default"))

    def _load(self, label: str, *names: str, **renamed: str) -> None:
        folder, name = self._tree.split(label, self._folder)
        wanted = {one: one for one in names} | renamed
        if label.startswith("@local_cuda"):
            self.update({here: LOCAL_CUDA[there] for here, there in wanted.items()})
        elif name == "defs.bzl":  # only these files define values; other .bzl files define rules
            loaded = self._tree.run(folder, name)
            self.update({here: loaded[there] for here, there in wanted.items()})


class Tree:
    """The sources below `root`, as they are built for `machine` ("x86_64", "aarch64")."""

    def __init__(self, root: pathlib.Path, machine: str):
        self.root, self.machine = root, machine
        self._read: dict[tuple[str, str], _Names] = {}

    def split(self, label: str, folder: str) -> tuple[str, str]:
        """Returns (folder, name) of a label. A relative label is relative to `folder`."""
        found = LABEL.fullmatch(label)
        assert found
        named = folder if found[1] is None else found[1]
        return named, found[2] or named.rsplit("/", 1)[-1]

    def run(self, folder: str, name: str) -> _Names:
        """Run a BUILD or .bzl file, once. Returns its globals and targets."""
        if (folder, name) not in self._read:
            path = self.root / folder / name
            names = self._read[folder, name] = _Names(self, folder)
            exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)
        return self._read[folder, name]

    def closure(self, label: str, folder: str = "") -> dict[str, Attributes]:
        """Returns {label: attributes} of a target and all that it needs. KeyError if a target is missing."""
        found: dict[str, Attributes] = {}
        waiting = [self.split(label, folder)]
        while waiting:
            folder, name = waiting.pop()
            label = "//%s:%s" % (folder, name)
            if label not in found:
                found[label] = self.run(folder, "BUILD").targets[name] | {"folder": folder}
                waiting += [self.split(one, folder) for one in found[label].get("deps", [])
                            if not one.startswith("@local_cuda")]
        return found
