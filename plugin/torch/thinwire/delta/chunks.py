"""Chunks of a message of changed weights: cuts tensors into chunks, encodes and decodes them.
docs/delta-format.md describes their bytes and forms."""

from __future__ import annotations

import ctypes as C
import dataclasses
import struct
import threading
import typing
from collections.abc import Callable, Iterable, Iterator

from .. import capi
from .sources import DeltaError, Scratch, Source, Spec

ELEMS = 1 << 21
PLAIN, DELTA, LOSSLESS, HALVES, DELTA8, NIBBLES = range(6)
HEAD = struct.Struct("<BIQ")
RUN = struct.Struct("<BQQ")
LENGTH = struct.Struct("<I")
# If a chunk's change takes more than this share of the plain bytes, encode() also tries the lossless codec,
# which does not use the old values.
DEAR = 0.6
_libc = C.CDLL(None)
_libc.memcmp.argtypes = (C.c_void_p, C.c_void_p, C.c_size_t)


@dataclasses.dataclass(frozen=True)
class Run:
    """`n` elements of a tensor, from element `first`. base: the old tensor's name; None for a new one."""

    name: str
    base: str | None
    spec: Spec
    first: int
    n: int

    @property
    def n_bytes(self) -> int:
        return self.n * self.spec.itemsize


Chunk = list[Run]


def cut(tensors: Iterable[tuple[str, str | None, Spec]], elems: int) -> Iterator[Chunk]:
    """Cut tensors (name, old name, spec), in their order, into chunks of at most `elems` elements."""
    chunk: Chunk = []
    room = elems
    for name, base, spec in tensors:
        first = 0
        while first < spec.n_elems:
            kind = (spec.dtype, base is None)
            if chunk and (not room or (chunk[0].spec.dtype, chunk[0].base is None) != kind):
                yield chunk
                chunk, room = [], elems
            n = min(room, spec.n_elems - first)
            chunk.append(Run(name, base, spec, first, n))
            first, room = first + n, room - n
    if chunk:
        yield chunk


@dataclasses.dataclass
class _Values:
    """A run in memory: the addresses of its old values (0: a new tensor) and of its new values."""

    run: Run
    old: int
    new: int


def checksum(address: int, n_bytes: int, seed: int = 0) -> int:
    return capi.lib().tw_checksum(address, n_bytes, seed)


class Coder:
    """Encodes and decodes chunks with the codecs and the memory of one thread."""

    def __init__(self) -> None:
        self._delta, self._lossless = C.c_void_p(), C.c_void_p()
        capi.check(capi.lib().tw_quant_delta_create(None, C.byref(self._delta)), "lossless delta")
        capi.check(capi.lib().tw_quant_lossless_create(None, C.byref(self._lossless)), "lossless codec")
        self._old, self._new, self._message, self._halves = Scratch(), Scratch(), Scratch(), Scratch()

    def __del__(self) -> None:
        capi.lib().tw_quant_delta_destroy(self._delta)
        capi.lib().tw_quant_lossless_destroy(self._lossless)

    def encode(self, chunk: Chunk, old: Source, new: Source) -> bytes:
        """Returns the bytes of a chunk in a message."""
        loaded, table, changed = self._load(chunk, old, new), [], []
        for values in loaded:
            n_bytes = values.run.n_bytes
            same = bool(values.old) and _libc.memcmp(values.old, values.new, n_bytes) == 0
            after = checksum(values.new, n_bytes)
            before = after if same else checksum(values.old, n_bytes) if values.old else 0
            table.append(RUN.pack(same, before, after))
            if not same:
                changed.append(values)
        form, payload = self._payload(changed) if changed else (PLAIN, b"")
        runs = b"".join(table)
        return HEAD.pack(form, len(payload), _check(form, runs, payload)) + runs + payload

    def _load(self, chunk: Chunk, old: Source, new: Source) -> list[_Values]:
        self._old.room(sum(run.n_bytes for run in chunk))
        self._new.room(sum(run.n_bytes for run in chunk))
        loaded, offset = [], 0
        for run in chunk:
            before = old.read(run.base, run.first, run.n, self._old, offset) if run.base is not None else 0
            loaded.append(_Values(run, before, new.read(run.name, run.first, run.n, self._new, offset)))
            offset += run.n_bytes
        return loaded

    def _payload(self, loaded: list[_Values]) -> tuple[int, bytes]:
        """Returns (form, bytes) of the shortest form that these runs can have."""
        spec, plain = loaded[0].run.spec, sum(values.run.n_bytes for values in loaded)
        found = PLAIN, b""
        if loaded[0].old and spec.code in (capi.BF16, capi.FP16):
            found = DELTA, self._encode_delta(_triples(loaded))
        elif loaded[0].old and spec.code == capi.FP32:
            found = HALVES, self._encode_halves(loaded)
        elif spec.itemsize == 1:
            found = DELTA8, self._encode_delta(_triples(loaded), "8")
        if spec.dtype == "F4" and loaded[0].old:
            other = self._encode_nibbles(loaded)
            found = (NIBBLES, other) if len(other) < len(found[1]) else found
        if spec.code is not None and not 0 < len(found[1]) < DEAR * plain:
            other = self._encode_lossless(spec.code, loaded)
            found = (LOSSLESS, other) if not found[1] or len(other) < len(found[1]) else found
        if found[0] == PLAIN or len(found[1]) >= plain:
            return PLAIN, b"".join(C.string_at(values.new, values.run.n_bytes) for values in loaded)
        return found

    def _encode_delta(self, triples: list[tuple[int, int, int]], width: str = "") -> bytes:
        """Encode the changes of 16-bit values, given (address of old, address of new, number of values). The
        codec looks at bits only, so it works for bf16, fp16 and halves of fp32. width "8": 8-bit values of
        any type; `old` may then be 0, for a new tensor."""
        segments, library = (capi.DeltaSegment * len(triples))(), capi.lib()
        bound = getattr(library, "tw_quant_delta%s_bound_bytes" % width)(sum(n for _, _, n in triples))
        for segment, (old, new, n) in zip(segments, triples):
            segment.base, segment.src, segment.n_elems = old, new, n
        n_bytes, room = C.c_size_t(), self._message.room(bound)
        encode = getattr(library, "tw_quant_delta%s_encode" % width)
        capi.check(encode(self._delta, segments, len(segments), room, bound, C.byref(n_bytes)), "encode")
        return C.string_at(room, n_bytes.value)

    def _encode_lossless(self, code: int, loaded: list[_Values]) -> bytes:
        segments = (capi.LosslessSegment * len(loaded))()
        bound = capi.lib().tw_quant_lossless_bound_bytes(code, sum(values.run.n for values in loaded))
        for segment, values in zip(segments, loaded):
            segment.src, segment.n_elems, segment.first_elem = values.new, values.run.n, values.run.first
            segment.row_elems = values.run.spec.shape[-1] if len(values.run.spec.shape) > 1 else 0
        n_bytes, room = C.c_size_t(), self._message.room(bound)
        capi.check(capi.lib().tw_quant_lossless_encode(
            self._lossless, code, segments, len(segments), room, bound, C.byref(n_bytes)), "encode")
        return C.string_at(room, n_bytes.value)

    def _encode_halves(self, loaded: list[_Values]) -> bytes:
        n = sum(values.run.n for values in loaded)
        old, new, low = _thirds(self._halves.room(6 * n), n)
        for values, place in _places(loaded):
            old[place].copy_(_words(values.old, values.run.n)[1::2])
            new[place].copy_(_words(values.new, values.run.n)[1::2])
            low[place].copy_(_words(values.new, values.run.n)[0::2])
        message = self._encode_delta([(old.data_ptr(), new.data_ptr(), n)])
        return LENGTH.pack(len(message)) + message + C.string_at(low.data_ptr(), 2 * n)

    def _encode_nibbles(self, loaded: list[_Values]) -> bytes:
        old, new = (_nibbles(loaded, which) for which in ("old", "new"))
        return self._encode_delta([(old.data_ptr(), new.data_ptr(), old.numel())], "8")

    def check(self, chunk: Chunk, written: Written, old: Source) -> list[int]:
        """Returns addresses of the runs' old values. DeltaError for a damaged chunk or other old values."""
        if written.check != _check(written.form, written.table, written.payload):
            raise DeltaError("%s: the message is spoilt" % chunk[0].name)
        for run, (same, before, _) in zip(chunk, written.runs()):
            _expect(same in (0, 1) if run.base is not None else not same and not before, run.name)
        has_changed = not all(same for same, _, _ in written.runs())
        _expect(has_changed or written.form == PLAIN and not written.payload, chunk[0].name)
        self._old.room(sum(run.n_bytes for run in chunk))
        addresses, offset = [], 0
        for run, (_, before, _) in zip(chunk, written.runs()):
            address = old.read(run.base, run.first, run.n, self._old, offset) if run.base is not None else 0
            if address and checksum(address, run.n_bytes) != before:
                raise DeltaError("%s: the old values are not those that the message was made from" % run.base)
            addresses.append(address)
            offset += run.n_bytes
        return addresses

    def decode(self, chunk: Chunk, written: Written, old: Source,
               new: Callable[[Run], int] | None) -> memoryview | None:
        """Write each run's new values at the address new(run), which may be that of the old values. If new is
        None, write them into this coder's own memory and return that. It is valid until the next call."""
        addresses, room, offset, loaded = self.check(chunk, written, old), 0, 0, []
        if new is None:
            room = self._new.room(sum(run.n_bytes for run in chunk))
        for run, address in zip(chunk, addresses):
            loaded.append(_Values(run, address, room + offset if new is None else new(run)))
            offset += run.n_bytes
        runs = list(written.runs())
        for values, (same, _, _) in zip(loaded, runs):
            if same and values.new != values.old:
                C.memmove(values.new, values.old, values.run.n_bytes)
        changed = [values for values, (same, _, _) in zip(loaded, runs) if not same]
        if changed:
            self._read(written, changed)
        for values, (_, _, after) in zip(loaded, runs):
            if checksum(values.new, values.run.n_bytes) != after:
                raise DeltaError("%s: the new values are not those that the message was made of"
                                 % values.run.name)
        return self._new.view(offset) if new is None else None

    def _read(self, written: Written, loaded: list[_Values]) -> None:
        payload, name = written.payload, loaded[0].run.name
        if written.form == PLAIN:
            _expect(len(payload) == sum(values.run.n_bytes for values in loaded), name)
            for values, place in _places(loaded):
                at, n_bytes = place.start * values.run.spec.itemsize, values.run.n_bytes
                C.memmove(values.new, payload[at : at + n_bytes], n_bytes)
        elif written.form in (DELTA, DELTA8):
            width = "8" if written.form == DELTA8 else ""
            _expect(loaded[0].run.spec.itemsize == 1 if width
                    else bool(loaded[0].old) and loaded[0].run.spec.itemsize == 2, name)
            self._decode_delta(_triples(loaded), payload, name, width)
        elif written.form == LOSSLESS:
            _expect(loaded[0].run.spec.code is not None, name)
            self._decode_lossless(loaded, payload)
        elif written.form == HALVES:
            _expect(bool(loaded[0].old) and loaded[0].run.spec.code == capi.FP32, name)
            self._decode_halves(loaded, payload)
        elif written.form == NIBBLES:
            _expect(bool(loaded[0].old) and loaded[0].run.spec.dtype == "F4", name)
            self._decode_nibbles(loaded, payload, name)
        else:
            raise DeltaError("%s: in form %d, which this thinwire does not know: a newer one has written it"
                             % (name, written.form))

    def _decode_delta(self, triples: list[tuple[int, int, int]], payload: bytes, name: str,
                      width: str = "") -> None:
        segments = (capi.DeltaSegment * len(triples))()
        for segment, (old, new, n) in zip(segments, triples):
            segment.base, segment.dst, segment.n_elems = old, new, n
        decode = getattr(capi.lib(), "tw_quant_delta%s_decode" % width)
        _decoded(decode(self._delta, segments, len(segments), payload, len(payload)), name)

    def _decode_lossless(self, loaded: list[_Values], payload: bytes) -> None:
        segments, code = (capi.LosslessSegment * len(loaded))(), loaded[0].run.spec.code
        for segment, values in zip(segments, loaded):
            segment.dst, segment.n_elems = values.new, values.run.n
        _decoded(capi.lib().tw_quant_lossless_decode(
            self._lossless, code, segments, len(segments), payload, len(payload)), loaded[0].run.name)

    def _decode_halves(self, loaded: list[_Values], payload: bytes) -> None:
        n, name = sum(values.run.n for values in loaded), loaded[0].run.name
        _expect(len(payload) >= LENGTH.size, name)
        end = LENGTH.size + LENGTH.unpack_from(payload)[0]
        _expect(len(payload) == end + 2 * n, name)
        old, new, low = _thirds(self._halves.room(6 * n), n)
        for values, place in _places(loaded):
            old[place].copy_(_words(values.old, values.run.n)[1::2])
        self._decode_delta([(old.data_ptr(), new.data_ptr(), n)], payload[LENGTH.size : end], name)
        C.memmove(low.data_ptr(), payload[end:], 2 * n)
        for values, place in _places(loaded):
            words = _words(values.new, values.run.n)
            words[1::2].copy_(new[place])
            words[0::2].copy_(low[place])

    def _decode_nibbles(self, loaded: list[_Values], payload: bytes, name: str) -> None:
        old = _nibbles(loaded, "old")
        new = old.new_empty(len(old))
        self._decode_delta([(old.data_ptr(), new.data_ptr(), len(old))], payload, name, "8")
        _expect(not (new & 0x78).any(), name)
        four = new >> 4 | new & 7
        packed = four[0::2] | four[1::2] << 4
        for values, place in _places(loaded):
            C.memmove(values.new, packed[place].data_ptr(), values.run.n)


def _triples(loaded: list[_Values]) -> list[tuple[int, int, int]]:
    return [(values.old, values.new, values.run.n) for values in loaded]


def _nibbles(loaded: list[_Values], which: str) -> typing.Any:
    """Unpack 4-bit numbers, two in a byte, the lower four bits first, to one number a byte. The sign moves
    from bit 3 to bit 7. which: "old" or "new"."""
    import torch

    packed = torch.cat([torch.frombuffer((C.c_uint8 * one.run.n).from_address(getattr(one, which)),
                                         dtype=torch.uint8) for one in loaded])
    both = torch.stack((packed & 15, packed >> 4), 1).view(-1)
    return (both & 8) << 4 | both & 7


def _decoded(status: int, name: str) -> None:
    if status < 0:
        raise DeltaError("%s: the message does not decode: %s" % (name, capi.last_error()))


def _expect(true: bool, name: str) -> None:
    if not true:
        raise DeltaError("%s: the message says what no encoder writes" % name)


def _words(address: int, n: int) -> typing.Any:
    """Returns n fp32 values in place, as 2 n 16-bit words: each value's lower half, then its upper half."""
    import torch

    return torch.frombuffer((C.c_int16 * (2 * n)).from_address(address), dtype=torch.int16)


def _thirds(address: int, n: int) -> typing.Any:
    import torch

    values = (C.c_int16 * (3 * n)).from_address(address)
    return torch.frombuffer(values, dtype=torch.int16).view(3, n).unbind()


def _places(loaded: list[_Values]) -> Iterator[tuple[_Values, slice]]:
    at = 0
    for values in loaded:
        yield values, slice(at, at + values.run.n)
        at += values.run.n


def _check(form: int, table: bytes, payload: bytes) -> int:
    library = capi.lib()
    return library.tw_checksum(payload, len(payload), library.tw_checksum(table, len(table), form))


@dataclasses.dataclass
class Written:
    """A chunk as it stands in a message. table: a RUN for each run. check: checksum of the other fields."""

    form: int
    check: int
    table: bytes
    payload: bytes

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yields, for each run, (1 if unchanged else 0, checksum of the old values, checksum of the new)."""
        return RUN.iter_unpack(self.table)


def read(chunk: Chunk, take: Callable[[int], bytes]) -> Written:
    """Read a chunk of a message. take(n): returns the next n bytes; DeltaError if fewer are left."""
    form, n_bytes, check = HEAD.unpack(take(HEAD.size))
    if n_bytes > sum(run.n_bytes for run in chunk) + LENGTH.size:
        raise DeltaError("%s: the message says what no encoder writes" % chunk[0].name)
    table = take(RUN.size * len(chunk))
    return Written(form, check, table, take(n_bytes))


_of_thread = threading.local()


def coder() -> Coder:
    """Returns this thread's coder; the first call makes it."""
    if not hasattr(_of_thread, "coder"):
        _of_thread.coder = Coder()
    return _of_thread.coder
