"""The reader's part for LOSSLESS, the form of values by themselves: a sender may choose it for bf16, fp16 and
fp32. What it knows stands in docs/delta-format.md, too."""

import functools
import pathlib
import re

import format_reader
import numpy as np
from format_reader import BLOCK, ESCAPE, RAW, SIZES, Lanes, blocks_of, check32, expect, slots, unzigzag

TYPE_NUMBERS = {"F32": 0, "BF16": 1, "F16": 2}
TAILS_CODED = 0xFFFFFFFE
DENSITIES = [*range(16), *(16 + (code & 15) << (code >> 4) - 1 for code in range(16, 256))]
# The page has the common tables, and nothing else does.
PAGE = (pathlib.Path(__file__).parents[3] / "docs/delta-format.md").read_text(encoding="utf-8")
COMMON = [bytes.fromhex(row) for row in re.findall(r"^ {4}([0-9a-f]{80}\n {4}[0-9a-f]{80})$", PAGE, re.M)]


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


class Source(format_reader.Source):
    """Bytes, from which the parts of a LOSSLESS message are taken, too."""

    bit = 0  # how many bits have been taken

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
        lists = type(self)(self.take(len(self.data) - self.at - len(blocks) * (12 if tailed else 8)))
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
        head, values = type(self)(source.take(n_bytes - 4)), np.zeros(n, np.int64)
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


read = functools.partial(format_reader.read, reader=Source)
