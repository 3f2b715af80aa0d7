#!/usr/bin/env python3
"""Trains the same GPT-2 with the trainer's feature sets, one after the other, in a cluster in a box, and
compares them with plain ZeRO-3 of the same seed.

Every run is one of //trainer:train. Exit code 1: a run failed, its bytes were not as planned, replicas
differed or a loss was not finite."""

import argparse
import hashlib
import json
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

from with_torch import finish, interval, runfile, users

SETS = ("ddp", "zero1", "zero2", "zero3", "zero3-qwz", "zero3-qgz", "zero3-hpz", "zeropp", "delta8", "delta4",
        "delta2", "delta", "zero3-lossless", "lossless", "fp8", "delta-g4", "delta-ecdq-half",
        "delta-ecdq")
# The feature set that the others are compared with.
BASE = "zero3"
SEQUENCE = 128
# A run's model must have fewer parameters than --params times this.
PARAMS_FACTOR = 2
UNITS = {"K": 1e3, "M": 1e6, "G": 1e9}
# Columns of the table: a row's key, header, width (negative: aligned left), digits, and factor.
COLUMNS = (("set", "set", -15, None, None), ("seed", "seed", 4, 0, 1),
           ("step_sec_median", "ms/step", 9, 1, 1e3), ("speedup", "speed-up", 8, 2, 1),
           ("wait_share", "wait, %", 7, 1, 100), ("inter_node_bytes_per_step", "MB/step", 9, 4, 1e-6),
           ("bytes_ratio", "bytes", 7, 4, 1), ("delta_bits", "bits", 6, 2, 1),
           ("last_loss", "loss", 8, 4, 1), ("val_loss", "val loss", 9, 5, 1),
           ("peak_rss_bytes", "RSS MB", 8, 1, 1e-6), ("ok", "ok", 6, None, None),
           ("losses", "losses", -16, None, None))


def count(text):
    """Parse a number such as 200K."""
    return float(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else float(text)


def parse_args():
    parser = argparse.ArgumentParser(prog="zero", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS),
                        help="some of %s; delta8, delta4 and delta2 with int4 gradients" % ",".join(SETS))
    parser.add_argument("--nodes", type=int, default=2, help="nodes (2)")
    parser.add_argument("--ranks-per-node", type=int, default=2, help="ranks on each node (2)")
    parser.add_argument("--link", default="100mbit",
                        help="of each node, each way; none: not shaped (100mbit)")
    parser.add_argument("--steps", type=int, default=200, help="training steps of each run (200)")
    parser.add_argument("--params", type=count, default=1e6, help="of the model, about: 1M, 124M (1M)")
    parser.add_argument("--tokens", type=int, default=512, help="of a step, over all ranks, about (512)")
    parser.add_argument("--lr", type=float, default=6e-4, help="peak learning rate (6e-4)")
    parser.add_argument("--warmup", type=int, default=100,
                        help="steps of warm-up, before the cosine (100)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each set (1)")
    parser.add_argument("--first-seed", type=int, default=1, help="the first one's seed (1)")
    parser.add_argument("--rounds", type=int, default=1,
                        help="every set once in each round, and of each the round with the middle time: for "
                        "a machine that is busy now and then (1)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="a key of all runs' configuration, such as optimizer.type=Muon; several times")
    parser.add_argument("--data", help="text, or .bin of uint16 tokens (the King James text)")
    parser.add_argument("--json", help="file for a JSON line of each set and seed")
    parser.add_argument("--metrics", type=users,
                        help="file for a JSON line of each step of each run, of every round")
    args = parser.parse_args()
    args.sets = args.sets.split(",")
    for name in args.sets:
        if name not in SETS:
            parser.error("--sets: there is no '%s'" % name)
    for name in ("nodes", "ranks_per_node", "steps", "seeds", "rounds"):
        if getattr(args, name) < 1:
            parser.error("--%s: at least 1" % name.replace("_", "-"))
    world = args.nodes * args.ranks_per_node
    if args.tokens < world:
        parser.error("--tokens: %d is too small: at least %d, one for each rank" % (args.tokens, world))
    return args


def command(args, name, seed):
    """Return the trainer's command line. A rank gets whole sequences, or one shorter one if --tokens is
    small."""
    own = args.tokens // (args.nodes * args.ranks_per_node)
    sequence = min(own, SEQUENCE)
    keys = {"thinwire.sequence_length": sequence, "train_micro_batch_size_per_gpu": own // sequence,
            "gradient_accumulation_steps": 1, "thinwire.steps": args.steps, "thinwire.seed": seed,
            "model.n_params": "%.0f" % args.params, "optimizer.params.lr": "%.9g" % args.lr,
            "scheduler.params.warmup_num_steps": args.warmup}
    sets = ["%s=%s" % pair for pair in keys.items()] + args.set
    return [runfile("trainer/train"), "--nodes", args.nodes, "--ranks-per-node", args.ranks_per_node,
            "--link", args.link, "--features", name, *(["--data", args.data] if args.data else []),
            *(word for one in sets for word in ("--set", one))]


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def row_of(args, name, seed, result, losses):
    """Return a row with the results of a set's run. Unknown results are None."""
    steps = result["steps"]
    digest = hashlib.blake2b(struct.pack("<%dd" % len(losses), *losses), digest_size=8).hexdigest()
    return {"set": name, "seed": seed, "stage": result["stage"], "nodes": args.nodes,
            "ranks_per_node": args.ranks_per_node, "link_bps": result["link_bps"], "params": result["params"],
            "steps": steps, "tokens": result["tokens"] // steps, "lr": args.lr, "warmup": args.warmup,
            **({"keys": args.set} if args.set else {}),
            "step_sec_median": result["step_sec"], "speedup": None, "wait_share": result["wait_share"],
            "inter_node_bytes_per_step": result["inter_node_bytes"] / steps,
            "in_node_bytes_per_step": result["in_node_bytes"] / steps, "bytes_ratio": None,
            **{key: result[key] for key in (
                "delta_bits", "first_loss", "last_loss", "val_loss", "load_inter_node_bytes",
                "val_inter_node_bytes", "upkeep_inter_node_bytes", "peak_rss_bytes", "planned_rss_bytes",
                "before_rss_bytes")},
            "ok": result["bytes_as_planned"] and result["replicas_equal"] and result["losses_finite"],
            "losses": digest, "losses_equal": None}


def run(args, name, seed, number):
    """Run a set. Return its row, or None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        metrics, result = pathlib.Path(folder, "metrics"), pathlib.Path(folder, "result")
        words = [*command(args, name, seed), "--metrics", metrics, "--result", result]
        code = subprocess.run([str(word) for word in words], stdout=subprocess.DEVNULL).returncode
        if code == 2:
            sys.exit(2)  # its flags are these
        if not result.exists():
            print("zero: %s, seed %d: ended with %d" % (name, seed, code), file=sys.stderr)
            return None
        steps = read_lines(metrics)
        row = row_of(args, name, seed, read_lines(result)[0], [step["loss"] for step in steps])
    if args.metrics:
        with args.metrics.open("a", encoding="utf-8") as out:
            for step in steps:
                line = {"set": name, "seed": seed, "round": number, "delta_bits": 0} | step
                out.write(json.dumps(line, separators=(",", ":")) + "\n")
    return row


def middle(rounds):
    """Return the round with the median time; of two rounds, the faster. The result is ok only if all rounds
    are ok and have the same losses."""
    row = sorted(rounds, key=lambda one: one["step_sec_median"])[(len(rounds) - 1) // 2]
    return row | {"ok": all(one["ok"] and one["losses"] == row["losses"] for one in rounds)}


def compare(row, base):
    """Add a row's comparison with the base's row of the same seed."""
    sent = base["inter_node_bytes_per_step"]
    row["bytes_ratio"] = row["inter_node_bytes_per_step"] / sent if sent else None
    row["speedup"] = base["step_sec_median"] / row["step_sec_median"]
    row["losses_equal"] = row["losses"] == base["losses"]


def cell(text, width):
    return text.rjust(width) if width > 0 else text.ljust(-width)


def text_of(value, digits, factor):
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "NO"}[value]
    return "%.*f" % (digits, value * factor) if factor else str(value)


def line(row):
    note = " as " + BASE if row["losses_equal"] and row["set"] != BASE else ""
    return " ".join(cell(text_of(row[key], digits, factor), width)
                    for key, _, width, digits, factor in COLUMNS) + note


def check_params(args, row):
    """Check after a run that --params was not too small. The smallest possible model depends on the data."""
    if row["params"] >= PARAMS_FACTOR * args.params:
        sys.exit("zero: --params: %.0f is too small: at least %d (the smallest model for this data has %d)" %
                 (args.params, row["params"] // PARAMS_FACTOR + 1, row["params"]))


def run_seed(args, seed, rows):
    """Run all sets. The base runs first, because the others are compared with it. Returns True on success."""
    names = sorted(args.sets, key=lambda name: name != BASE)
    rounds, well = {name: [] for name in names}, True
    for number in range(1, args.rounds + 1):
        for name in names:
            row = run(args, name, seed, number)
            if not row:
                well = False
                continue
            check_params(args, row)
            rounds[name].append(row)
            if number < args.rounds:
                print("# round %d of %d, %s, seed %d: %.1f ms" % (
                    number, args.rounds, name, seed, row["step_sec_median"] * 1e3), flush=True)
                continue
            row = middle(rounds[name])
            base = next((one for one in rows if (one["set"], one["seed"]) == (BASE, seed)), row)
            if base["set"] == BASE:
                compare(row, base)
            rows.append(row)
            print(line(row), flush=True)
    return well


def report_seeds(rows):
    """Print how far each set's validation loss is from the base's, in percent: mean over seeds, 95 %
    interval."""
    base = {row["seed"]: row["val_loss"] for row in rows if row["set"] == BASE}
    for name in dict.fromkeys(row["set"] for row in rows if row["set"] != BASE):
        off = [100 * (row["val_loss"] / base[row["seed"]] - 1) for row in rows
               if row["set"] == name and row["val_loss"] and base.get(row["seed"])]
        if len(off) > 1:
            mean, half = statistics.mean(off), interval(off)
            print("# %-15s validation loss %+.3f %% of %s's, 95 %% interval %+.3f to %+.3f (%d seeds)" % (
                name, mean, BASE, mean - half, mean + half, len(off)))


def main():
    args = parse_args()
    rows, well = [], True
    if args.metrics:
        args.metrics.write_text("", encoding="utf-8")
    print("# %d x %d ranks, links %s; %d steps, learning rate %g, warm-up %d" % (
        args.nodes, args.ranks_per_node, "not shaped" if args.link == "none" else args.link, args.steps,
        args.lr, args.warmup))
    print(" ".join(cell(text, width) for _, text, width, _, _ in COLUMNS), flush=True)
    try:
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            well = run_seed(args, seed, rows) and well
    except KeyboardInterrupt:
        well = False
        print("# interrupted: %d rows are complete" % len(rows), flush=True)
    report_seeds(rows)
    return finish(rows, args.json) or not well


if __name__ == "__main__":
    sys.exit(main())
