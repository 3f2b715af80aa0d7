#!/usr/bin/env python3
"""Training on processors: tokens/s of one rank, ours beside PyTorch's in fp32 and under bf16
autocast.

All of them train the same shapes; a round is a step of each, one after the other, so that what else the
machine does meets all alike. Figures are medians. The floor is what the model's products alone would take at
the speed of the fastest product that ours measured on this processor, for each thread."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench"))

from with_torch import find_python, finish, runfile

SHAPES = {
    "0.8M": {"layers": 4, "heads": 4, "kv_heads": 2, "width": 128, "inner": 384, "vocabulary": 257,
             "sequence": 128, "batch": 8},
    "10M": {"layers": 6, "heads": 6, "kv_heads": 2, "width": 384, "inner": 1024, "vocabulary": 257,
            "sequence": 256, "batch": 4},
    "124M": {"layers": 12, "heads": 12, "kv_heads": 4, "width": 768, "inner": 2048, "vocabulary": 0,
             "sequence": 256, "batch": 2},
}
VOCABULARIES = {"gpt2": 50257, "llama": 32000}
MODES = ("ours", "fp32", "autocast")
MANY = 1000000  # steps: more than the bench ever takes


def parse_args():
    parser = argparse.ArgumentParser(prog="cpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(SHAPES), help="some of %s" % ",".join(SHAPES))
    parser.add_argument("--families", default=",".join(VOCABULARIES),
                        help="some of %s" % ",".join(VOCABULARIES))
    parser.add_argument("--modes", default=",".join(MODES), help="some of %s; ours always" % ",".join(MODES))
    parser.add_argument("--seconds", type=float, default=30, help="of each row (30)")
    parser.add_argument("--rounds", type=int, default=30, help="at most, of each row; 3 at least (30)")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall",
                        help="processor: what the processes used, which other work on the machine changes "
                        "less (wall)")
    parser.add_argument("--threads", type=int, default=1, help="of the rank, ours and PyTorch's alike (1)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="a key of our configuration")
    parser.add_argument("--torch", help="version of torch to fetch (the newest known here)")
    parser.add_argument("--json", type=pathlib.Path, help="file for a JSON line of each row")
    args = parser.parse_args()
    for given, known in ((args.sizes, SHAPES), (args.families, VOCABULARIES), (args.modes, MODES)):
        unknown = set(given.split(",")) - set(known)
        if unknown:
            parser.error("no such thing: %s" % ", ".join(sorted(unknown)))
    return args


def shape_of(size, family):
    shape = SHAPES[size] | {"family": family}
    return shape | {"vocabulary": shape["vocabulary"] or VOCABULARIES[family]}


def keys(shape, args):
    found = {"model.family": shape["family"], "model.n_layer": shape["layers"],
             "model.n_head": shape["heads"], "model.n_embd": shape["width"],
             "model.vocab_size": shape["vocabulary"], "thinwire.sequence_length": shape["sequence"],
             "train_micro_batch_size_per_gpu": shape["batch"], "gradient_accumulation_steps": 1,
             "zero_optimization.stage": 0, "thinwire.steps": MANY, "thinwire.val_sequences": 0,
             "gradient_clipping": 1.0, "thinwire.threads": args.threads}
    if shape["family"] == "llama":
        found |= {"model.n_kv_head": shape["kv_heads"], "model.n_inner": shape["inner"]}
    return ["%s=%s" % item for item in found.items()] + args.set


class Runner:
    """A process that takes a step when it is told to."""

    def __init__(self, command, clock, threads):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TW_")}
        environment["OMP_NUM_THREADS"] = str(threads)
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, env=environment, text=True)
        self.command, self.clock, self.seconds = command, clock, []
        self.about = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("%s: exit code %s" % (self.command[0], self.process.wait()))
        return json.loads(line)

    def step(self, counts):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self.read()
        self.loss = answer["loss"]
        if counts:
            self.seconds.append(answer[self.clock])
        return answer["wall"]

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def flops_of_token(shape):
    """Operations of a token, forward and backward: 6 for each product; attention sees half of the tokens on
    average."""
    c, width = shape["width"], shape["width"] // shape["heads"]
    layer = 12 * c * c
    if shape["family"] == "llama":
        layer = 2 * c * c + 2 * c * shape["kv_heads"] * width + 3 * c * shape["inner"]
    return 6 * (shape["layers"] * (layer + c * shape["sequence"]) + shape["vocabulary"] * c)


def measure(size, family, python, args):
    shape = shape_of(size, family)
    torch = [python, runfile("tests/bench/cpu/torch_steps.py"), json.dumps(shape)]
    commands = {"ours": [runfile("tests/bench/cpu_steps")] + keys(shape, args)}
    commands |= {mode: torch + [mode, str(args.threads)]
                 for mode in MODES[1:] if mode in args.modes.split(",")}
    runners = {mode: Runner(command, args.clock, args.threads) for mode, command in commands.items()}
    round_sec = 0.0
    for _ in range(2):
        round_sec = sum(runner.step(False) for runner in runners.values())
    n_rounds = max(3, min(args.rounds, int(args.seconds / round_sec)))
    for _ in range(n_rounds):
        for runner in runners.values():
            runner.step(True)
    for runner in runners.values():
        runner.stop()
    return make_row(size, shape, runners, n_rounds, args.threads)


def make_row(size, shape, runners, n_rounds, threads):
    tokens = shape["batch"] * shape["sequence"]
    speeds = {mode: tokens / statistics.median(runner.seconds) for mode, runner in runners.items()}
    others = {mode: speed for mode, speed in speeds.items() if mode != "ours"}
    about = runners["ours"].about
    floor = threads * max(about["peak_fp32"], about["peak_bf16"]) / flops_of_token(shape)
    row = {"size": size, "family": shape["family"], "threads": threads, "rounds": n_rounds, "tokens": tokens,
           "tokens_per_sec": speeds, "flops_per_token": flops_of_token(shape), "floor_tokens_per_sec": floor,
           "floor_share": speeds["ours"] / floor} | about
    if others:
        best = max(others, key=others.get)
        # ratios of each round, so that what slows a round slows both
        ratios = [b / a for a, b in zip(runners["ours"].seconds, runners[best].seconds)]
        row |= {"best": best, "ratio": statistics.median(ratios)}
    row["ok"] = row.get("ratio", 1.0) >= 1.0
    return row


def processor():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split("\n\n")[0]
    fields = {name.strip(): value.strip()
              for name, _, value in (line.partition(":") for line in text.splitlines())}
    flags = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
             if flag in fields.get("flags", "").split()]
    return "%s, family %s, with %s" % (
        fields.get("model name"), fields.get("cpu family"), " ".join(flags) or "no AVX2")


def line(row):
    speeds = row["tokens_per_sec"]
    columns = ["%10.0f" % speeds[mode] if mode in speeds else "%10s" % "-" for mode in MODES]
    ratio = "%6.2f of %s" % (row["ratio"], row["best"]) if "ratio" in row else ""
    return "  %-6s %-6s %s %10.0f %6.0f %% %6d  %-20s %s" % (
        row["size"], row["family"], " ".join(columns), row["floor_tokens_per_sec"], 100 * row["floor_share"],
        row["rounds"], ratio, "yes" if row["ok"] else "NO: slower than PyTorch")


def main():
    args = parse_args()
    python = find_python(args.torch) if args.modes != "ours" else None
    print("# thinwire cpu: one rank, %d thread%s, tokens/s by the %s clock; %s"
          % (args.threads, "s" if args.threads > 1 else "", args.clock, processor()))
    print("# %-6s %-6s %10s %10s %10s %10s %8s %6s  %-20s %s"
          % ("size", "family", "ours", "fp32", "autocast", "floor", "share", "rounds", "ratio", "ok"))
    found = []
    for size in args.sizes.split(","):
        for family in args.families.split(","):
            found.append(measure(size, family, python, args))
            print(line(found[-1]), flush=True)
    peaks = tuple(1e-9 * max(row[name] for row in found) for name in ("peak_fp32", "peak_bf16"))
    print("# products: %s; up to %.0f Gflop/s in fp32, %.0f in bf16" % ((found[0]["products"],) + peaks))
    return finish(found, args.json)


if __name__ == "__main__":
    sys.exit(main())
