"""A reader of messages of changed weights in plain Python: what it knows of them stands in
docs/delta-format.md, and it uses nothing of the package. Whatever it raises, the message is refused. Slow;
for tests."""

import itertools
import json
import math
import pathlib
import re
import struct
import zlib

import numpy as np
from xxh3 import xxh3

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
         "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F4": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8,
         "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8}
TYPE_NUMBERS = {"F32": 0, "BF16": 1, "F16": 2}
PLAIN, DELTA, LOSSLESS, HALVES, DELTA8, NIBBLES = range(6)
START, BLOCK, ESCAPE, RAW, TAILS_CODED = 0x10000, 0x10000, 31, 0xFFFFFFFF, 0xFFFFFFFE
DENSITIES = [*range(16), *(16 + (code & 15) << (code >> 4) - 1 for code in range(16, 256))]
# The page has the common tables, and nothing else does.
PAGE = (pathlib.Path(__file__).parents[3] / "docs/delta-format.md").read_text(encoding="utf-8")
COMMON = [bytes.fromhex(row) for row in re.findall(r"^ {4}([0-9a-f]{80}\n {4}[0-9a-f]{80})$", PAGE, re.M)]


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


def slots_of(weights):
    """The table of frequencies that are made from weights."""
    total = sum(weights)
    freq = [max((weight * 1024 + total // 2) // (total or 1), int(symbol == ESCAPE or weight > 0))
            for symbol, weight in enumerate(weights)]
    freq[freq.index(max(freq))] += 1024 - sum(freq)
    return slots(freq)


def class_tables(codes):
    """The tables of a class's four phases."""
    *quarters, zeros, escapes = [DENSITIES[code] for code in codes]
    wide = [[density * width for width in (82, 67, 57, 50)] for density in quarters]
    return [slots_of([64 * zeros, *(wide[q + 3 - phase][q % 4] + wide[q + 4 - phase][q % 4 + 1]
                                    for q in range(0, 60, 2)), 64 * escapes]) for phase in range(4)]


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
        self.data, self.at, self.bit = data, 0, 0

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

    def bits(self, n):
        """Bits, the lowest of a byte first; behind the last one there are zeros."""
        self.bit += n
        return int.from_bytes(self.data, "little") >> self.bit - n & (1 << n) - 1

    def take_list(self, n, centre, least, most):
        k, found = self.bits(4), []
        expect(k <= 11, "a list has too many low bits")
        for group in blocks_of(n, 32):
            high = [next((ones for ones in range(12) if not self.bits(1)), 12) for _ in group]
            low = [self.bits(k) for _ in group]
            high = [self.bits(13) if ones == 12 else ones for ones in high]
            found += [centre + unzigzag(ones << k | rest) for ones, rest in zip(high, low)]
        expect(all(least <= value <= most for value in found), "a list's value is out of bounds")
        return np.array(found, np.int64)

    def message(self, magic, version):
        """A message inside: its third and fourth byte, and what follows its length."""
        found, version_found, *others, n_bytes = self.struct("BBBBI")
        expect((found, version_found) == (magic, version), "no message of %#x, or another version" % magic)
        return *others, Source(self.take(n_bytes - 8))

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

    def lossless_head(self, n, tailed):
        """Which elements are not in rows of zeros; what is expected of these, and numbers of their tables;
        the tables, those of tails, the blocks with their entries."""
        window, own = self.struct("bB")
        n_pieces, left, pieces, live_rows, tables, expected, numbers = self.number(), n, [], [], [], [], []
        expect(n_pieces <= n // 512 + 1, "too many pieces")
        for _ in range(n_pieces):
            flags, n_elems, row_elems = self.struct("B"), self.number(), self.number()
            first, scale = self.number() if flags & 16 else 0, self.struct("h")
            expect(0 < n_elems <= left and row_elems >= 32 and first < row_elems and abs(scale) <= 2047
                   and (first > 0) == (flags & 16 > 0), "a bad piece")
            expect(not flags & 4 or n_elems // row_elems >= 16, "columns of too few rows")
            left -= n_elems
            pieces.append((flags, scale, row_elems, *np.divmod(np.arange(first, first + n_elems), row_elems)))
        expect(left == 0, "the pieces have fewer elements")
        for flags, _, _, row, _ in pieces:
            n_rows = int(row[-1]) + 1
            zeros = self.array(1, (n_rows + 7) // 8) if flags & 8 else np.zeros(n_rows)
            live_rows.append(np.unpackbits(zeros.astype("u1"), bitorder="little", count=n_rows) == 0)
        for row_class, common in enumerate(COMMON):
            codes = (bytes(600) + common + bytes(600))[653 + 4 * window :][:63] + b"\0\1"
            tables += class_tables(self.take(65) if own >> row_class & 1 else codes)
        n_tables = self.struct("B") if tailed else 0
        expect(n_tables <= 16, "too many tables of tails")
        tail_tables = [slots_of([DENSITIES[k] for k in self.take(17)] + [0] * 15) for _ in range(n_tables)]
        live = np.concatenate([rows[piece[3]] for piece, rows in zip(pieces, live_rows)])
        blocks = blocks_of(int(live.sum()), BLOCK)
        lists = Source(self.take(len(self.data) - self.at - len(blocks) * (12 if tailed else 8)))
        for (flags, scale, row_elems, row, column), rows in zip(pieces, live_rows):
            scales, classes = np.full(len(rows), scale), np.full(len(rows), flags >> 5)
            if flags & 1:
                scales[rows] = lists.take_list(rows.sum(), scale, -2047, 2047)
            if flags & 2:
                classes[rows] = lists.take_list(rows.sum(), flags >> 5, 0, 7)
            found = scales[row] + 4096
            if flags & 4:
                shift = (len(row) // row_elems < 48) + (len(row) // row_elems < 20)
                found += lists.take_list(row_elems, 0, -(2047 >> shift), 2047 >> shift)[column] << shift
            expected.append((found & 8191)[rows[row]])
            numbers.append(4 * classes[row][rows[row]] + (expected[-1] & 3))
        expect(0 <= 8 * len(lists.data) - lists.bit < 16 and not lists.bits(16), "bits are left, or missing")
        entries = [(block, *self.struct("II"), self.struct("I") if tailed else RAW) for block in blocks]
        return live, np.concatenate(expected), np.concatenate(numbers), tables, tail_tables, entries

    def block(self, sizes, expected, tables, numbers, tail_tables):
        """16 bits of each element; with tables of tails its tail, too."""
        n, tails = len(expected), np.zeros(len(expected), np.int64)
        if sizes == RAW:
            return self.array(2, n), tails
        n_raw, nothing, bottom = n // 32 * 28 + min(n % 32, 28) + 1 & ~1, [0] * n, (expected >> 2 << 1) - 2048
        raw, lanes = self.take(n_raw - min(n_raw, 64)), Lanes(self, sizes)
        symbols, escapes = lanes.take(tables, numbers.tolist(), nothing)
        coded = np.where(symbols == ESCAPE, escapes, np.where(symbols > 0, symbols - 1 + bottom, 0)) & 511
        above = np.where((coded < bottom) | (coded >= bottom + 30), ESCAPE, coded - bottom + 1) * (coded > 0)
        numbers = np.maximum(np.minimum((above + 1) // 2, 15) - (16 - len(tail_tables)), 0)
        for group in reversed(blocks_of(n, 32) if tail_tables else []):
            zeros, escapes = lanes.take(tail_tables, numbers[group].tolist(), nothing)
            # A table of one symbol alone takes nothing from the lanes.
            _, bits = lanes.take([slots([1024])], [0] * len(group), np.maximum(15 - zeros, 0).tolist())
            tails[group] = np.where(zeros == ESCAPE, escapes, 2 * bits + 1 << zeros) & 0xFFFF
        raw = (lanes.end(min(n_raw, 64)) + raw).ljust(n // 32 * 28 + 28, b"\0")
        groups = np.frombuffer(raw, "u1")[: (n + 31) // 32 * 28].reshape(-1, 28)
        last = ((groups >> 7).reshape(-1, 4, 7) << np.arange(7)).sum(2)  # of the last four of 32 elements
        seven = np.hstack((groups & 127, last)).reshape(-1)[:n]
        return (seven & 64) << 9 | coded << 6 | seven & 63, tails

    def tails(self, dtype, how, n):
        """Tails that are not in the lanes."""
        if dtype == "F16":
            planes = self.array(4, (n + 31) // 32 * 3).reshape(-1, 3, 1) >> np.arange(32) & 1
            return (planes << np.arange(3).reshape(3, 1)).sum(1).reshape(-1)[:n]
        if how == RAW:
            return self.array(2, n if dtype == "F32" else 0)
        tails, listed = np.zeros(n, np.int64), self.array(2, 2 * how)
        expect((np.diff(listed[0::2], prepend=-1, append=n) > 0).all() and listed[1::2].all(), "a bad list")
        tails[listed[0::2]] = listed[1::2]
        return tails

    def lossless(self, dtype, n):
        """Values by themselves."""
        number, form, source = self.message(0xD6, 2)
        n_elems, check = source.struct("II")
        expect((number, n_elems) == (TYPE_NUMBERS[dtype], n) and form <= 1 + (dtype == "F32"), "another type")
        if form == 0:
            values = source.array(SIZES[dtype], n)
            expect(check32(source.data[8 : source.at]) == check, "plain values are spoilt")
            source.end()
            return values
        n_bytes = source.struct("I")
        head, values = Source(source.take(n_bytes - 4)), np.zeros(n, np.int64)
        expect(n_bytes % 2 == 0 and check32(source.data[8 : source.at]) == check, "the head is spoilt")
        live, expected, numbers, tables, tail_tables, entries = head.lossless_head(n, form == 2)
        for block, sizes, check, how in entries:
            begin, coded = source.at, how == TAILS_CODED
            expect(tail_tables and sizes != RAW if coded else how == RAW or 128 * how <= len(block), "tails")
            heads, tails = source.block(sizes, expected[block], tables, numbers[block], tail_tables * coded)
            tails = tails if coded else source.tails(dtype, how, len(block))
            expect(check32(source.data[begin : source.at]) == check, "a block is spoilt")
            values[np.flatnonzero(live)[block]] = (
                heads if dtype == "BF16" else heads << 16 | tails if dtype == "F32"
                else heads & 0x8000 | heads << 3 & 0x7FF8 | tails)
        source.end()
        return values

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
        if form == LOSSLESS and dtype in TYPE_NUMBERS:
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
        payload, rows = Source(self.take(n_bytes)), list(struct.iter_unpack("<BQQ", table))
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


def read(data, old, version=None):
    """{name: (dtype, shape, bytes)} from a message and such old tensors, which in a stream have a version."""
    source = Source(data)
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
