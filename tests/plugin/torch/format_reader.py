"""A reader of messages of changed weights in plain Python: what it knows of them stands in
docs/delta-format.md, and it uses nothing of the package. Whatever it raises, the message is refused. Slow;
for tests. One form, LOSSLESS, is in lossless_reader.py, which adds it to this reader."""

import itertools
import json
import math
import struct
import zlib

import numpy as np
from xxh3 import xxh3

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
         "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F4": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8,
         "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8}
PLAIN, DELTA, LOSSLESS, HALVES, DELTA8, NIBBLES = range(6)
START, BLOCK, ESCAPE, RAW = 0x10000, 0x10000, 31, 0xFFFFFFFF



class FormatError(ValueError):
    """The message is not as the page says, or was made from other weights."""


def expect(true, what):
    if not true:
        raise FormatError(what)


def check32(data):
    """The checksum of 32 bits of bytes, seen as 16-bit words."""
    words = np.frombuffer(data, "<u2").astype(np.uint32)
    places = np.arange(1, len(words) + 1, dtype=np.uint32) * np.uint32(0x9E3779B1)
    return int(((words + places) ** 2).sum(dtype=np.uint32))


def blocks_of(n, size):
    return [range(first, min(first + size, n)) for first in range(0, n, size)]


def order(x, sign):
    """Count values by their size. sign: the number of the sign's bit."""
    return x ^ (x >> sign) * ((1 << sign) - 1)


def unzigzag(z):
    return z >> 1 ^ -(z & 1)


def nibbles(data):
    """Numbers of 4 bits, the lower one of each byte first."""
    return np.stack((data & 15, data >> 4), 1).reshape(-1)


def slots(freq):
    """A table: of each of 1024 slots the symbol, its frequency, and which of its slots this is."""
    return [(symbol, n, slot) for symbol, n in enumerate(freq) for slot in range(n)]


class Lanes:
    """The lanes of a block, and what is left of its words and escapes."""

    def __init__(self, source, sizes):
        self.words = source.array(2, sizes & 0xFFFF).tolist()
        self.lanes = source.array(4, 32).tolist()
        self.escapes = source.array(2, sizes >> 16).tolist()

    def take(self, tables, numbers, raw_bits):
        """Of elements with tables of these numbers: the symbols, and the raw bits or escapes."""
        symbols, others = [0] * len(numbers), [0] * len(numbers)
        try:
            for i in reversed(range(len(numbers))):
                symbols[i], freq, slot = tables[numbers[i]][self.lanes[i % 32] % 1024]
                x, others[i] = divmod(freq * (self.lanes[i % 32] // 1024) + slot, 1 << raw_bits[i])
                self.lanes[i % 32] = x if x >= START else x << 16 | self.words.pop()
                if symbols[i] == ESCAPE:
                    others[i] = self.escapes.pop()
        except IndexError:
            raise FormatError("words or escapes are missing") from None
        return np.array(symbols), np.array(others)

    def end(self, n_bytes=0):
        """The bytes that the lanes began with, two in each."""
        kept = np.array(self.lanes) - START
        expect(not self.words and not self.escapes, "words or escapes are left")
        expect(not (kept >> 16).any() and not kept[n_bytes // 2 :].any(), "a lane does not come back")
        return kept.astype("<u2").tobytes()[:n_bytes]


class Source:
    """Bytes, from which messages and their parts are taken, from the front on."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        expect(0 <= n <= len(self.data) - self.at, "it ends too early")
        self.at += n
        return self.data[self.at - n : self.at]

    def end(self):
        expect(self.at == len(self.data), "bytes are left")

    def struct(self, layout):
        found = struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))
        return found if len(found) > 1 else found[0]

    def array(self, size, n):
        return np.frombuffer(self.take(size * n), "<u%d" % size).astype(np.int64)

    def number(self, n_bytes=5):
        found = 0
        for shift in range(0, 7 * n_bytes, 7):
            byte = self.struct("B")
            found |= (byte & 0x7F) << shift
            if byte < 0x80 and found < 1 << 32:
                return found
        raise FormatError("a number is too large")

    def message(self, magic, version):
        """A message inside: its third and fourth byte, and what follows its length."""
        found, version_found, *others, n_bytes = self.struct("BBBBI")
        expect((found, version_found) == (magic, version), "no message of %#x, or another version" % magic)
        return *others, type(self)(self.take(n_bytes - 8))

    def delta(self, old):
        """16-bit values from old ones."""
        flags, zero, source = self.message(0xD5, 3)
        expect(flags in (0, 1) and not zero, "no delta of weights")
        new = order(old, 15)
        if not flags:
            blocks, entries = [range(len(old))], [(RAW, source.struct("I"))]
        else:
            expect(source.struct("I") == len(old), "another number of elements")
            base, table_of = source.struct("B"), nibbles(source.array(1, 16))
            freqs = [[source.number(2) for _ in range(source.struct("B"))] for _ in range(16)]
            expect(all(len(freq) <= ESCAPE and sum(freq) < 1024 for freq in freqs), "a bad table")
            tables = [slots(freq + [0] * (ESCAPE - len(freq)) + [1024 - sum(freq)]) for freq in freqs]
            numbers, blocks = table_of[np.clip((old >> 7 & 255) - base, 0, 31)], blocks_of(len(old), BLOCK)
            entries = [source.struct("II") for _ in blocks]
        for block, (sizes, check) in zip(blocks, entries):
            if sizes == RAW:
                new[block] = source.array(2, len(block))
            else:
                lanes, bits = Lanes(source, sizes), np.clip(numbers[block] - 7, 0, 6)
                symbols, others = lanes.take(tables, numbers[block].tolist(), bits.tolist())
                change = unzigzag(symbols << bits | others)
                new[block] = np.where(symbols == ESCAPE, others, order(new[block] + change & 0xFFFF, 15))
                lanes.end()
            expect(check32(new[block].astype("<u2")) == check, "a block is spoilt")
        source.end()
        return new

    def delta8(self, old):
        """Bytes from old ones."""
        *zeros, source = self.message(0xD8, 1)
        n, check = source.struct("II")
        expect(zeros == [0, 0] and n == len(old), "another number of elements")
        new, total = np.zeros_like(old), 0
        for chunk in blocks_of(n, 1 << 18):
            kind = source.struct("B")
            if kind == 0:
                new[chunk] = source.array(1, len(chunk))
            elif kind == 1:
                classes = source.array(1, 32)
                change = (source.delta(np.full(len(chunk), 256)) - 256).astype(np.int16)
                z = change << 1 ^ change >> 15
                new[chunk] = (z << 7 | classes[(z >> 3) % 32] << 2 | z >> 1 & 3) & 255
            else:
                source.at -= 1  # the byte is the first one of a message
                value = ((old[chunk] & 0x7C) << 5) + 256
                new[chunk] = order(order(old[chunk], 7) + source.delta(value) - value & 255, 7)
            total = xxh3(new[chunk].astype("u1").tobytes(), total)
        source.end()
        expect(total & 0xFFFFFFFF == check, "the new bytes are spoilt")
        return new

    def lossless(self, dtype, n):
        """Values by themselves: lossless_reader.py has this."""
        raise FormatError("the form LOSSLESS, of %d %s, is not known here" % (n, dtype))

    def message_head(self):
        """What the head says, and {name: (dtype, shape)} of all tensors, in order."""
        magic, n_bytes, check = self.struct("8sQQ")
        expect(magic == b"TWDELTA\x01" and n_bytes <= 1 << 28, "no message, or another version")
        packed, unpacker, specs = self.take(n_bytes), zlib.decompressobj(), {}
        expect(xxh3(packed) == check, "the head is spoilt")
        head = json.loads(unpacker.decompress(packed, 1 << 28))
        for _, text in head["files"]:
            tensors, at = json.loads(text, object_pairs_hook=list), 0  # pairs, so that none is lost
            tensors = [(name, dict(fields)) for name, fields in tensors if name != "__metadata__"]
            for name, fields in sorted(tensors, key=lambda one: one[1]["data_offsets"]):
                dtype, shape, (begin, end) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
                bits = (4 if dtype == "F4" else 8 * SIZES[dtype]) * math.prod(shape)
                expect(begin == at and 8 * (end - begin) == bits and name not in specs, "a bad tensor")
                expect(all(isinstance(n, int) and n >= 0 for n in (*shape, end)), "a bad number")
                specs[name], at = (dtype, shape), end
        names = [name for name, _ in head["files"]] + (head["index"] or [])[:1]
        expect(names == [""] or head["index"] and not any(
            name in ("", ".", "..") or {"/", "\0"} & set(name) for name in names), "a name with a folder")
        expect(unpacker.eof and 1 <= head["chunk_elems"] <= 1 << 28, "too short, or other chunks")
        return head, specs

    def values(self, form, dtype, n, old):
        """New values from a payload. old: the old ones, or None."""
        if form == PLAIN:
            return self.array(SIZES[dtype], n)
        if form == LOSSLESS and dtype in ("BF16", "F16", "F32"):
            return self.lossless(dtype, n)
        if form == DELTA8 and SIZES[dtype] == 1:
            return self.delta8(np.zeros(n, np.int64) if old is None else old)
        expect(old is not None, "a form that needs old values")
        if form == DELTA and SIZES[dtype] == 2:
            return self.delta(old)
        if form == HALVES and dtype == "F32":
            end = self.struct("I") + self.at
            high = self.delta(old >> 16)
            expect(self.at == end, "the halves do not fit")
            return high << 16 | self.array(2, n)
        expect(form == NIBBLES and dtype == "F4", "an unknown form, or one of another type")
        numbers = nibbles(old)
        numbers = self.delta8((numbers & 8) << 4 | numbers & 7)
        expect(not (numbers & 0x78).any(), "a number of more than 4 bits")
        numbers = numbers >> 4 | numbers & 7
        return numbers[0::2] | numbers[1::2] << 4

    def chunk(self, dtype, runs, old):
        """The new bytes of runs, which are ranges of elements. old: the bytes of all old ones, or None."""
        form, n_bytes, check = self.struct("BIQ")
        size, table = SIZES[dtype], self.take(17 * len(runs))
        expect(n_bytes <= size * sum(map(len, runs)) + 4, "a payload larger than it can be")
        payload, rows = type(self)(self.take(n_bytes)), list(struct.iter_unpack("<BQQ", table))
        expect(xxh3(payload.data, xxh3(table, form)) == check, "a chunk is spoilt")
        new = [old and old[size * run.start : size * run.stop] for run in runs]
        for values, (same, before, _) in zip(new, rows):
            expect(before == (xxh3(values) if values else 0), "other old values")
            expect(same == 0 or same == 1 and values, "unchanged, without old values")
        changed = [i for i, (same, _, _) in enumerate(rows) if not same]
        expect(changed or form == PLAIN, "a form without values")
        n = sum(len(runs[i]) for i in changed)
        before = old and Source(b"".join(new[i] for i in changed)).array(size, n)
        made = Source(payload.values(form, dtype, n, before).astype("<u%d" % size).tobytes())
        payload.end()
        for i in changed:
            new[i] = made.take(size * len(runs[i]))
        expect([xxh3(values) for values in new] == [after for _, _, after in rows], "other new values")
        return new


def read(data, old, version=None, reader=Source):
    """{name: (dtype, shape, bytes)} from a message and such old tensors, which in a stream have a version."""
    source = reader(data)
    head, specs = source.message_head()
    made_from, most = (head.get("versions") or [None])[0], head["chunk_elems"]
    expect(made_from is None or version is None or made_from == version, "made from another version")
    bases, new = {name: head["bases"].get(name, name) for name in specs}, dict.fromkeys(specs, b"")
    expect(all(base is None or old.get(base, ())[:2] == specs[name] for name, base in bases.items()),
           "an old tensor is missing, or has another type or shape")
    # Tensors of one type, all with old values or all without, are an array that is cut into chunks.
    for (dtype, is_new), group in itertools.groupby((name for name in specs if 0 not in specs[name][1]),
                                                    lambda name: (specs[name][0], bases[name] is None)):
        names = list(group)
        counts = [math.prod(specs[name][1]) // (2 if dtype == "F4" else 1) for name in names]
        ends = list(itertools.accumulate(counts))
        before = None if is_new else b"".join(old[bases[name]][2] for name in names)
        for first in range(0, ends[-1], most):
            runs = [(name, range(max(first, end - n), min(first + most, end)))
                    for name, n, end in zip(names, counts, ends) if end - n < first + most and end > first]
            for (name, _), values in zip(runs, source.chunk(dtype, [run for _, run in runs], before)):
                new[name] += values
    source.end()
    return {name: (*spec, new[name]) for name, spec in specs.items()}
