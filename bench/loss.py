#!/usr/bin/env python3
"""What each lossy choice of gradients does to a loss in cases where it should hurt, beside plain.

Every case is an FSDP2 job on nodes of one rank, with lossless changes of weights, over Thinwire's own
collectives. All seeds train at once: a matrix has all seeds' rows, one seed after another, and a batch a
dimension more. Seeds never mix, but that scales of columns are of all their rows.
Prints, and appends to --json, the validation loss's distance from plain's of the same seed: mean over seeds
and its 95 % interval."""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from with_torch import find_python, interval, runfile, unpack_wheel

GRADS = ("plain", "int4", "int4:hadamard", "int8", "int4:stochastic", "lossless")
CONTEXT, CHARACTERS, WORDS, FEATURES = 32, 256, 4096, 128
WINDOW = 20  # steps that a point of a curve is the mean of
VALIDATION_PART = 0.05


@dataclasses.dataclass(frozen=True)
class Case:
    """A case: a GPT of `width` and `layers`; or, if `outlier` is not 0, an MLP with one feature that is
    `outlier` times as large as the others."""

    why: str
    width: int = 64
    layers: int = 1
    batch: int = 2  # sequences of a rank in a step
    ranks: int = 2
    rate: float = 2e-3
    accumulate: int = 1
    vocabulary: int = CHARACTERS
    outlier: float = 0.0
    texts: int = 0  # sequences that are repeated over and over; 0: the whole text
    before: int = 0  # plain steps before the compared ones, which go on at a hundredth of the rate


CASES = {
    "default": Case("0.8 M parameters", width=128, layers=4, rate=1e-3),
    "outlier": Case("one of 128 features, of no use, is 100 times the others", batch=64, rate=1e-3,
                    outlier=100),
    "outlier-30": Case("the same, 30 times", batch=64, rate=1e-3, outlier=30),
    "batch-1": Case("batches of one sequence", batch=1),
    "rate": Case("a learning rate of 1e-2", rate=1e-2),
    "ranks-4": Case("4 ranks, of one sequence each", batch=1, ranks=4),
    "ranks-8": Case("8 ranks, of one sequence each", batch=1, ranks=8),
    "large": Case("batches of 32 sequences", batch=32),
    "memorize": Case("four sequences a rank, over and over", texts=4),
    "embedding": Case("4,096 words, most of them rare", vocabulary=WORDS),
    "late": Case("after 1,200 steps, at a hundredth of the rate", before=1200),
    "accumulate": Case("8 batches of one sequence a step", batch=1, accumulate=8),
    "3M": Case("3 M parameters", width=256, layers=4, batch=1, rate=1e-3),
    "10M": Case("10 M parameters", width=384, layers=6, batch=1, rate=6e-4),
}


def parse_args():
    parser = argparse.ArgumentParser(prog="loss", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="some of %s" % ",".join(CASES))
    parser.add_argument("--grads", default=";".join(GRADS),
                        help="codecs, with ; between them; the first is the base (%(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="(10)")
    parser.add_argument("--steps", type=int, default=600, help="(600)")
    parser.add_argument("--json", type=pathlib.Path,
                        help="file to which each choice's line is appended; what it has is not run again")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.cases.split(",")) - set(CASES)
    if unknown:
        parser.error("no such case: %s" % ", ".join(sorted(unknown)))
    return args


def run_in_cluster(args):
    """Run this script again for each case, in an interpreter with torch, on a cluster in a box."""
    python, codes = find_python(), []
    with tempfile.TemporaryDirectory() as folder:
        unpack_wheel(folder)
        target = pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."),
                              args.json or pathlib.Path(folder, "loss.jsonl")).absolute()
        environment = os.environ | {"PYTHONPATH": folder, "GLOO_SOCKET_IFNAME": "eth0"}
        for case in args.cases.split(","):
            command = [runfile("bench/cluster"), "--nodes", CASES[case].ranks, "--link", "none", "--",
                       python, os.path.abspath(__file__), "--here", "--cases", case, "--grads", args.grads,
                       "--seeds", args.seeds, "--steps", args.steps, "--json", target]
            codes.append(subprocess.run([str(word) for word in command], env=environment).returncode)
    return max(codes)


# ---- the models --------------------------------------------------------------------------------------------


def seeds_as_one(torch, n_seeds):
    """Return a base class for one model of all seeds. Each matrix has the rows of all seeds, seed by seed."""

    class Models(torch.nn.Module):
        def matrix(self, name, out, into, std=0.02):
            several = [std * torch.randn(out, into, generator=self.generators[i]) for i in range(n_seeds)]
            self.register_parameter(name, torch.nn.Parameter(torch.cat(several)))

        def times(self, x, name):
            """Multiply x (seed, row, in) by the matrices `name` (seed, out, in)."""
            return x @ getattr(self, name).unflatten(0, (n_seeds, -1)).mT

        def __init__(self):
            super().__init__()
            self.generators = [torch.Generator().manual_seed(1 + i) for i in range(n_seeds)]

    return Models


def make_models(torch, case, n_seeds):
    """Make one model that holds a case's models of all seeds."""
    functional, Models = torch.nn.functional, seeds_as_one(torch, n_seeds)

    class MLP(Models):
        def __init__(self):
            super().__init__()
            for name, out, into in (("a", 256, FEATURES), ("b", 256, 256), ("c", 1, 256)):
                self.matrix(name, out, into, (3 * into) ** -0.5)

        def forward(self, batch):
            x, y = batch
            x = self.times(functional.gelu(self.times(functional.gelu(self.times(x, "a")), "b")), "c")
            return (x[..., 0] - y).square().mean(1)

    class GPT(Models):
        def __init__(self):
            super().__init__()
            c = case.width
            self.matrix("tokens", case.vocabulary, c)
            self.matrix("places", CONTEXT, c)
            for i in range(case.layers):
                for name, out, into in (("qkv", 3, 1), ("out", 1, 1), ("up", 4, 1), ("down", 1, 4)):
                    self.matrix(name + str(i), out * c, into * c)
            self.matrix("head", case.vocabulary, c)

        def layer(self, i, x):
            s, n, c = x.shape
            y = self.times(functional.layer_norm(x, (c,)), "qkv%d" % i)
            q, k, v = y.view(s * n // CONTEXT, CONTEXT, 3, c // 32, 32).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.times(y.transpose(1, 2).reshape(s, n, c), "out%d" % i)
            y = functional.gelu(self.times(functional.layer_norm(x, (c,)), "up%d" % i))
            return x + self.times(y, "down%d" % i)

        def forward(self, batch):
            ids, targets = batch  # (seed, sequence, token)
            s, b, t = ids.shape
            c = case.width
            rows = ids + case.vocabulary * torch.arange(s)[:, None, None]
            x = functional.embedding(rows, self.tokens) + self.places.view(s, 1, CONTEXT, c)
            x = x.view(s, b * t, c)
            for i in range(case.layers):
                x = self.layer(i, x)
            logits = self.times(functional.layer_norm(x, (c,)), "head")
            losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            return losses.view(s, -1).mean(1)

    return MLP() if case.outlier else GPT()


# ---- data --------------------------------------------------------------------------------------------------


def read_tokens(torch, vocabulary):
    """Read the King James text as tokens: bytes, or words, of which the rarest share a token."""
    text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True).stdout
    if vocabulary == CHARACTERS:
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)
    words, counts = text.split(), {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    number = {word: i for i, word in enumerate(sorted(counts, key=lambda one: (-counts[one], one)))}
    return torch.tensor([min(number[word], vocabulary - 1) for word in words])


class Features:
    """Data of the MLP. The target is a function of all features except the large one."""

    def __init__(self, torch, case, n_seeds, seed):
        self.torch, self.case, self.n_seeds = torch, case, n_seeds
        self.generator = torch.Generator().manual_seed(seed)
        self.target = torch.randn(FEATURES - 1, generator=torch.Generator().manual_seed(7)) / FEATURES ** 0.5

    def next(self, n):
        x = self.torch.randn(self.n_seeds, n, FEATURES, generator=self.generator)
        y = self.torch.tanh(x[..., 1:] @ self.target)
        x[..., 0] *= self.case.outlier
        return x, y


class Texts:
    """Random sequences of the text, different for each seed."""

    def __init__(self, torch, tokens, case, n_seeds, seed):
        self.torch, self.tokens, self.case, self.n_seeds = torch, tokens, case, n_seeds
        self.generator = torch.Generator().manual_seed(seed)
        self.few = self.starts(case.texts) if case.texts else None

    def starts(self, n):
        return self.torch.randint(len(self.tokens) - CONTEXT - 1, (self.n_seeds, n), generator=self.generator)

    def next(self, n):
        starts = self.starts(n) if self.few is None else self.few
        runs = self.tokens[starts[..., None] + self.torch.arange(CONTEXT + 1)].long()
        return runs[..., :-1], runs[..., 1:]


# ---- a run -------------------------------------------------------------------------------------------------


class Job:
    """Trains one case on this rank, once for each choice of --grads."""

    def __init__(self, args):
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.torch, self.dist, self.args = torch, dist, args
        self.name, self.case = args.cases, CASES[args.cases]
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.begun = None  # this rank's shards, weights and moments, as case.before steps leave them
        if not self.case.outlier:
            tokens = read_tokens(torch, self.case.vocabulary)
            cut = int(len(tokens) * (1 - VALIDATION_PART))
            self.train_tokens, self.val_tokens = tokens[:cut], tokens[cut:]

    def data(self, seed, is_training=True):
        if self.case.outlier:
            return Features(self.torch, self.case, self.args.seeds, seed)
        tokens = self.train_tokens if is_training else self.val_tokens
        case = self.case if is_training else dataclasses.replace(self.case, texts=0)
        return Texts(self.torch, tokens, case, self.args.seeds, seed)

    def mean(self, losses):
        """Return losses of any shape as the mean over the ranks."""
        losses = losses.detach().clone()
        self.dist.all_reduce(losses)
        return losses / self.world

    def steps(self, model, optimizer, data, n, rate):
        """Train n steps. rate(part of the steps that is done) scales the learning rate. Returns losses, a
        tensor (step, seed)."""
        losses = []
        for step in range(n):
            for group in optimizer.param_groups:
                group["lr"] = self.case.rate * rate((step + 1) / n)
            total = 0
            for _ in range(self.case.accumulate):
                loss = model(data.next(self.case.batch))
                (loss.sum() / self.case.accumulate).backward()
                total = total + loss.detach() / self.case.accumulate
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total)
        return self.mean(self.torch.stack(losses))

    def make(self, grads):
        """Make a model under FSDP2 that sends gradients by the codec `grads`, and its optimizer."""
        import thinwire
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(make_models(self.torch, self.case, self.args.seeds))
        # Only the row `lossless` sends weights as lossless changes. Plain ones give the same bits in less
        # time.
        thinwire.enable(model, weights="delta" if grads == "lossless" else "plain", grads=grads)
        return model, self.torch.optim.AdamW(model.parameters(), lr=self.case.rate, betas=(0.9, 0.95))

    def begin(self):
        """Train the steps before the compared ones, with plain gradients. Returns the state after them."""
        if self.begun is None:
            model, optimizer = self.make("plain")
            self.steps(model, optimizer, self.data(5000 + self.rank), self.case.before, schedule)
            self.begun = model.state_dict(), optimizer.state_dict()
        return self.begun

    def validate(self, model):
        """Return the loss of each seed on data that do not depend on the number of ranks."""
        data = self.data(99, is_training=False)
        with self.torch.no_grad():
            return self.torch.stack([model(data.next(16)) for _ in range(8)]).mean(0)

    def run(self, grads):
        model, optimizer = self.make(grads)
        rate = schedule
        if self.case.before:
            weights, moments = self.begin()
            model.load_state_dict(weights)
            optimizer.load_state_dict(moments)
            rate = lambda part: 0.01
        losses = self.steps(model, optimizer, self.data(1000 + self.rank), self.args.steps, rate)
        last = losses if self.case.texts else self.validate(model)[None]
        return self.row(model, grads, losses, last[-WINDOW:].mean(0))

    def row(self, model, grads, losses, last):
        case, n = self.case, len(losses) // WINDOW
        curve = losses[: n * WINDOW].view(n, WINDOW, -1).mean(1)
        return {"case": self.name, "why": case.why, "grads": grads, "ranks": self.world,
                "params": sum(one.numel() for one in model.parameters()) // self.args.seeds,
                "seeds": self.args.seeds, "steps": len(losses), "batch": case.batch,
                "accumulate": case.accumulate, "rate": case.rate, "loss": last.mean().item(),
                "losses": hashlib.sha1(losses.numpy().tobytes() + last.numpy().tobytes()).hexdigest()[:16],
                "seed_losses": last.tolist(), "window": WINDOW,
                "curve": [[round(one, 5) for one in point] for point in curve.tolist()]}

    def all(self):
        for grads in self.args.grads.split(";"):
            known = {row["grads"]: row for row in read_rows(self.args.json) if row["case"] == self.name}
            if grads not in known:
                begin = time.process_time()
                row = self.run(grads)
                row["processor_sec"] = round(time.process_time() - begin, 1)
                if self.rank == 0:
                    self.write(row, known.get(self.args.grads.split(";")[0]))
            self.dist.barrier()
        self.dist.destroy_process_group()

    def write(self, row, base):
        if base:
            compare(row, base)
        with open(self.args.json, "a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)
        print(line(row), flush=True)


def schedule(part):
    """Return the factor of the learning rate: linear warm-up over a tenth of the steps, then linear decay to
    a tenth."""
    return min(part / 0.1, 1 - 0.9 * (part - 0.1) / 0.9)


def distances(own, base):
    """Return each seed's distance from the base's loss, in percent of that loss. If a base's loss is near
    0, as on memorized data, all distances are in percent of the base's mean over seeds."""
    middle = statistics.mean(base)
    is_near_zero = min(base) < middle / 10
    return [100 * (a - b) / (middle if is_near_zero else b) for a, b in zip(own, base)]


def compare(row, base):
    """Add to a row its distances from the base's row: of the last losses, and of each window."""
    off = row["off_percent_seeds"] = distances(row["seed_losses"], base["seed_losses"])
    row["equal"] = row["losses"] == base["losses"]
    row["off_percent"], row["off_percent_interval"] = statistics.mean(off), interval(off)
    row["off_curve"] = []
    for i, (own, other) in enumerate(zip(row["curve"], base["curve"])):
        off = distances(own, other)
        row["off_curve"].append([(i + 1) * WINDOW] + [
            round(one, 4) for one in (statistics.mean(off), interval(off) or 0)])


def read_rows(path):
    return [json.loads(one) for one in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def line(row):
    off = "" if "equal" not in row else ("as plain, bit for bit" if row["equal"] else "%+8.3f +- %.3f %%" % (
        row["off_percent"], row["off_percent_interval"] or 0))
    return "%-12s %-16s %9d parameters  loss %.4f  %s  (%.0f s)" % (
        row["case"], row["grads"], row["params"], row["loss"], off, row["processor_sec"])


def main():
    args = parse_args()
    if not args.here:
        return run_in_cluster(args)
    Job(args).all()
    return 0


if __name__ == "__main__":
    sys.exit(main())
