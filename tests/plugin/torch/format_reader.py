"""A reader of messages of changed weights in plain Python: what it knows of them stands in
docs/delta-format.md, and it uses nothing of the package. Slow; for tests."""

import collections
import itertools
import json
import math
import struct
import zlib

from xxh3 import xxh3

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
         "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F4": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8,
         "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8}
TYPE_NUMBERS = {"F32": 0, "BF16": 1, "F16": 2}
PLAIN, DELTA, LOSSLESS, HALVES, DELTA8, NIBBLES = range(6)
START, SUM, ESCAPE, BLOCK = 0x10000, 1024, 31, 65536
RAW, TAILS_CODED = 0xFFFFFFFF, 0xFFFFFFFE
WIDTHS = 0x52, 0x43, 0x39, 0x32
COMMON = [bytes.fromhex(row) for row in (
    "00000000000000000000000000000000000000000000000000000000000000030403040507080d10"
    "14181f24282c32363c424750586875a2c1b07a633107000000000000000000000000000000000000",
    "000000000000000000000000000000000000000000000000030405050608090b0e1115161b202529"
    "2d3134393f43464a4f53596167728499b2b79e796542210900000000000000000000000000000000",
    "0000000000000000000000000000000000000000000304050608090b0b0d1012161a2124292d3235"
    "383d42464b5054575e63687177818b97a3adaa9b8270502e09000000000000000000000000000000",
    "000000000000000000000000000000000000000304050606080a0d1113171d2124272c3134393d42"
    "454a5053575b61656970747980848b9299a0a3a29889736246240900000000000000000000000000",
    "00000000000000000000000000000000030303040507090b0d101215191e22252a2f32363b404348"
    "4d5155595e62656a6f73777c81868a9094989c9d9a938675654e3214050000000000000000000000",
    "000000000000000000000000000000030304050607090b0d0f13171c2124282c3134383d4145484d"
    "5155595e6265696d7275797e8285898e919496989895908474644c2f0e0000000000000000000000",
    "00000000000000000000000000030404050607080a0b0e1114181c2124272c3134373c4143474b50"
    "53565b6163656b7073757a808284898e919194969693918a7e6b5b43240900000000000000000000",
    "00000000000003030003030406060708090b0a0d10161e1f2021292d3334393b3e4144484c505256"
    "5a6063666a6f7073787a7c7f8182858688898b8e929192908c8378685b49341c0b03000000000000",
)]


class FormatError(ValueError):
    pass


def expect(true, what):
    if not true:
        raise FormatError(what)


class Bytes:
    """Bytes that are taken from the front, and bits, the lowest of a byte first."""

    def __init__(self, data):
        self.data, self.at, self.bit = data, 0, 0

    def take(self, n):
        expect(n <= len(self.data) - self.at, "it ends too early")
        self.at += n
        return self.data[self.at - n : self.at]

    def struct(self, layout):
        found = struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))
        return found if len(found) > 1 else found[0]

    def words(self, n):
        return list(struct.unpack("<%dH" % n, self.take(2 * n)))

    def number(self):
        found = 0
        for shift in range(0, 35, 7):
            byte = self.struct("B")
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                expect(found < 1 << 32, "a number is too large")
                return found
        raise FormatError("a number is too long")

    def bits(self, n):
        found = 0
        for i in range(n):
            if not self.bit:
                self.current = self.struct("B")
            found |= (self.current >> self.bit & 1) << i
            self.bit = (self.bit + 1) % 8
        return found

    def end_bits(self):
        expect(not self.bit or not self.current >> self.bit, "bits are left")

    def end(self):
        expect(self.at == len(self.data), "bytes are left")


def check32(words):
    return sum((word + (i + 1) * 0x9E3779B1 & 0xFFFFFFFF) ** 2 for i, word in enumerate(words)) & 0xFFFFFFFF


def check32_bytes(data):
    expect(len(data) % 2 == 0, "an odd number of bytes")
    return check32(struct.unpack("<%dH" % (len(data) // 2), data))


# ---- the coder: 32 lanes of rANS


def slots(freq):
    """[(symbol, frequency, slot in the symbol)] of the 1024 slots."""
    return [(symbol, n, slot) for symbol, n in enumerate(freq) for slot in range(n)]


class Lanes:
    """What is left of a block while it is decoded, from its last element to its first."""

    def __init__(self, body, sizes):
        self.words = body.words(sizes & 0xFFFF)
        self.lanes = list(body.struct("32I"))
        self.escapes = body.words(sizes >> 16)

    def symbol(self, lane, table):
        x = self.lanes[lane]
        symbol, freq, slot = table[x % SUM]
        self.lanes[lane] = freq * (x // SUM) + slot
        return symbol

    def raw(self, lane, bits):
        found = self.lanes[lane] & (1 << bits) - 1
        self.lanes[lane] >>= bits
        return found

    def refill(self, lane):
        if self.lanes[lane] < START:
            expect(self.words, "words are missing")
            self.lanes[lane] = self.lanes[lane] << 16 | self.words.pop()

    def escape(self):
        expect(self.escapes, "escapes are missing")
        return self.escapes.pop()

    def end(self):
        expect(not self.words and not self.escapes, "words or escapes are left")


def blocks_of(n):
    return [min(BLOCK, n - first) for first in range(0, n, BLOCK)]


# ---- DELTA


def order(bits):
    return bits ^ 0x7FFF if bits & 0x8000 else bits


def unzigzag(z):
    return z >> 1 ^ -(z & 1)


def delta_table(source):
    n, freq = source.struct("B"), [0] * 32
    expect(n <= ESCAPE, "a table is too long")
    for symbol in range(n):
        low = source.struct("B")
        freq[symbol] = low & 0x7F | source.struct("B") << 7 if low & 0x80 else low
    freq[ESCAPE] = SUM - sum(freq)
    expect(freq[ESCAPE] > 0, "a table leaves nothing for the escape")
    return slots(freq)


def delta_block(source, sizes, old, base, tables_of, tables):
    n = len(old)
    if sizes == RAW:
        return source.words(n)
    lanes, new = Lanes(source, sizes), [0] * n
    for i in reversed(range(n)):
        lane, row = i % 32, min(max((old[i] >> 7 & 0xFF) - base, 0), 31)
        table = tables_of[row]
        raw_bits = min(max(table - 7, 0), 6)
        symbol = lanes.symbol(lane, tables[table])
        z = symbol << raw_bits | lanes.raw(lane, raw_bits)
        lanes.refill(lane)
        new[i] = lanes.escape() if symbol == ESCAPE else order(order(old[i]) + unzigzag(z) & 0xFFFF)
    expect(all(lane == START for lane in lanes.lanes), "a lane does not come back")
    lanes.end()
    return new


def decode_delta(data, old):
    """16-bit values from old ones."""
    source = Bytes(data)
    magic, version, flags, zero, n_bytes = source.struct("BBBBI")
    expect((magic, version, zero, n_bytes) == (0xD5, 3, 0, len(data)) and flags in (0, 1), "no delta")
    if not flags:
        check, new = source.struct("I"), source.words(len(old))
        expect(check32(new) == check, "plain values are spoilt")
    else:
        expect(source.struct("I") == len(old), "another number of elements")
        base, pairs = source.struct("B"), source.take(16)
        tables_of = [pair >> shift & 15 for pair in pairs for shift in (0, 4)]
        tables = [delta_table(source) for _ in range(16)]
        new, entries = [], [source.struct("II") for _ in blocks_of(len(old))]
        for n, (sizes, check) in zip(blocks_of(len(old)), entries):
            block = delta_block(source, sizes, old[len(new) : len(new) + n], base, tables_of, tables)
            expect(check32(block) == check, "a block is spoilt")
            new += block
    source.end()
    return new


# ---- DELTA8

CHUNK8, RAW8, RANKED = 1 << 18, 0, 1


def order8(code):
    return code ^ 0x7F if code & 0x80 else code


def take_changes8(source, old):
    """Bytes from old ones."""
    before = [((code & 0x7C) << 5) + 0x100 for code in old]
    after = decode_delta(source.take(struct.unpack_from("<I", source.data, source.at + 4)[0]), before)
    return bytes(order8(order8(code) + b - a & 0xFF) for code, a, b in zip(old, before, after))


def take_ranked8(source, n):
    """Bytes by themselves."""
    classes, found = source.take(32), []
    message = source.take(struct.unpack_from("<I", source.data, source.at + 4)[0])
    for value in decode_delta(message, [0x100] * n):
        change = (value - 0x100 + 0x8000 & 0xFFFF) - 0x8000
        z = 2 * change if change >= 0 else -2 * change - 1
        found.append((z & 1) << 7 | classes[(z >> 3) % 32] << 2 & 0x7F | z >> 1 & 3)
    return bytes(found)


def decode_delta8(data, old):
    source, new, total = Bytes(data), b"", 0
    magic, version, zero, n_bytes, n, check = source.struct("BBHIII")
    expect((magic, version, zero, n_bytes, n) == (0xD8, 1, 0, len(data), len(old)), "no delta of 8 bits")
    for first in range(0, n, CHUNK8):
        part = old[first : first + CHUNK8]
        expect(len(data) - source.at >= 8, "it ends too early")
        form = data[source.at]
        source.take(1 if form in (RANKED, RAW8) else 0)
        new += (source.take(len(part)) if form == RAW8
                else take_ranked8(source, len(part)) if form == RANKED else take_changes8(source, part))
        total = xxh3(new[first:], total)
    source.end()
    expect(total & 0xFFFFFFFF == check, "the new bytes are spoilt")
    return new


# ---- LOSSLESS

Piece = collections.namedtuple("Piece", "scales classes columns zeros n row_elems first scale row_class rows")


def density(code):
    return code if code < 16 else 16 + (code & 15) << (code >> 4) - 1


def frequencies(weights, present):
    total, freq = sum(weights), []
    for symbol, weight in enumerate(weights):
        share = (weight * SUM + total // 2) // total if total else 0
        freq.append(share or int(symbol == ESCAPE or bool(present[symbol])))
    freq[freq.index(max(freq))] += SUM - sum(freq)
    return slots(freq)


def class_slots(table):
    """The slots of a class's four phases."""
    found = []
    for phase in range(4):
        weights = [64 * density(table[63])] + [0] * 30 + [64 * density(table[64])]
        for s in range(1, ESCAPE):
            at = 2 * (s - 1)
            weights[s] = sum(density(table[at + i + 3 - phase]) * WIDTHS[(at + i) % 4] for i in (0, 1))
        found.append(frequencies(weights, weights))
    return found


def common_table(row_class, window):
    places = [k - 3 + window + 56 for k in range(63)]
    return bytes(COMMON[row_class][at] if 0 <= at < 80 else 0 for at in places) + b"\x00\x01"


def take_piece(source):
    flags, n, row_elems = source.struct("B"), source.number(), source.number()
    first, scale = source.number() if flags & 16 else 0, source.struct("h")
    expect(n and row_elems >= 32 and first < row_elems and (first > 0) == bool(flags & 16), "a bad piece")
    expect(abs(scale) <= 2047 and (not flags & 4 or n // row_elems >= 16), "a bad piece")
    return Piece(flags & 1, flags & 2, flags & 4, flags & 8, n, row_elems, first, scale, flags >> 5,
                 -(-(first + n) // row_elems))


def take_list(source, n, centre, least, most):
    k, found = source.bits(4), []
    expect(k <= 11, "a list has too many low bits")
    for first in range(0, n, 32):
        group = range(min(32, n - first))
        ones = []
        for _ in group:
            one = 0
            while one < 12 and source.bits(1):
                one += 1
            ones.append(one)
        low = [source.bits(k) for _ in group]
        for one, rest in zip(ones, low):
            found.append(centre + unzigzag((source.bits(13) if one == 12 else one) << k | rest))
    expect(all(least <= value <= most for value in found), "a list's value is out of bounds")
    return found


def take_expectations(source, pieces, dead):
    """Of each element: what is expected of it and its class, or None in a row of zeros."""
    found = []
    for piece, is_dead in zip(pieces, dead):
        live = [row for row in range(piece.rows) if not is_dead[row]]
        scales, classes = dict.fromkeys(live, piece.scale), dict.fromkeys(live, piece.row_class)
        columns = [0] * piece.row_elems
        if piece.scales:
            scales = dict(zip(live, take_list(source, len(live), piece.scale, -2047, 2047)))
        if piece.classes:
            classes = dict(zip(live, take_list(source, len(live), piece.row_class, 0, 7)))
        if piece.columns:
            rows = piece.n // piece.row_elems
            shift = (rows < 48) + (rows < 20)
            most = 2047 >> shift
            columns = [value << shift for value in take_list(source, piece.row_elems, 0, -most, most)]
        for i in range(piece.first, piece.first + piece.n):
            row, column = divmod(i, piece.row_elems)
            found.append((scales[row] + 4096 + columns[column] & 0x1FFF, classes[row]) if row in scales
                         else None)
    return found


def head_symbol(coded, bottom):
    above = coded - bottom
    return 0 if not coded else above + 1 if 0 <= above < 30 else ESCAPE


def seven_bits(raw, n):
    """Of each of n elements."""
    found = []
    for first in range(0, n, 32):
        group = raw[first // 32 * 28 :][:28].ljust(28, b"\x00")
        found += [byte & 0x7F for byte in group]
        found += [sum((group[7 * i + bit] >> 7) << bit for bit in range(7)) for i in range(4)]
    return found[:n]


def take_heads(source, sizes, expected, tables, tails, tail_tables):
    """Decode a block: 16 bits of each element. tails: filled, if they are coded."""
    n, raw_bytes = len(expected), len(expected) // 32 * 28 + min(len(expected) % 32, 28) + 1 & ~1
    in_lanes = min(raw_bytes, 64)
    rest, lanes = source.take(raw_bytes - in_lanes), Lanes(source, sizes)
    bottoms = [(scale & ~3) // 2 - 2048 for scale, _ in expected]
    coded = [0] * n
    for i in reversed(range(n)):
        scale, row_class = expected[i]
        symbol = lanes.symbol(i % 32, tables[row_class][scale & 3])
        lanes.refill(i % 32)
        coded[i] = (lanes.escape() if symbol == ESCAPE else symbol - 1 + bottoms[i] if symbol else 0) & 0x1FF
    if tails is not None:
        take_coded_tails(lanes, tails, [head_symbol(*one) for one in zip(coded, bottoms)], tail_tables)
    lanes.end()
    expect(all(lane >> 16 == 1 and (2 * i < in_lanes or lane == START) for i, lane in enumerate(lanes.lanes)),
           "a lane does not come back")
    raw = struct.pack("<32H", *(lane & 0xFFFF for lane in lanes.lanes))[:in_lanes] + rest
    return [(bits & 0x40) << 9 | high << 6 | bits & 0x3F for high, bits in zip(coded, seven_bits(raw, n))]


def take_coded_tails(lanes, tails, symbols, tables):
    n = len(tails)
    for first in reversed(range(0, n, 32)):
        group, found = range(first, min(first + 32, n)), {}
        for i in reversed(group):
            at = max(min((symbols[i] + 1) // 2, 15) - (16 - len(tables)), 0)
            found[i] = lanes.symbol(i % 32, tables[at])
            lanes.refill(i % 32)
        for i in reversed(group):
            raw = lanes.raw(i % 32, max(15 - found[i], 0))
            lanes.refill(i % 32)
            tails[i] = lanes.escape() if found[i] == ESCAPE else (raw << 1 | 1) << found[i] & 0xFFFF


def take_tails(source, dtype, how, tails):
    n = len(tails)
    if dtype == "F16":
        for first in range(0, n, 32):
            planes = source.struct("III")
            for i in range(first, min(first + 32, n)):
                tails[i] = sum((plane >> i - first & 1) << bit for bit, plane in enumerate(planes))
    elif dtype == "F32" and how == RAW:
        tails[:] = source.words(n)
    elif dtype == "F32" and how != TAILS_CODED:
        last = -1
        for _ in range(how):
            i, tail = source.struct("HH")
            expect(last < i < n and tail, "a bad list of tails")
            tails[i] = tail
            last = i


def joined(dtype, head, tail):
    return (head if dtype == "BF16" else head << 16 | tail if dtype == "F32"
            else head & 0x8000 | head << 3 & 0x7FF8 | tail)


def decode_lossless(data, dtype, n_elems):
    """The values' bytes."""
    source = Bytes(data)
    magic, version, number, form, n_bytes, n, check = source.struct("BBBBIII")
    expect((magic, version, number, n_bytes, n) == (0xD6, 2, TYPE_NUMBERS[dtype], len(data), n_elems)
           and form <= (2 if dtype == "F32" else 1), "no lossless message")
    if form == 0:
        values = source.take(n * SIZES[dtype])
        source.end()
        expect(check32_bytes(values) == check, "plain values are spoilt")
        return values
    head_bytes = source.struct("I")
    expect(head_bytes % 2 == 0 and 4 <= head_bytes <= len(data) - 16
           and check32_bytes(data[16 : 16 + head_bytes]) == check, "the head is spoilt")
    head = Bytes(data[20 : 16 + head_bytes])
    expected, tables, tail_tables = take_lossless_head(head, n, form == 2)
    source.take(head_bytes - 4)
    live = [one for one in expected if one is not None]
    entries = [head.struct("III") if form == 2 else (*head.struct("II"), RAW) for _ in blocks_of(len(live))]
    head.end()
    values, at = [], 0
    for (sizes, check, how), size in zip(entries, blocks_of(len(live))):
        coded_tails = form == 2 and how == TAILS_CODED
        expect((how == RAW or how <= size // 128 or coded_tails)
               and not (coded_tails and (sizes == RAW or not tail_tables)), "tails as none are")
        begin, tails = source.at, [0] * size
        heads = source.words(size) if sizes == RAW else take_heads(
            source, sizes, live[at : at + size], tables, tails if coded_tails else None, tail_tables)
        take_tails(source, dtype, how, tails)
        expect(check32_bytes(data[begin : source.at]) == check, "a block is spoilt")
        values += [joined(dtype, *one) for one in zip(heads, tails)]
        at += size
    source.end()
    found = iter(values)
    return b"".join((next(found) if one is not None else 0).to_bytes(SIZES[dtype], "little")
                    for one in expected)


def take_lossless_head(source, n, tailed):
    window, own = source.struct("bB")
    n_pieces = source.number()
    expect(n_pieces <= n // 512 + 1, "too many pieces")
    pieces = [take_piece(source) for _ in range(n_pieces)]
    expect(sum(piece.n for piece in pieces) == n, "the pieces have another number of elements")
    dead = []
    for piece in pieces:
        bits = source.take((piece.rows + 7) // 8) if piece.zeros else bytes((piece.rows + 7) // 8)
        dead.append([bits[row // 8] >> row % 8 & 1 for row in range(piece.rows)])
    tables = [class_slots(source.take(65) if own >> c & 1 else common_table(c, 4 * window)) for c in range(8)]
    tail_tables = []
    if tailed:
        n_tables = source.struct("B")
        expect(n_tables <= 16, "too many tables of tails")
        for _ in range(n_tables):
            weights = [density(code) for code in source.take(17)] + [0] * 15
            tail_tables.append(frequencies(weights, weights))
    expected = take_expectations(source, pieces, dead)
    source.end_bits()
    if source.at % 2:
        expect(source.struct("B") == 0, "a byte that fills is not 0")
    return expected, tables, tail_tables


# ---- messages

Run = collections.namedtuple("Run", "name base dtype first n")


def n_elems(dtype, shape):
    """Elements in memory; shapes count the numbers of a pair of 4 bits."""
    return math.prod(shape) // (2 if dtype == "F4" else 1)


def header_of(text):
    """{name: (dtype, shape)} in the order of the data."""
    fields = [(name, one) for name, one in json.loads(text).items() if name != "__metadata__"]
    fields.sort(key=lambda one: one[1]["data_offsets"])
    found, at = {}, 0
    for name, one in fields:
        found[name] = one["dtype"], tuple(one["shape"])
        end = at + SIZES[one["dtype"]] * n_elems(*found[name])
        expect(one["data_offsets"] == [at, end], "%s: its bytes do not fit" % name)
        at = end
    return found


def cut(specs, bases, elems):
    chunk, room = [], elems
    for name, (dtype, shape) in specs.items():
        first, left, base = 0, n_elems(dtype, shape), bases.get(name, name)
        while left:
            if chunk and (not room or (chunk[0].dtype, chunk[0].base is None) != (dtype, base is None)):
                yield chunk
                chunk, room = [], elems
            n = min(room, left)
            chunk.append(Run(name, base, dtype, first, n))
            first, left, room = first + n, left - n, room - n
    if chunk:
        yield chunk


def read_head(source):
    magic, n_bytes, check = source.struct("8sQQ")
    expect(magic == b"TWDELTA\x01", "no message, or another version")
    packed = source.take(n_bytes)
    expect(xxh3(packed) == check, "the head is spoilt")
    return json.loads(zlib.decompress(packed))


def words_of(data):
    return list(struct.unpack("<%dH" % (len(data) // 2), data))


def bytes_of(words):
    return struct.pack("<%dH" % len(words), *words)


def spread(four):
    return (four & 8) << 4 | four & 7


def packed(numbers):
    expect(not any(one & 0x78 for one in numbers), "a number of more than 4 bits")
    four = [one >> 4 | one & 7 for one in numbers]
    return bytes(low | high << 4 for low, high in zip(four[0::2], four[1::2]))


def decode_payload(form, payload, runs, old):
    """The runs' new values, one after the other."""
    dtype, n = runs[0].dtype, sum(run.n for run in runs)
    if form == PLAIN:
        expect(len(payload) == n * SIZES[dtype], "as many bytes as values would be right")
        return payload
    if form == LOSSLESS:
        expect(dtype in TYPE_NUMBERS, "a type without exponents")
        return decode_lossless(payload, dtype, n)
    if form == DELTA8:
        expect(SIZES[dtype] == 1, "a delta of another type")
        return decode_delta8(payload, old or bytes(n))
    expect(runs[0].base is not None, "a delta without old values")
    if form == NIBBLES:
        expect(dtype == "F4", "a delta of another type")
        before = bytes(spread(four) for one in old for four in (one & 15, one >> 4))
        return packed(decode_delta8(payload, before))
    if form == DELTA:
        expect(SIZES[dtype] == 2, "a delta of another type")
        return bytes_of(decode_delta(payload, words_of(old)))
    expect(form == HALVES and dtype == "F32" and len(payload) >= 4, "an unknown form")
    end = 4 + struct.unpack_from("<I", payload)[0]
    expect(len(payload) == end + 2 * n, "the halves do not fit")
    high = decode_delta(payload[4:end], words_of(old)[1::2])
    return bytes_of(list(itertools.chain.from_iterable(zip(words_of(payload[end:]), high))))


def read_chunk(source, chunk, old):
    """Yields (run, its new values)."""
    form, n_bytes, check = source.struct("BIQ")
    table = source.take(17 * len(chunk))
    payload = source.take(n_bytes)
    expect(xxh3(payload, xxh3(table, form)) == check, "%s: the message is spoilt" % chunk[0].name)
    before, changed = {}, []
    rows = [struct.unpack_from("<BQQ", table, 17 * i) for i in range(len(chunk))]
    for run, (same, check_old, _) in zip(chunk, rows):
        size = SIZES[run.dtype]
        if run.base is not None:
            before[run] = bytes(old[run.base][size * run.first : size * (run.first + run.n)])
            expect(len(before[run]) == size * run.n and xxh3(before[run]) == check_old,
                   "%s: other old values" % run.base)
        if not same:
            changed.append(run)
    made = decode_payload(form, payload, changed, b"".join(before.get(one, b"") for one in changed)) \
        if changed else b""
    at = 0
    for run, (same, _, check_new) in zip(chunk, rows):
        new = before[run] if same else made[at : at + SIZES[run.dtype] * run.n]
        at += 0 if same else len(new)
        expect(xxh3(new) == check_new, "%s: other new values" % run.name)
        yield run, new


def check_of(weights):
    """The checksum of a version of {name: (dtype, shape, bytes)}, as in a stream."""
    lines = []
    for name in sorted(weights):
        (dtype, shape, values), check = weights[name], 0
        piece = SIZES[dtype] << 21
        for at in range(0, len(values), piece):
            check = xxh3(values[at : at + piece], check)
        lines.append("%s %s%s %016x\n" % (json.dumps(name), dtype, list(shape), check))
    return "%016x" % xxh3("".join(lines).encode())


def read(data, old):
    """{name: (dtype, shape, bytes)} from a message and old tensors' bytes {name: bytes}."""
    source = Bytes(data)
    head, specs = read_head(source), {}
    for _, text in head["files"]:
        specs.update(header_of(text))
    new = collections.defaultdict(bytes)
    for chunk in cut(specs, head["bases"], head["chunk_elems"]):
        for run, values in read_chunk(source, chunk, old):
            new[run.name] += values
    source.end()
    return {name: (*spec, new[name]) for name, spec in specs.items()}
