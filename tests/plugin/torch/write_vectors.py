#!/usr/bin/env python3
"""write_vectors.py: the messages in vectors/ and vectors.txt with their sums, for readers of the format.
Run it where thinwire and torch are. test_delta_format.py: does today's encoder still write the same?"""

import hashlib
import pathlib
import random

import torch
from thinwire import delta
from thinwire.delta import message, tensors

FOLDER = pathlib.Path(__file__).parent / "vectors"


def noise(*shape, dtype=torch.bfloat16, seed=0, size=0.02):
    generator = torch.Generator().manual_seed(seed)
    return (size * torch.randn(shape, generator=generator)).to(dtype)


def stepped(tensor, seed=1, rate=1e-5):
    moves = noise(*tensor.shape, dtype=torch.float64, seed=seed, size=rate)
    return (tensor.double() + moves).to(tensor.dtype)


def scaled(tensor, size=0.003):
    """Each value moves by a part of its size."""
    moves = noise(*tensor.shape, dtype=torch.float64, seed=5, size=size)
    return (tensor.double() * (1 + moves)).to(tensor.dtype)


def uneven(*shape, dtype=torch.bfloat16):
    """Rows and columns of other sizes each, and rows of zeros."""
    whole = noise(*shape, dtype=torch.float64)
    whole *= torch.logspace(-2, 1, shape[1], dtype=torch.float64)
    whole *= torch.logspace(-3, 0, shape[0], dtype=torch.float64)[:, None]
    whole[3:5] = 0
    return whole.to(dtype)


def listed():
    """fp32 weights that were bf16, but for some."""
    found = noise(24, 48).float()
    found[5, 7] = 0.1234567
    return found


def sums_of_two():
    """fp32 weights that are sums of numbers with few bits: their last bits are zeros."""
    return noise(16, 40, seed=1).float() + noise(16, 40, seed=2).half().float()


def many():
    return {"matrix": uneven(20, 40), "scalar": torch.tensor(3.0), "ids": torch.arange(40),
            "empty": torch.empty(0, 4), "flags": torch.tensor([True, False]),
            "half": noise(33, dtype=torch.float16), "gone": noise(7),
            "old.name": noise(34, 32, seed=3)}


def many_after():
    new = {name: one.clone() for name, one in many().items()}
    new["matrix"], new["ids"], new["name"] = stepped(new["matrix"]), new["ids"] + 1, new.pop("old.name")
    del new["gone"]
    return new | {"added": noise(40, seed=4)}


def fours(every=None):
    """Pairs of numbers of 4 bits, of which small ones are many; of so many one is another."""
    numbers = torch.tensor(random.Random(1).choices(range(16), [40, 20, 10, 5, 3, 2, 1, 1] * 2, k=8000))
    if every:
        numbers[::every] ^= 1
    return (numbers[::2] | numbers[1::2] << 4).to(torch.uint8).view(torch.float4_e2m1fn_x2)


def any_bits():
    return torch.frombuffer(bytearray(random.Random(0).randbytes(2400)), dtype=torch.bfloat16)


def vectors():
    """Yields (name, name of the message that makes the old weights or None, new weights, elements of a chunk,
    versions)."""
    new = uneven(24, 48)
    yield "bf16-new", None, {"w": new}, None, None
    yield "bf16-delta", "bf16-new", {"w": scaled(new)}, None, None
    yield "bf16-unchanged", "bf16-new", {"w": new}, None, None
    yield "bf16-any-bits", None, {"w": any_bits()}, None, None
    half = noise(30, 40, dtype=torch.float16)
    yield "fp16-new", None, {"w": half}, None, None
    yield "fp16-delta", "fp16-new", {"w": stepped(half)}, None, None
    single = noise(16, 64, dtype=torch.float32)
    yield "fp32-new", None, {"w": single}, None, None
    yield "fp32-halves", "fp32-new", {"w": stepped(single)}, None, None
    yield "fp32-tails-listed", None, {"w": listed()}, None, None
    yield "fp32-tails-coded", None, {"w": sums_of_two()}, None, None
    eight = noise(64, 70, size=1).to(torch.float8_e4m3fn)
    yield "fp8-new", None, {"w": eight}, None, None
    yield "fp8-delta", "fp8-new", {"w": scaled(eight, 0.03)}, None, None
    yield "fp4-new", None, {"w": fours()}, None, None
    yield "fp4-nibbles", "fp4-new", {"w": fours(7)}, None, None
    yield "int64-plain", None, {"ids": torch.arange(7) ** 9}, None, None
    yield "many-new", None, many(), 700, None
    yield "many-delta", "many-new", many_after(), 700, None
    old, after = [delta.Version(i + 1, tensors.check_of({"w": one})) for i, one in enumerate([new, -new])]
    yield "stream-full", None, {"w": new}, None, (None, old)
    yield "stream-delta", "stream-full", {"w": -new}, None, (old, after)


def encode(old, new, elems, versions):
    """As thinwire.delta.encode, in chunks of so many elements."""
    before, after = tensors._source(old)[0], tensors._source(new)[0]
    head = message.Head([("", tensors._header(after.specs))], *message.pair(before, after), None,
                        elems or 1 << 21, versions)
    data = []
    message.write(head, before, after, data.append)
    return b"".join(data)


def values_of(weights):
    """All bytes, tensor after tensor."""
    return b"".join(one.reshape(-1).view(torch.uint8).numpy().tobytes() for one in weights.values())


def main():
    made, lines = {None: {}}, [
        "# file, file that makes the old weights (- for none), SHA-256 of the file, and of the new weights'",
        "# bytes, tensor after tensor in the order of the message's header; \"refused\" for one that must be"]
    for name, base, new, elems, versions in vectors():
        data, made[name] = encode(made[base], new, elems, versions), new
        (FOLDER / (name + ".twd")).write_bytes(data)
        lines.append(" ".join([name, base or "-", hashlib.sha256(data).hexdigest(),
                               hashlib.sha256(values_of(new)).hexdigest()]))
    broken = bytearray((FOLDER / "bf16-delta.twd").read_bytes())
    broken[-40] ^= 4
    (FOLDER / "bf16-broken.twd").write_bytes(broken)
    lines.append("bf16-broken bf16-new %s refused" % hashlib.sha256(broken).hexdigest())
    (FOLDER / "vectors.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
