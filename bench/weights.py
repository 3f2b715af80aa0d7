#!/usr/bin/env python3
"""Changes of weights as messages: bytes and GB/s of thinwire.delta beside what others send.

Weights are fp32 masters under AdamW, rounded to bf16, or to fp8 under an fp32 scale of the tensor that
follows its largest element; a message has the change of some steps. Beside it: an int32 position and a
value for each element that has changed; old XOR new under zstd; gaps between the positions under zstd,
their bytes apart, with the values, or with changes in units of the last place (ulps); and a copy of the
weights in memory. GB/s are those of the weights. Of blocks with scales of their own (mxfp8: e4m3 under
powers of two; fp8_128: e4m3 under fp32; nvfp4: e2m1, two to a byte, under e4m3) there are bits a weight.

With --pair OLD NEW, safetensors files of a model and of its fine-tune, a message is what diff writes, and
alone is one that needs no OLD; both beside zstd of NEW, and of the two's XOR."""

import argparse
import ctypes
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from with_torch import find_python, unpack_wheel

RATES = (1e-6, 1e-5, 1e-4, 6e-4)
DTYPES = ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2")
BLOCKS = {"mxfp8": 32, "fp8_128": 128, "nvfp4": 16}
BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.1
# With a share of changed elements in this range, a message must be at most a third as long as rival "pairs".
DENSITY = (0.01, 0.03)
RIVALS = ("pairs", "xor", "gaps", "ulps")
SPEEDS = ("encode", "decode") + RIVALS + ("memcpy",)
HEADER = "%-8s %5s %9s %7s  %12s" % ("rate", "steps", "changed", "bits", "thinwire (B)") + "".join(
    " %11s" % (name + " (B)") for name in RIVALS) + " " + "".join(" %7s" % name for name in SPEEDS) + "  ok"


def parse_args():
    parser = argparse.ArgumentParser(prog="weights", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elems", type=int, default=1 << 24, help="weights (16M)")
    parser.add_argument("--rates", default=",".join("%g" % one for one in RATES),
                        help="learning rates (%(default)s)")
    parser.add_argument("--steps", default="1,4", help="of the optimizer between two messages (1,4)")
    parser.add_argument("--rounds", type=int, default=5, help="of times; the median counts (5)")
    parser.add_argument("--threads", type=int, help="of encode and decode (one a core)")
    parser.add_argument("--dtype", choices=DTYPES + tuple(BLOCKS), default="bfloat16")
    parser.add_argument("--pair", nargs=2, metavar=("OLD", "NEW"), help="checkpoints, not weights made up")
    parser.add_argument("--json", help="append a JSON line for each rate to this file")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_in_torch():
    """Run this script again in an interpreter with PyTorch, with the wheel unpacked."""
    python = find_python()
    with tempfile.TemporaryDirectory() as folder:
        unpack_wheel(folder)
        command = [python, os.path.abspath(__file__), "--here", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": folder}).returncode


class Masters:
    """A model's fp32 weights under AdamW. Its moments start with values as they are after many steps."""

    def __init__(self, torch, n):
        self.torch, self.generator, self.step = torch, torch.Generator().manual_seed(1), 1000
        rows = max(n // 1024, 1)
        # Rows differ in scale, as in a trained model.
        self.scale = torch.exp(0.5 * self.noise(rows, 1))
        self.weights = 0.02 * self.noise(rows, 1024) * torch.exp(0.3 * self.noise(rows, 1))
        self.m = self.scale * self.noise(rows, 1024) * ((1 - BETAS[0]) / (1 + BETAS[0])) ** 0.5
        self.v = (self.scale ** 2).expand_as(self.m).clone()

    def noise(self, *shape):
        return self.torch.randn(*shape, generator=self.generator)

    def train(self, rate, steps):
        for _ in range(steps):
            gradient = self.scale * self.noise(*self.weights.shape)
            self.m.lerp_(gradient, 1 - BETAS[0])
            self.v.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            self.weights.mul_(1 - rate * DECAY).addcdiv_(self.m, self.v.sqrt().add_(EPS), value=-rate)


    def rounded(self, name):
        """Return the weights as they are sent: a tensor, or for types in blocks {"codes": ..., "scales":
        ...}."""
        if name in BLOCKS:
            return self.blocks(name)
        dtype = getattr(self.torch, name)
        if dtype.itemsize > 1:
            return self.weights.to(dtype)
        return (self.weights * (self.torch.finfo(dtype).max / self.weights.abs().max())).to(dtype)

    def blocks(self, name):
        torch = self.torch
        rows = self.weights.reshape(-1, BLOCKS[name])
        most = rows.abs().amax(1, keepdim=True)
        if name == "mxfp8":
            exponents = most.log2().floor() - 8
            scales, factors = (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu), exponents.exp2()
        elif name == "fp8_128":
            scales = factors = most / 448
        else:
            whole = most.max() / 448 / 6
            scales = (most / 6 / whole).to(torch.float8_e4m3fn)
            between = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
            codes = torch.bucketize((rows / (scales.float() * whole)).abs(), between) + 8 * (rows < 0)
            packed = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
            return {"codes": packed.view(torch.float4_e2m1fn_x2), "scales": scales}
        return {"codes": (rows / factors).clamp(-448, 448).to(torch.float8_e4m3fn), "scales": scales}


class Zstd:
    """The system's libzstd. If it is missing, bytes_of returns 0."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libzstd.so.1")
        except OSError:
            self.library = None
            return
        for name in ("ZSTD_compressBound", "ZSTD_compress"):
            getattr(self.library, name).restype = ctypes.c_size_t
        self.library.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
        self.library.ZSTD_compress.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def bytes_of(self, tensor):
        if self.library is None:
            return 0
        bound = self.library.ZSTD_compressBound(tensor.nbytes)
        room = (ctypes.c_char * bound)()
        return self.library.ZSTD_compress(room, bound, tensor.data_ptr(), tensor.nbytes, 1)

    def bytes_apart(self, torch, integers):
        """Compress integers byte plane by byte plane, so that the high bytes, mostly 0, are together. Returns
        the compressed size."""
        planes = integers.view(-1, 1).view(torch.uint8)
        return sum(self.bytes_of(planes[:, i].contiguous()) for i in range(planes.shape[1]))


def timed(times, name, function):
    begin = time.perf_counter()
    result = function()
    times.setdefault(name, []).append(time.perf_counter() - begin)
    return result


def ulps(torch, before, after):
    """Return changes in units in the last place, in zigzag code: 0, -1, 1, -2 become 0, 1, 2, 3."""
    old, new = (torch.where(one < 0, torch.iinfo(one.dtype).min - one, one) for one in (before, after))
    change = new - old
    return (change << 1) ^ (change >> (8 * change.itemsize - 1))


def rivals(torch, zstd, before, after):
    """Returns {name of a rival: function that makes its message and returns the message's size in bytes}."""
    def changed():
        at = (before != after).nonzero().view(-1).int()
        return at, before[at], after[at]

    def gaps(with_ulps):
        at, old, new = changed()
        return zstd.bytes_apart(torch, at.diff(prepend=at[:1])) + zstd.bytes_apart(
            torch, ulps(torch, old, new) if with_ulps else new)

    def pairs():
        at, _, new = changed()
        return at.nbytes + new.nbytes

    return {"pairs": pairs, "xor": lambda: zstd.bytes_of(before ^ after), "gaps": lambda: gaps(False),
            "ulps": lambda: gaps(True)}


def measure(torch, delta, masters, rate, steps, args):
    old = masters.rounded(args.dtype)
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32}[old.itemsize]
    masters.train(rate, steps)
    new, times, sizes = masters.rounded(args.dtype), {}, {}
    before, after, target = old.view(words).view(-1), new.view(words).view(-1), torch.empty_like(old)
    others = rivals(torch, Zstd(), before, after)
    for _ in range(args.rounds):
        message = timed(times, "encode", lambda: delta.encode(old, new, args.threads))
        target.copy_(old)
        timed(times, "decode", functools.partial(delta.decode, target, message, True, args.threads))
        assert torch.equal(target.view(words), new.view(words))
        for name, make in others.items():
            sizes[name + "_bytes"] = timed(times, name, make)
        timed(times, "memcpy", lambda: target.copy_(old))
    changed = (before != after).float().mean().item()
    ok = (len(message) <= old.nbytes + 4096
          and (not DENSITY[0] <= changed <= DENSITY[1] or len(message) <= sizes["pairs_bytes"] / 3))
    return {"rate": rate, "steps": steps, "changed": changed, "bits": 8 * len(message) / old.numel(),
            "thinwire_bytes": len(message), **sizes, "dtype": args.dtype, "weights_bytes": old.nbytes,
            "new_bytes": len(delta.encode({}, {"new": new})), "ok": ok,
            **{name + "_gb_per_sec": old.nbytes / statistics.median(found) / 1e9
               for name, found in times.items()}}


def measure_blocks(torch, delta, masters, rate, steps, args):
    """Measure weights in blocks: the bits per weight of their codes and of their scales, two tensors."""
    old = masters.rounded(args.dtype)
    masters.train(rate, steps)
    new = masters.rounded(args.dtype)
    message, ok = delta.encode(old, new, args.threads), True
    row = {"rate": rate, "steps": steps, "dtype": args.dtype, "elems": masters.weights.numel()}
    for name, one in delta.decode(old, message).items():
        before, after, decoded = (x.contiguous().view(torch.uint8) for x in (old[name], new[name], one))
        ok = ok and torch.equal(decoded, after)
        wide = before.view(-1, new[name].itemsize) != after.view(-1, new[name].itemsize)
        row[name + "_changed"] = wide.any(1).float().mean().item()
        row[name + "_bits"] = 8 * len(delta.encode(old[name], new[name], args.threads)) / row["elems"]
    return row | {"thinwire_bytes": len(message), "bits": 8 * len(message) / row["elems"], "ok": ok}


def measure_pair(torch, delta, args):
    """Measure the bytes of a fine-tuned model as a difference from its base model."""
    from safetensors.torch import load_file

    old, new = map(load_file, args.pair)
    with tempfile.TemporaryDirectory() as folder:
        found = delta.diff(*args.pair, os.path.join(folder, "change.twd"), args.threads, verify=True)
    before, after = (torch.cat([one[name].view(-1).view(torch.uint8) for name in new]) for one in (old, new))
    zstd, (first, second) = Zstd(), map(os.path.basename, args.pair)
    row = {"old": first, "new": second, "weights_bytes": found.weights_bytes,
           "thinwire_bytes": found.message_bytes,
           "alone_bytes": len(delta.encode({}, new, args.threads)), "zstd_bytes": zstd.bytes_of(after),
           "xor_bytes": zstd.bytes_of(before ^ after), "elems": sum(one.numel() for one in new.values())}
    print(", ".join("%s %s" % one for one in row.items()))
    return row | {"ok": found.message_bytes <= found.weights_bytes}


def show_blocks(row):
    print("%-8g %5d  codes: %6.3f %% changed, %6.4f bits; scales: %7.3f %%, %6.4f bits  %s" % (
        row["rate"], row["steps"], 100 * row["codes_changed"], row["codes_bits"],
        100 * row["scales_changed"], row["scales_bits"], "yes" if row["ok"] else "NO"), flush=True)


def show(row):
    if row["dtype"] in BLOCKS:
        show_blocks(row)
        return
    print("%-8g %5d %7.2f %% %7.3f  %12d" % (
        row["rate"], row["steps"], 100 * row["changed"], row["bits"], row["thinwire_bytes"])
        + "".join(" %11s" % (row[name + "_bytes"] or "-") for name in RIVALS) + " "
        + "".join(" %7.2f" % row[name + "_gb_per_sec"] for name in SPEEDS)
        + "  " + ("yes" if row["ok"] else "NO"), flush=True)


def rows(torch, delta, args):
    masters = Masters(torch, args.elems)
    print("# %d weights in %s" % (masters.weights.numel(), args.dtype))
    if args.dtype not in BLOCKS:
        print("# GB/s of weights; ok: no larger than plain and, where 1 to 3 % have changed, no more than a "
              "third of the pairs")
        print(HEADER)
    one = measure_blocks if args.dtype in BLOCKS else measure
    for rate in map(float, args.rates.split(",")):
        for steps in map(int, args.steps.split(",")):
            row = one(torch, delta, masters, rate, steps, args)
            show(row)
            yield row


def main():
    args = parse_args()
    if not args.here:
        return run_in_torch()
    import torch
    from thinwire import delta

    torch.set_num_threads(args.threads or len(os.sched_getaffinity(0)))
    ok = True
    for row in [measure_pair(torch, delta, args)] if args.pair else rows(torch, delta, args):
        ok = ok and row["ok"]
        if args.json:
            with open(args.json, "a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
