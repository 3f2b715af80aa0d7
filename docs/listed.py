#!/usr/bin/env python3
"""listed.py LABEL...: every program that a BUILD file makes stands in docs/programs.md, or here as one that
nobody is to call by hand."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "package"))

import targets

# What rules, tests and other programs call; libraries that are linked like programs; older names of
# //bench:codecs.
NOT_CALLED = [
    "//bench:delta", "//bench:lossless", "//bench:quant",
    "//:format", "//:tidy", "//docs:pictures", "//docs:programs", "//package:exports",
    "//package:libthinwire_linked.so", "//package:ship", "//plugin/interpose:libthinwire-nccl.so",
    "//plugin/nccl:libnccl-net-thinwire.so", "//plugin/torch:make_wheel",
]
# What people call by another label.
ALIASES = {"//package:install": "//:install", "//trainer/plan:main": "//trainer:plan"}


def main(listed):
    os.chdir(os.path.dirname(os.path.realpath("WORKSPACE")))
    tree = targets.Tree(pathlib.Path(), "x86_64")
    folders = [str(path.parent) for folder in pathlib.Path().iterdir() if is_ours(folder)
               for path in folder.rglob("BUILD")]
    made = ["//%s:%s" % (folder, name) for folder in ["", *folders]
            for name, target in tree.run(folder, "BUILD").targets.items()
            if target["rule"] in ("cc_binary", "sh_binary")]
    missing = sorted(set(ALIASES.get(label, label) for label in made) - set(listed) - set(NOT_CALLED))
    for label in missing:
        print("%s: neither in PROGRAMS of docs/BUILD nor in NOT_CALLED of docs/listed.py" % label,
              file=sys.stderr)
    return 1 if missing or not made else 0


def is_ours(folder):
    return folder.is_dir() and folder.name != "tests" and not folder.name.startswith(("bazel-", "."))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
