#!/usr/bin/env python3
"""Checks every #include "folder/..." against the layers: BELOW says which folders a folder may include, and
from outside a folder only its public header <folder>/<folder>.h may be included. Bazel's visibility checks
only direct dependencies between targets; this also finds includes that come through other targets."""

import re
import sys

import tracked

BELOW = {
    "core": [],
    "safetensors": ["core"],
    "cluster": ["core"],
    "flags": ["cluster", "core"],
    "quant": ["core"],
    "transport": ["core"],
    "collectives": ["quant", "transport", "core"],
    "hpz": ["collectives", "quant", "core"],
    "plugin": ["collectives", "quant", "transport", "core"],
    "doctor": ["quant", "transport", "core"],
    "trainer": ["hpz", "collectives", "quant", "safetensors", "flags", "cluster", "core"],
}
BELOW["bench"] = list(BELOW)
BELOW["tests"] = list(BELOW)

# Public headers besides <folder>/<folder>.h.
ALSO_PUBLIC = [
    "core/line.h",
    "hpz/keeper.h",
    # For the trainer's fp8 weights, which no other folder has.
    "quant/e4m3.h",
    # For programs that measure the error of a codec.
    "quant/loss.h",
    "transport/devices.h",
    "transport/p2p.h",
    # For sums of plain tensors on a GPU, which must give the same NaN as the CPU.
    "quant/arithmetic/float.h",
    # For AdamW's step in the trainer's kernels, which do not encode.
    "quant/arithmetic/adamw.h",
    # For bench/codecs, which trains a model to get gradients.
    "trainer/data/data.h",
    "trainer/model/model.h",
]

# Folders that may include private headers: tests mirror the sources.
MAY_LOOK_INSIDE = ["tests"]

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([A-Za-z0-9_.-]+)/([^">]+)[">]')


def complaint(folder, target, header):
    """Returns the complaint about an include of target/header in a file of `folder`, or None."""
    if target not in BELOW or target == folder:
        return None
    if target not in BELOW[folder]:
        return "%s may not include %s" % (folder, target)
    public = header == target + ".h" or target + "/" + header in ALSO_PUBLIC
    if not public and folder not in MAY_LOOK_INSIDE:
        return "%s/%s is private; include %s/%s.h" % (target, header, target, target)
    return None


def check(path):
    """Yields the complaints about one file."""
    folder = path.split("/")[0]
    if folder not in BELOW:
        return
    for number, line in enumerate(tracked.read(path).split("\n"), 1):
        match = INCLUDE.match(line)
        wrong = match and complaint(folder, match.group(1), match.group(2))
        if wrong:
            yield "%s:%d: %s" % (path, number, wrong)


def main():
    tracked.enter()
    names = tracked.tracked(*tracked.C_FILES)
    complaints = [c for name in names for c in check(name)]
    print("\n".join(complaints + ["%d files, %d complaints" % (len(names), len(complaints))]))
    return 1 if complaints or not names else 0


if __name__ == "__main__":
    sys.exit(main())
