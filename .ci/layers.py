#!/usr/bin/env python3
"""Checks every #include "folder/..." against the layers: who may include whom, and only the
public header <folder>/<folder>.h from outside a folder. Bazel's visibility holds the arrows
between targets; this also holds what a target would get through its dependencies.
"""

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
    # Only the trainer has fp8 weights.
    "quant/e4m3.h",
    # Those who measure what a codec loses include it.
    "quant/loss.h",
    "transport/devices.h",
    "transport/p2p.h",
    # Sums of plain tensors on a GPU have the CPU's NaN by it.
    "quant/arithmetic/float.h",
    # The trainer's kernels make AdamW's step by it, without encoding.
    "quant/arithmetic/adamw.h",
    # The benchmark that trains to have gradients reads text by it.
    "trainer/data/data.h",
    "trainer/model/model.h",
]

# Tests mirror the sources, so they may look inside.
MAY_LOOK_INSIDE = ["tests"]

INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([A-Za-z0-9_.-]+)/([^">]+)[">]')


def complaint(folder, target, header):
    """Returns what is wrong with an include of target/header from a folder, or None."""
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
