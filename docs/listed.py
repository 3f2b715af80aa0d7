#!/usr/bin/env python3
"""listed.py LABEL...: every program that a BUILD file makes stands in docs/programs.md, or here as one that
nobody is to call by hand."""

import ast
import os
import pathlib
import sys

# What rules, tests and other programs call; libraries that are linked like programs; older names of
# //bench:codecs.
NOT_CALLED = [
    "//bench:delta", "//bench:lossless", "//bench:quant",
    "//:format", "//:tidy", "//docs:pictures", "//docs:programs", "//bench:cpu_steps", "//package:exports",
    "//package:libthinwire_linked.so", "//package:ship", "//plugin/interpose:libthinwire-nccl.so",
    "//plugin/nccl:libnccl-net-thinwire.so", "//plugin/torch:make_wheel",
]
# What people call by another label.
ALIASES = {"//package:install": "//:install", "//trainer/plan:main": "//trainer:plan"}


def names(call, loops):
    """Of a rule: its name, or all those that the list has which it is made for."""
    for keyword in call.keywords:
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
            yield keyword.value.value
        elif keyword.arg == "name":
            for loop in loops:
                yield from (one.value for one in ast.walk(loop.iter) if isinstance(one, ast.Constant))


def programs(path):
    """Those of a BUILD file, which reads as Python."""
    loops = []
    for node in ast.walk(ast.parse(path.read_text())):  # a comprehension comes before what it makes
        if isinstance(node, ast.ListComp):
            loops = node.generators
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("_binary"):
            yield from names(node, loops)


def main(listed):
    os.chdir(os.path.dirname(os.path.realpath("WORKSPACE")))
    made = ["//%s:%s" % ("" if str(path.parent) == "." else path.parent, name)
            for folder in pathlib.Path(".").iterdir() if folder.name == "BUILD" or is_ours(folder)
            for path in ([folder] if folder.is_file() else folder.rglob("BUILD")) for name in programs(path)]
    missing = sorted(set(ALIASES.get(label, label) for label in made) - set(listed) - set(NOT_CALLED))
    for label in missing:
        print("%s: neither in PROGRAMS of docs/BUILD nor in NOT_CALLED of docs/listed.py" % label,
              file=sys.stderr)
    return 1 if missing or not made else 0


def is_ours(folder):
    return folder.is_dir() and folder.name != "tests" and not folder.name.startswith(("bazel-", "."))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
