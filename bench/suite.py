#!/usr/bin/env python3
"""Bytes and seconds to the same loss on slow links: PyTorch's own ways, Thinwire's, and others'.

An entrant is a Python file that says what it needs and shares a model among the ranks: those of
bench/entrants, and any that is named by its path. All train the same GPT on the same batches
(bench/fsdp_job.py) in a cluster in a box, whose interfaces count the bytes; starting up is not counted. A
loss is the mean of ten steps; the target is the first entrant's after nine tenths of its steps."""

import argparse
import pathlib
import re
import runpy
import subprocess
import sys
import tempfile
import time

from plot import WINDOW, smooth
from torch_bench import parse_rate
from with_torch import TORCH_VENV, find_python, finish, run_job, runfile, unpack_wheel, users

TARGET_PART = 0.9
# An exception's last line in a rank's output.
ERROR = re.compile(r"^(?:\[rank ?\d+\]:? *)*((?:\w+\.)*\w*(?:Error|Exception): .*)$", re.M)
# Columns: title, key of a row, how it is printed.
COLUMNS = (("steps", "steps_to_target", "%d"), ("MB a node", "mb_to_target", "%.2f"),
           ("part", "bytes_ratio", "%.3f"), ("seconds", "sec_to_target", "%.1f"),
           ("faster", "speedup", "%.2f"), ("floor, s", "floor_sec", "%.1f"),
           ("last loss", "loss_last", "%.4f"))


def parse_args(known):
    parser = argparse.ArgumentParser(prog="suite", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entrants", default=",".join(known),
                        help="the others are compared with the first; a path stands for all that its file "
                        "has (%(default)s)")
    parser.add_argument("--nodes", type=int, default=4, help="one rank on each (4)")
    parser.add_argument("--link", default="100mbit", help="rate of each node's link (100mbit)")
    parser.add_argument("--params", default="1M", help="of the model (1M)")
    parser.add_argument("--steps", type=int, default=120, help="of each run (120)")
    parser.add_argument("--target", type=float, metavar="LOSS", help="another target")
    parser.add_argument("--limit", type=int, default=300, metavar="SEC", help="of each run (300)")
    parser.add_argument("--job-args", default="", help="more flags of the job")
    parser.add_argument("--json", type=pathlib.Path,
                        help="file for a JSON line of each entrant; //bench:plot draws it")
    return parser.parse_args()


def read(path):
    """Returns {entrant: (its file, packages that it needs, its environment variables)}."""
    said = runpy.run_path(str(path))
    return {name: (path, said["NEEDS"], variables) for name, variables in said["ENTRANTS"].items()}


def choose(names, known):
    """Returns read()'s dictionary of the entrants that the user names, by name or path."""
    found = {}
    for name in names.split(","):
        if not name.endswith(".py") and name not in known:
            sys.exit("no such entrant: %s; there are %s" % (name, ", ".join(known)))
        found |= {name: known[name]} if name in known else read(users(name).absolute())
    return found


def output(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True).stdout


def python_with(needs, python):
    """Returns an interpreter with these packages of PyPI and the torch of `python`, from the user's cache."""
    if not needs:
        return python
    asked = "import importlib.metadata as m; t = m.distribution('torch'); print(t.locate_file(''), t.version)"
    beside, version = output(python, "-c", asked).split()
    cache = runpy.run_path(str(runfile(TORCH_VENV)))["CACHE"]
    folder = cache / ("beside-torch-" + version) / "-".join(needs)
    if not (folder / "done").exists():
        output(python, "-m", "venv", "--clear", "--upgrade-deps", folder)
        site, limits = next(folder.glob("lib/python3*/site-packages")), folder / "limits.txt"
        (site / "torch.pth").write_text(beside, encoding="utf-8")
        limits.write_text("torch==" + version, encoding="utf-8")
        output(folder / "bin/pip", "install", "-q", "--no-build-isolation", "-c", limits, *needs)
        (folder / "done").touch()
    return folder / "bin/python3"


def run(name, entrant, args, python, folder):
    """Runs an entrant. Returns (its result, ""), or (None, the reason why it failed)."""
    path, needs, variables = entrant
    try:
        python = python_with(needs, python)
    except subprocess.CalledProcessError as error:
        return None, "not installed: " + error.output.strip().splitlines()[-1]
    begin = time.monotonic()
    result, said = run_job(python, folder, args, ["--entrant", "%s=%s" % (name, path)], variables, args.limit)
    if result:
        return result, ""
    if time.monotonic() - begin >= args.limit:
        return None, "took longer than %d s" % args.limit
    return None, (ERROR.findall(said) or said.strip().splitlines()[-1:] or ["says nothing"])[0]


def make_row(result, target):
    """Make a row: steps, bytes and seconds of a run until it reached the target. The row's curve has (MB,
    seconds, loss) after each step."""
    losses, curve, sent, seconds = smooth(result["losses"]), [], 0.0, 0.0
    for one_sent, one_sec, loss in zip(result["sent_bytes"], result["step_sec"], result["losses"]):
        sent, seconds = sent + one_sent, seconds + one_sec
        curve.append((round(sent / 1e6, 4), round(seconds, 4), round(loss, 6)))
    row = {"params": result["params"], "steps": len(losses), "target": target, "loss_last": losses[-1],
           "curve": curve}
    for i in range(WINDOW - 1, len(losses)):
        if losses[i] <= target:
            return row | {"steps_to_target": i + 1, "mb_to_target": curve[i][0], "sec_to_target": curve[i][1]}
    return row


def compare(row, base):
    """Compare a row with the first entrant's, if both reached the target."""
    if "steps_to_target" in row and "steps_to_target" in base:
        row["bytes_ratio"] = row["mb_to_target"] / base["mb_to_target"] if base["mb_to_target"] else None
        row["speedup"] = base["sec_to_target"] / row["sec_to_target"]


def line(row):
    cells = ["%9s" % (form % row[key] if row.get(key) is not None else "-") for _, key, form in COLUMNS]
    return "%-20s %s" % (row["entrant"], row["why"] or " ".join(cells))


def main():
    known = {}
    for path in sorted(runfile("bench/entrants/ddp.py").parent.glob("*.py")):
        known |= read(path)
    args = parse_args(known)
    chosen = choose(args.entrants, known)
    rows, base, python = [], None, find_python()
    print("# thinwire suite: %d nodes, link %s, %s parameters, %d steps"
          % (args.nodes, args.link, args.params, args.steps))
    print("# %-20s %s" % ("entrant", " ".join("%9s" % title for title, _, _ in COLUMNS)), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        unpack_wheel(folder)
        for name, entrant in chosen.items():
            print("# %s" % name, file=sys.stderr, flush=True)
            result, why = run(name, entrant, args, python, folder)
            # An entrant that needs packages of PyPI may fail: they may not be available here.
            row = {"entrant": name, "nodes": args.nodes, "link_bps": parse_rate(args.link), "why": why,
                   "ok": not why or bool(entrant[1])}
            if result:
                target = base["target"] if base else args.target or smooth(result["losses"])[
                    int(TARGET_PART * args.steps) - 1]
                row |= make_row(result, target)
                if "mb_to_target" in row and row["link_bps"]:  # what its bytes take on its node's link
                    row["floor_sec"] = 8e6 * row["mb_to_target"] / row["link_bps"]
                base = base or row
                compare(row, base)
            rows.append(row)
            print("  " + line(row), flush=True)
    if base:
        print("# to a loss of %.4f; part, faster: beside %s" % (base["target"], base["entrant"]))
    return finish(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
