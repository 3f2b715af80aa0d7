#!/usr/bin/env python3
"""neon_counts.py FILE: instructions of aarch64 that codecs execute for an element, with NEON and by the
portable reference, as JSON lines. First: ./bazelw build --config=aarch64 //bench:codecs.

qemu-user says which instructions it translates, and which blocks of them it executes. The bench reads its
clock before and after an operation: what lies between two readings is the operation, and a hundred
instructions of the clock's. A count is no time: instructions take different times, and wait for each other
and for memory."""

import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

ELEMS, ROW = 1 << 16, 128
QEMU = ["qemu-aarch64-static", "-L", "/", "-d", "nochain,exec,in_asm"]
BENCH = pathlib.Path(__file__).resolve().parents[2] / "bazel-bin/bench/codecs"
CLOCK = b" tw_thread_sec\n"
BLOCKS, MESSAGES = ("int8", "int4", "int4:hadamard"), ("lossless", "ecdq")
BYTES = {"bf16": 2, "fp32": 4}
# Which reading of the clock ends an operation in the first sample of the bench: of blocks, of messages.
BLOCK_READINGS, MESSAGE_READINGS = {"": 2}, {"encode": 4, "decode": 6}


def matrix(folder, dtype):
    """The path of a safetensors file: one matrix of normal numbers."""
    draw = random.Random(1)
    words = [struct.unpack("<I", struct.pack("<f", draw.gauss(0, 1)))[0] for _ in range(ELEMS)]
    data = (struct.pack("<%dI" % ELEMS, *words) if dtype == "fp32"
            else struct.pack("<%dH" % ELEMS, *(word >> 16 for word in words)))
    head = json.dumps({"w": {"dtype": {"fp32": "F32", "bf16": "BF16"}[dtype],
                             "shape": [ELEMS // ROW, ROW], "data_offsets": [0, len(data)]}}).encode()
    path = pathlib.Path(folder, dtype + ".safetensors")
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return path


def count(backend, readings, *flags):
    """{operation: instructions}: those before the reading of the clock with each operation's number."""
    command = [*QEMU, BENCH, "--seconds", "0", "--backend", backend, *flags]
    sizes, done, since, block, entry = {}, [], 0, b"", None
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if line.startswith(b"IN:"):
                block = b""
            elif line.startswith(b"0x"):  # an instruction of a block that is translated
                if not block:
                    block = line[2:line.index(b":")].zfill(16)
                    sizes[block] = 0
                sizes[block] += 1
            elif line.startswith(b"Trace"):  # a block that is executed
                at = line.split(b"/", 2)[1]
                entry = at if not entry and line.endswith(CLOCK) else entry
                if at == entry:
                    done.append(since)
                    since = 0
                    if len(done) > max(readings.values()):
                        break
                since += sizes[at]
        process.kill()
    return {op: done[reading] for op, reading in readings.items()}


def cases(folder):
    """(codec, type, operation or "" if a run has both, what ends it, the bench's flags)"""
    for dtype, size in BYTES.items():
        for codec in BLOCKS:
            for op in ("encode", "decode", "decode_add"):
                yield codec, dtype, op, BLOCK_READINGS, ["--sources", "blocks", "--types", dtype, "--ops", op,
                                                         "--cache", "cold", "--bytes", size * ELEMS]
        for codec in MESSAGES:
            yield codec, dtype, "", MESSAGE_READINGS, ["--file", matrix(folder, dtype)]
    yield "delta", "bf16", "", MESSAGE_READINGS, ["--sources", "steps", "--elems", ELEMS, "--contexts", 1]


def main():
    with tempfile.TemporaryDirectory() as folder, open(sys.argv[1], "w", encoding="utf-8") as out:
        for codec, dtype, op, readings, flags in cases(folder):
            neon, ref = (count(backend, readings, "--codecs", codec, *flags) for backend in ("neon", "ref"))
            for one in readings:
                row = {"codec": codec, "type": dtype, "op": one or op, "elems": ELEMS,
                       "neon_insns": round(neon[one] / ELEMS, 3), "ref_insns": round(ref[one] / ELEMS, 3),
                       "part": round(neon[one] / ref[one], 3)}
                print(json.dumps(row), file=out, flush=True)


if __name__ == "__main__":
    main()
