"""delta: the format of messages, by a reader of its own and by messages that are kept."""

import collections
import ctypes
import hashlib
import json
import math
import pathlib
import random
import struct
import zlib

import format_reader
import lossless_reader
import pytest
import torch
import write_vectors
from thinwire import capi, delta
from thinwire.delta import chunks, message, sources, tensors
from xxh3 import xxh3

FOLDER = pathlib.Path(__file__).parent / "vectors"
FLOATS = [torch.bfloat16, torch.float16, torch.float32]
TYPES = {short: dtype for dtype, short in tensors._dtypes().items()}


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def shape_of(dtype, shape):
    """torch's, which counts pairs of numbers."""
    return tensors._shape(sources.Spec(dtype, tuple(shape)))


def written(tensors_):
    """{name: (type, shape, bytes)}, as the reader in plain Python has them."""
    found = {}
    for name, one in tensors_.items():
        spec = tensors._spec(tensors.type_of(one), one.shape)
        found[name] = spec.dtype, spec.shape, raw(one)
    return found


def read(data, old):
    """What the reader in plain Python reads; of each payload: form, type, what the codec inside says of its
    own form."""
    found, values = [], lossless_reader.Source.values

    def noting(source, form, dtype, *others):
        inside = {1: 2, 2: 3, 3: 6, 4: 16}.get(form)
        if source.data:
            found.append((form, dtype, source.data[inside] if inside else None))
        return values(source, form, dtype, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lossless_reader.Source, "values", noting)
        return lossless_reader.read(data, old), found


def read_both(old, new):
    """Both readers make `new`, and say the same of spoilt bytes."""
    data, after = delta.encode(old, new), written(new)
    found, forms = read(data, written(old))
    for name, one in found.items():
        assert one == after[name], name
    for name, one in delta.decode(old, data).items():
        assert raw(one) == raw(new[name])
    return forms


@pytest.mark.parametrize("seed", [0, 1, 1 << 63])
def test_the_checksum(seed):
    data = random.Random(seed).randbytes(3000)
    for n in (*range(0, 300), 1023, 1024, 1025, 1088, 1089, 2048, 2049, 3000):
        assert xxh3(data[:n], seed) == capi.lib().tw_checksum(data, n, seed), n


def one_small_row(dtype):
    """Its scale is far from the others': a long number in a list."""
    found = write_vectors.noise(70, 64, dtype=torch.float32)
    found[5] *= 1e-3 if dtype == torch.float16 else 1e-30
    return found.to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_both_readers_read_all_forms(dtype):
    noise, stepped, seen = write_vectors.noise, write_vectors.stepped, collections.Counter()
    for n in (1, 255, 256, 1023, 1024, 3001, 66000):
        old = {"a": noise(n, dtype=dtype)}
        seen.update(read_both({}, old))
        seen.update(read_both(old, {"a": stepped(old["a"])}))
    old = {"a": noise(70, 64, dtype=dtype), "b": write_vectors.uneven(30, 33, dtype=dtype)}
    for new in (old, {name: stepped(one) for name, one in old.items()},
                {"a": noise(70, 64, dtype=dtype, seed=9), "c": old["b"]},
                {"b": one_small_row(dtype), "d": write_vectors.uneven(16, 64, dtype=dtype)},
                {"b": write_vectors.listed().to(dtype), "a": write_vectors.sums_of_two().to(dtype)},
                {"d": write_vectors.any_bits().view(torch.uint8).view(dtype), "a": 1000 * old["a"]}):
        seen.update(read_both(old, new))
        seen.update(read_both({}, new))
    changes = 3 if dtype == torch.float32 else 1
    assert {form for form, _, _ in seen} == {0, 2, changes}
    assert {inside for form, _, inside in seen if form == 2} >= ({1, 2} if dtype == torch.float32 else {1})


def test_both_readers_read_bytes():
    seen = set()
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int8):
        for n in (1, 1023, 5000, 270000):
            old = {"a": write_vectors.noise(n, dtype=torch.float64, size=1).to(dtype)}
            moved = {"a": write_vectors.scaled(old["a"], 0.05)}
            anything = torch.frombuffer(bytearray(random.Random(n).randbytes(n)), dtype=torch.uint8)
            seen.update(read_both({}, old) + read_both(old, moved))
            seen.update(read_both(old, {"a": anything.view(dtype)}))
    assert {(form, inside) for form, _, inside in seen} >= {(0, None), (4, 0xD5), (4, 1)}


def test_both_readers_read_pairs_of_numbers():
    """By bytes where few have changed, by numbers where many have; in one chunk with others that have not."""
    old = {"a": write_vectors.fours(), "b": write_vectors.fours(5), "c": write_vectors.fours(9)}
    seen = []
    for every in (2000, 7):
        seen += [form for form, _, _ in read_both(old, old | {"a": write_vectors.fours(every)})]
        seen += [form for form, _, _ in read_both(old, {name: write_vectors.fours(every) for name in old})]
    assert set(seen[:1]) == {4} and set(seen[2:]) == {5}


@pytest.mark.parametrize("seed", range(20))
def test_both_readers_read_random_weights(seed):
    generator = random.Random(seed)
    old, new = {}, {}
    for i in range(generator.randrange(1, 6)):
        dtype = generator.choice([*FLOATS, torch.int64, torch.bool, torch.float64])
        shape = [generator.randrange(1, 70) for _ in range(generator.randrange(3))]
        size, name = 10 ** generator.uniform(-12, 3), "t%d" % i
        new[name] = write_vectors.noise(*shape, dtype=torch.float64, seed=seed + i, size=size).to(dtype)
        if generator.random() < 0.7:
            moved = new[name].double() * (1 + generator.choice([0, 1e-4, 1e-2]))
            old[name] = moved.to(dtype)
    read_both(old, new)


def vectors():
    lines = (FOLDER / "vectors.txt").read_text(encoding="utf-8").splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines if not line.startswith("#")}


def vector(name):
    return (FOLDER / (name + ".twd")).read_bytes()


def old_of(base):
    """{name: (type, shape, bytes)} that a vector's message makes, by the reader in plain Python."""
    return {} if base == "-" else lossless_reader.read(vector(base), old_of(vectors()[base][0]))


def as_tensors(found):
    return {name: torch.frombuffer(bytearray(values), dtype=TYPES[dtype]).reshape(shape_of(dtype, shape))
            if values else torch.empty(shape, dtype=TYPES[dtype])
            for name, (dtype, shape, values) in found.items()}


def body_of(data):
    """What is behind the head, whose deflated bytes are zlib's business, and what the head says."""
    n_bytes = int.from_bytes(data[8:16], "little")
    return lossless_reader.Source(data).message_head()[0], data[24 + n_bytes :]


@pytest.mark.parametrize("name", vectors())
def test_vectors(name):
    base, of_file, of_values = vectors()[name]
    data, old = vector(name), old_of(base)
    assert hashlib.sha256(data).hexdigest() == of_file and len(data) < 4096
    if of_values == "refused":
        with pytest.raises(format_reader.FormatError):
            lossless_reader.read(data, old)
        with pytest.raises(delta.DeltaError):
            delta.decode(as_tensors(old), data)
        return
    new = lossless_reader.read(data, old)
    assert hashlib.sha256(b"".join(values for _, _, values in new.values())).hexdigest() == of_values
    for one, tensor in delta.decode(as_tensors(old), data).items():
        assert raw(tensor) == new[one][2]
    # and today's encoder writes the same
    head = lossless_reader.Source(data).message_head()[0]
    versions = head.get("versions")
    again = write_vectors.encode(as_tensors(old), as_tensors(new), head["chunk_elems"],
                                 versions and tuple(one and tuple(one) for one in versions))
    assert body_of(again) == body_of(data)


def check_of(weights):
    """The checksum of a version of {name: (type, shape, bytes)}, as the page has it."""
    lines = []
    for name in sorted(weights):
        (dtype, shape, values), check = weights[name], 0
        piece = format_reader.SIZES[dtype] << 21
        for at in range(0, len(values), piece):
            check = xxh3(values[at : at + piece], check)
        lines.append("%s %s%s %016x\n" % (json.dumps(name), dtype, list(shape), check))
    return "%016x" % xxh3("".join(lines).encode())


def test_versions_are_the_weights_checksums():
    for name, base in (("stream-full", "-"), ("stream-delta", "stream-full")):
        head, old = lossless_reader.Source(vector(name)).message_head()[0], old_of(base)
        new = lossless_reader.read(vector(name), old)
        before = head["versions"][0]
        assert (before and before[1]) == (check_of(old) if old else None)
        assert head["versions"][1][1] == check_of(new)
    assert check_of(old_of("many-new")) == tensors.check_of(as_tensors(old_of("many-new")))


def test_vectors_have_all_forms():
    seen = {one for name in vectors() if name != "bf16-broken"
            for one in read(vector(name), old_of(vectors()[name][0]))[1]}
    assert seen >= {(0, "I64", None), (0, "BF16", None), (1, "BF16", 1), (2, "BF16", 1), (1, "F16", 1),
                    (2, "F16", 1), (2, "F32", 1), (2, "F32", 2), (3, "F32", 1),
                    (4, "F8_E4M3", 1), (4, "F8_E4M3", 0xD5)}
    assert {path.stem for path in FOLDER.glob("*.twd")} == set(vectors())


def test_any_spoilt_byte_is_refused():
    base, _, _ = vectors()["many-delta"]
    before, data = old_of(base), vector("many-delta")
    for place in random.Random(0).sample(range(len(data)), 60):
        spoilt = data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        with pytest.raises(ValueError):
            lossless_reader.read(spoilt, before)


def forged(data, head=None, header=None, cut=None, form=None, payload=None, **run):
    """A message of one tensor with some of it changed, under checksums that are right: fields of the head,
    the header of its file, where the packed head ends; form, payload; same, before, after of its run."""
    n_bytes = int.from_bytes(data[8:16], "little")
    fields, chunk = json.loads(zlib.decompress(data[24 : 24 + n_bytes])), data[24 + n_bytes :]
    fields |= ({"files": [["", header]]} if header else {}) | (head or {})
    packed = zlib.compress(json.dumps(fields).encode())[:cut]
    front = struct.pack("<8sQQ", data[:8], len(packed), xxh3(packed))
    was = struct.unpack_from("<BIQBQQ", chunk)
    form, payload = was[0] if form is None else form, chunk[30:] if payload is None else payload
    row = struct.pack("<BQQ", *(dict(zip(("same", "before", "after"), was[3:])) | run).values())
    check = xxh3(payload, xxh3(row, form))
    return front + packed + struct.pack("<BIQ", form, len(payload), check) + row + payload


def header(*tensors):
    """Of (name, type, shape, offsets); a name may be there twice."""
    fields = '"%s": {"dtype": "%s", "shape": %s, "data_offsets": %s}'
    return "{%s}" % ", ".join(fields % one for one in tensors)


W = "w", "F32", [16, 64], [0, 4096]
HEADS = {
    "a tensor twice in a file": {"header": header(W, W)},
    "a tensor in two files": {"head": {"files": [["a", header(W)], ["b", header(W)]], "index": ["i", "{}"]}},
    "an unknown type": {"header": header(("w", "F31", [16, 64], [0, 4096]))},
    "a gap": {"header": header(("w", "F32", [16, 64], [4, 4100]))},
    "another shape": {"header": header(("w", "F32", [16, 65], [0, 4096]))},
    "a negative shape": {"header": header(("w", "F32", [-16, -64], [0, 4096]))},
    "half a pair": {"header": header(("w", "F4", [3, 3], [0, 4]))},
    "no elements in a chunk": {"head": {"chunk_elems": 0}},
    "too many elements in a chunk": {"head": {"chunk_elems": (1 << 28) + 1}},
    "a file in a folder": {"head": {"files": [["../a", header(W)]], "index": ["i", "{}"]}},
    "an index in a folder": {"head": {"files": [["a", header(W)]], "index": ["x/i", "{}"]}},
    "a name without an index": {"head": {"files": [["a", header(W)]]}},
    "two files without an index": {"head": {"files": [["", header(W)], ["", "{}"]]}},
    "no files": {"head": {"files": None}},
    "a head that ends too early": {"cut": -2},
}


@pytest.mark.parametrize("what", HEADS)
def test_both_readers_refuse_heads(what):
    """Each is as it should be but for one thing, which a forger can write."""
    data = forged(vector("fp32-new"), **HEADS[what])
    with pytest.raises((ValueError, LookupError, TypeError)):
        lossless_reader.Source(data).message_head()
    with pytest.raises(delta.DeltaError):
        message.read_head(message.taker(data))


CHUNKS = [
    ("fp32-new", {"same": 1}), ("fp32-new", {"same": 2}), ("fp32-new", {"before": 1}),
    ("fp32-new", {"after": 1}), ("bf16-delta", {"after": 1}), ("bf16-unchanged", {"after": 1}),
    ("fp32-new", {"payload": bytes(4101), "form": 0}), ("fp32-new", {"payload": bytes(4095), "form": 0}),
    ("bf16-delta", {"same": 2}), ("bf16-unchanged", {"before": 1}), ("bf16-unchanged", {"form": 2}),
    ("bf16-unchanged", {"payload": b"x"}), ("fp32-halves", {"form": 1}), ("fp8-delta", {"form": 5}),
    ("int64-plain", {"form": 2}), *(("fp32-new", {"form": form}) for form in (0, 1, 3, 4, 5, 6)),
    *(("fp4-new", {"form": form}) for form in (1, 2, 3, 5))]


@pytest.mark.parametrize("name, change", CHUNKS, ids=str)
def test_both_readers_refuse_chunks(name, change):
    old = old_of(vectors()[name][0])
    assert lossless_reader.read(forged(vector(name)), old) == old_of(name)
    with pytest.raises(format_reader.FormatError):
        lossless_reader.read(forged(vector(name), **change), old)
    with pytest.raises(delta.DeltaError):
        delta.decode(as_tensors(old), forged(vector(name), **change))


def test_other_old_tensors_are_refused():
    data, old = vector("bf16-delta"), old_of("bf16-new")
    dtype, shape, values = old["w"]
    for other in ({}, {"v": old["w"]}, {"w": ("F16", shape, values)}, {"w": (dtype, shape[::-1], values)},
                  {"w": (dtype, shape, values[:-1] + b"x")}):
        with pytest.raises(format_reader.FormatError, match="old"):
            lossless_reader.read(data, other)
        with pytest.raises(delta.DeltaError, match="old"):
            delta.decode(as_tensors(other), data)


def test_another_version_is_refused():
    data, old = vector("stream-delta"), old_of("stream-full")
    made_from = lossless_reader.Source(data).message_head()[0]["versions"][0]
    assert lossless_reader.read(data, old, made_from)
    with pytest.raises(format_reader.FormatError, match="another version"):
        lossless_reader.read(data, old, [made_from[0] + 1, made_from[1]])
    assert lossless_reader.read(vector("stream-full"), {}, made_from)


def decode_lossless_in_c(coder, payload, dtype, n):
    """The values' bytes; None, if the message is refused."""
    values, segment = bytearray(n * format_reader.SIZES[dtype]), (capi.LosslessSegment * 1)()
    segment[0].dst, segment[0].n_elems = ctypes.addressof(ctypes.c_char.from_buffer(values)), n
    status = capi.lib().tw_quant_lossless_decode(
        coder._lossless, {"F32": capi.FP32, "BF16": capi.BF16}[dtype], segment, 1, payload, len(payload))
    return bytes(values) if status >= 0 else None


def read_lossless(payload, dtype, n):
    source = lossless_reader.Source(payload)
    values = source.lossless(dtype, n)
    source.end()
    return values.astype("<u%d" % format_reader.SIZES[dtype]).tobytes()


def are_refused(payload, dtype, n):
    """Whether both readers refuse a lossless message of a block or none, under checksums that are right. If
    they do not, they read the same values."""
    other, end = bytearray(payload), 16 + int.from_bytes(payload[16:20], "little")
    struct.pack_into("<I", other, 4, len(other))
    if end < len(other):
        check_at = end - (8 if other[3] == 2 else 4)
        struct.pack_into("<I", other, check_at, format_reader.check32(other[end:]))
    struct.pack_into("<I", other, 12, format_reader.check32(other[16:end]))
    found = decode_lossless_in_c(chunks.coder(), bytes(other), dtype, n)
    try:
        assert read_lossless(bytes(other), dtype, n) == found
    except format_reader.FormatError:
        assert found is None
    return found is None


def lossless_of(data):
    """The payload of a message of one tensor, its type, its number of elements."""
    (dtype, shape), = lossless_reader.Source(data).message_head()[1].values()
    return data[24 + int.from_bytes(data[8:16], "little") + 30 :], dtype, math.prod(shape)


@pytest.mark.parametrize("name", ["bf16-new", "fp32-new", "fp32-tails-coded", "fp32-tails-listed"])
def test_both_readers_refuse_the_same_bytes(name):
    """Half of them in the head."""
    (payload, dtype, n), generator, seen = lossless_of(vector(name)), random.Random(0), set()
    end = 16 + int.from_bytes(payload[16:20], "little")
    for i in range(300):
        other = bytearray(payload)
        other[generator.randrange(20, end if i % 2 else len(payload))] ^= 1 << generator.randrange(8)
        seen.add(are_refused(other, dtype, n))
    assert seen == {False, True}


def test_both_readers_refuse_the_same_numbers():
    """Scales that are too large, an escape that is left, lists of tails out of order or with zeros."""
    payload, dtype, n = lossless_of(delta.encode({}, {"w": torch.zeros(32, 64)}))
    for scale, refused in ((2047, False), (2048, True), (-2047, False), (-2048, True)):
        assert are_refused(payload[:27] + struct.pack("<h", scale) + payload[29:], dtype, n) == refused, scale
    payload, dtype, n = lossless_of(vector("bf16-new"))
    end = 16 + int.from_bytes(payload[16:20], "little")
    sizes, = struct.unpack_from("<I", payload, end - 8)
    escapes = len(payload) - 2 * (sizes >> 16)
    assert are_refused(payload[: end - 8] + struct.pack("<I", sizes + (1 << 16)) + payload[end - 4 : escapes]
                       + bytes(2) + payload[escapes:], dtype, n)
    payload, dtype, n = lossless_of(vector("fp32-tails-listed"))
    end, (place, _) = 16 + int.from_bytes(payload[16:20], "little"), struct.unpack("<HH", payload[-4:])
    for one, refused in (((place + 1, 1), False), ((place + 1, 0), True), ((place, 1), True),
                         ((place - 1, 1), True), ((n, 1), True)):
        two = payload[: end - 4] + struct.pack("<I", 2) + payload[end:] + struct.pack("<HH", *one)
        assert are_refused(two, dtype, n) == refused, one


def test_escapes_of_more_than_nine_bits():
    """Forged: of heads, in groups of 32 and behind the last one. Tails' tables are chosen by nine bits."""
    noise, seen = write_vectors.noise(20005, dtype=torch.float32, size=1), set()
    weights = torch.round(noise * 2**20) / 2**20
    weights[[100, 20003]] = 3e30
    payload, dtype, n = lossless_of(delta.encode({}, {"w": weights}))
    sizes, _, how = struct.unpack_from("<III", payload, 4 + int.from_bytes(payload[16:20], "little"))
    assert how == lossless_reader.TAILS_CODED and sizes >> 16 >= 2
    for place in range(1, 1 + min(sizes >> 16, 4)):
        for escape in (0x200, 0xFE00):
            other = bytearray(payload)
            struct.pack_into("<H", other, len(other) - 2 * place, escape)
            seen.add(are_refused(other, dtype, n))
    assert True in seen


def test_the_page():
    page = pathlib.Path("docs/delta-format.md").read_text(encoding="utf-8")
    assert hashlib.sha256(b"".join(lossless_reader.COMMON)).hexdigest() == (
        "95d6542c1b7346095ca9f4c79996aec0c954b0ef1d0c0a54c240abe757fe8d0f")
    for name in vectors():
        assert name in page
    assert "2^21" in page and chunks.ELEMS == 1 << 21 and message.MAGIC[-1] == 1
    assert all("`%s`" % one in page for one in format_reader.SIZES)
