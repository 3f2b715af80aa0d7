"""A message of changed weights: a head, which lists the new tensors and the old tensors they come from, and
then chunks of values. docs/delta-format.md describes all its bytes. Nothing here loads torch."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import json
import os
import struct
import typing
import zlib
from collections.abc import Callable, Iterator, Mapping

from .. import capi
from . import chunks
from .sources import DeltaError, Scratch, Source, Spec, is_plain_name, read_header

MAGIC = b"TWDELTA\x01"
FRONT = struct.Struct("<8sQQ")
HEAD_BYTES_MAX = 1 << 28
THREADS_MAX = 16
Progress = Callable[[int, int], None]


class Version(typing.NamedTuple):
    """A version of a stream's weights: its number, and a checksum of all weights."""

    number: int
    check: str

    def __str__(self) -> str:
        return "%d (%s)" % self


Versions = tuple[Version | None, Version]


@dataclasses.dataclass
class Head:
    """The head of a message. bases: {renamed tensor: its old tensor; added tensor: None}.
    removed: old tensors that are gone. index: (name, text) of a sharded checkpoint's index file, or None."""

    files: list[tuple[str, str]]  # (name, safetensors header)
    bases: dict[str, str | None]
    removed: list[str]
    index: tuple[str, str] | None
    chunk_elems: int = chunks.ELEMS
    versions: Versions | None = None  # (version of the old weights, of the new), in a stream

    def __post_init__(self) -> None:
        self.specs: dict[str, Spec] = {}
        for name, header in self.files:
            entries, _ = read_header(header, name or "the message")
            for tensor, entry in entries.items():
                if tensor in self.specs:
                    raise DeltaError("%s: in two files of the message" % tensor)
                self.specs[tensor] = entry.spec

    def cut(self) -> Iterator[chunks.Chunk]:
        return chunks.cut(((name, self.bases.get(name, name), spec) for name, spec in self.specs.items()),
                          self.chunk_elems)

    @property
    def n_bytes(self) -> int:
        return sum(spec.n_bytes for spec in self.specs.values())

    @property
    def is_full(self) -> bool:
        """Whether the message has all weights, and so needs no old ones."""
        return all(self.bases.get(name, name) is None for name in self.specs)

    def check_old(self, specs: dict[str, Spec]) -> None:
        """Raise DeltaError if an old tensor that is needed is missing, or has another shape or type."""
        for name, spec in self.specs.items():
            base = self.bases.get(name, name)
            if base is not None and specs.get(base) != spec:
                found = specs.get(base)
                raise DeltaError("%s: the old weights have %s, the message was made from %s" % (
                    base, text_of(found) if found is not None else "no such tensor", text_of(spec)))

    def write(self) -> bytes:
        fields: dict[str, object] = {
            "files": self.files, "bases": self.bases, "removed": self.removed, "index": self.index,
            "chunk_elems": self.chunk_elems}
        if self.versions:
            fields["versions"] = self.versions
        packed = zlib.compress(json.dumps(fields).encode())
        return FRONT.pack(MAGIC, len(packed), capi.lib().tw_checksum(packed, len(packed), 0)) + packed


def text_of(spec: Spec) -> str:
    return "%s%s" % (spec.dtype, list(spec.shape))


def read_head(take: Callable[[int], bytes]) -> Head:
    """Read a head. take(n): returns the next n bytes. DeltaError for a head that no encoder writes."""
    magic, n_bytes, check = FRONT.unpack(take(FRONT.size))
    if magic[:-1] != MAGIC[:-1]:
        raise DeltaError("not a message of changed weights")
    if magic != MAGIC:
        raise DeltaError("a message of version %d, this thinwire reads %d" % (magic[-1], MAGIC[-1]))
    packed = take(n_bytes) if n_bytes <= HEAD_BYTES_MAX else b""
    if not packed or capi.lib().tw_checksum(packed, len(packed), 0) != check:
        raise DeltaError("the message's head is spoilt")
    unpacker = zlib.decompressobj()
    try:
        fields = json.loads(unpacker.decompress(packed, HEAD_BYTES_MAX))
        head = Head([(name, header) for name, header in fields["files"]], dict(fields["bases"]),
                    list(fields["removed"]), tuple(fields["index"]) if fields["index"] else None,
                    int(fields["chunk_elems"]), _versions(fields.get("versions")))
    except DeltaError:
        raise
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise DeltaError("the message's head makes no sense: %s" % error) from None
    names = [name for name, _ in head.files]
    named = all(map(is_plain_name, names + [head.index[0]])) if head.index else names == [""]
    if not unpacker.eof or not 0 < head.chunk_elems <= 1 << 28 or not named:
        raise DeltaError("the message's head makes no sense")
    return head


def _versions(found: typing.Any) -> Versions | None:
    """Read the two versions from a head's JSON. ValueError or TypeError if they make no sense."""
    if found is None:
        return None
    (old, new) = (one and Version(int(one[0]), str(one[1])) for one in found)
    if new is None:
        raise ValueError("the new weights have no version")
    return old, new


def check_of(specs: Mapping[str, Spec], wholes: Mapping[str, int]) -> str:
    """Returns the checksum of all tensors with their names, types and shapes, as 16 hexadecimal digits. The
    order of tensors does not matter. wholes: {name: checksum of the tensor by whole()}."""
    text = "".join("%s %s %016x\n" % (json.dumps(name), text_of(specs[name]), wholes[name])
                   for name in sorted(specs)).encode()
    return "%016x" % capi.lib().tw_checksum(text, len(text), 0)


def whole(source: Source, name: str) -> int:
    """Returns the checksum of a whole tensor."""
    spec, check, scratch = source.specs[name], 0, Scratch()
    for first in range(0, spec.n_elems, chunks.ELEMS):
        n = min(chunks.ELEMS, spec.n_elems - first)
        scratch.room(n * spec.itemsize)
        check = chunks.checksum(source.read(name, first, n, scratch, 0), n * spec.itemsize, check)
    return check


def pair(old: Source, new: Source) -> tuple[dict[str, str | None], list[str]]:
    """Returns (bases, removed) for Head. A tensor counts as renamed from an old one of the same shape and
    type: the only one whose name differs just by a prefix, or else one with equal values."""
    bases: dict[str, str | None] = {
        name: None for name, spec in new.specs.items() if old.specs.get(name) != spec}
    left: dict[Spec, list[str]] = collections.defaultdict(list)
    for name in old.specs:
        if name not in new.specs:
            left[old.specs[name]].append(name)
    for name in [one for one in bases if one not in old.specs]:
        bases[name] = base = _renamed(name, left[new.specs[name]], old, new)
        if base is not None:
            left[new.specs[name]].remove(base)
    return bases, sorted(name for names in left.values() for name in names)


def _renamed(name: str, candidates: list[str], old: Source, new: Source) -> str | None:
    alike = [one for one in candidates if one.endswith("." + name) or name.endswith("." + one)]
    if len(alike) != 1 and candidates:
        check = whole(new, name)
        alike = [one for one in candidates if whole(old, one) == check][:1]
    return alike[0] if len(alike) == 1 else None


def default_threads() -> int:
    return min(len(os.sched_getaffinity(0)), THREADS_MAX)


def in_order(function: Callable[..., typing.Any], work: Iterator[tuple],
             threads: int | None) -> Iterator[typing.Any]:
    """Call function(*one) for each `one` of `work`, on several threads. Yields the results in order. Does not
    run ahead of its caller by more than a few results."""
    threads = threads or default_threads()
    waiting: collections.deque[concurrent.futures.Future] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(threads, "thinwire-delta") as pool:
        try:
            for one in work:
                waiting.append(pool.submit(function, *one))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def write(head: Head, old: Source, new: Source, put: Callable[[bytes], object], threads: int | None = None,
          progress: Progress | None = None) -> None:
    """Write a message: call put(bytes) for the head and for each chunk, in order."""
    put(head.write())
    cut, done = list(head.cut()), 0
    work = ((chunk, old, new) for chunk in cut)
    for chunk, data in zip(cut, in_order(lambda *one: chunks.coder().encode(*one), work, threads)):
        put(data)
        done += sum(run.n_bytes for run in chunk)
        if progress is not None:
            progress(done, head.n_bytes)


def read_chunks(head: Head, take: Callable[[int], bytes]) -> Iterator[tuple[chunks.Chunk, chunks.Written]]:
    """Yields (the chunk's runs, the chunk as it stands in the message) for each chunk."""
    for chunk in head.cut():
        yield chunk, chunks.read(chunk, take)


def taker(message: bytes | memoryview) -> Callable[[int], bytes]:
    """Returns a function take(n), which returns the next n bytes of a message in memory."""
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        if n > len(message) - at:
            raise DeltaError("the message ends too early")
        at += n
        return bytes(message[at - n : at])

    return take


class Received(typing.NamedTuple):
    """A message in memory: its head, read, and the bytes after the head."""

    head: Head
    rest: memoryview

    def chunks(self) -> Iterator[tuple[chunks.Chunk, chunks.Written]]:
        take = taker(self.rest)
        yield from read_chunks(self.head, take)
        expect_end(take)


def received(data: bytes) -> Received:
    return Received(read_head(taker(data)), memoryview(data)[FRONT.size + FRONT.unpack_from(data)[1] :])


def expect_end(take: Callable[[int], bytes]) -> None:
    """Raise DeltaError if the message has bytes after its last chunk."""
    try:
        take(1)
    except DeltaError:
        return
    raise DeltaError("bytes are left behind the message's last chunk")
