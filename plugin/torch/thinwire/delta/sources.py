"""Sources of a message's weights: tensors in memory, a safetensors file, or those of a sharded checkpoint.

A source's read() returns the address of consecutive elements of a tensor. Elements of a file are first read
into memory. Nothing here loads torch."""

from __future__ import annotations

import ctypes as C
import dataclasses
import json
import math
import os
import pathlib
import struct
import typing

from .. import capi

# {safetensors' name of a type: (element size in bytes, the library's type; None if it has none)}
TYPES = {
    "BF16": (2, capi.BF16), "F16": (2, capi.FP16), "F32": (4, capi.FP32), "F64": (8, None),
    "F8_E4M3": (1, None), "F8_E5M2": (1, None), "F8_E8M0": (1, None), "F8_E4M3FNUZ": (1, None),
    "F8_E5M2FNUZ": (1, None), "F4": (1, None),
    "I64": (8, None), "I32": (4, None), "I16": (2, None), "I8": (1, None),
    "U64": (8, None), "U32": (4, None), "U16": (2, None), "U8": (1, None),
    "BOOL": (1, None), "C64": (8, None),
}
PACKED = {"F4": 2}  # {type: numbers in one element}; shapes count numbers
HEADER_BYTES_MAX = 1 << 28
INDEX = ".safetensors.index.json"


class DeltaError(ValueError):
    """A message is damaged, or does not fit the weights. The text names the tensor or the file."""


class TornError(DeltaError):
    """Applying a message failed halfway: some weights are new and some old. Fetch all weights again."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """A tensor's type and shape."""

    dtype: str  # safetensors' name
    shape: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        return TYPES[self.dtype][0]

    @property
    def code(self) -> int | None:
        return TYPES[self.dtype][1]

    @property
    def n_elems(self) -> int:
        """Number of elements in memory. A pair of 4-bit numbers counts as one element."""
        return math.prod(self.shape) // PACKED.get(self.dtype, 1)

    @property
    def n_bytes(self) -> int:
        return self.n_elems * self.itemsize


class Scratch:
    """Memory that is used again and again by one thread, and grows as needed."""

    def __init__(self) -> None:
        self._memory = bytearray()
        self.address = 0

    def room(self, n_bytes: int) -> int:
        """Returns the address of at least n_bytes bytes. Their old content is lost."""
        if n_bytes > len(self._memory) or not self._memory:
            self._memory = bytearray(max(n_bytes, 64))
            self.address = C.addressof((C.c_char * len(self._memory)).from_buffer(self._memory))
        return self.address

    def view(self, n_bytes: int, offset: int = 0) -> memoryview:
        return memoryview(self._memory)[offset : offset + n_bytes]


@dataclasses.dataclass
class _Entry:
    spec: Spec
    begin: int  # offset in bytes, from the beginning of the data


def _each_once(fields: list[tuple[str, object]]) -> dict[str, typing.Any]:
    found = dict(fields)
    if len(found) < len(fields):
        raise ValueError("a name is there twice")
    return found


def read_header(text: str, where: str) -> tuple[dict[str, _Entry], int]:
    """Parse a safetensors header. Returns ({name: entry} in the order of the data, data size). DeltaError
    if the header is not valid. where: the file, for the error's text."""
    try:
        tensors = {name: (one["dtype"], tuple(one["shape"]), *one["data_offsets"])
                   for name, one in json.loads(text, object_pairs_hook=_each_once).items()
                   if name != "__metadata__"}
        plain = all(isinstance(n, int) and n >= 0
                    for _, shape, begin, end in tensors.values() for n in (*shape, begin, end))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DeltaError("%s: not a safetensors header: %s" % (where, error)) from None
    if not plain:
        raise DeltaError("%s: a shape or offset is not a number" % where)
    entries, at = {}, 0
    for name, (dtype, shape, begin, end) in sorted(tensors.items(), key=lambda one: one[1][2:]):
        if dtype not in TYPES:
            raise DeltaError("%s: %s: the type %s is not known here" % (where, name, dtype))
        entry = _Entry(Spec(dtype, shape), begin)
        is_whole = math.prod(shape) % PACKED.get(dtype, 1) == 0
        if begin != at or end - begin != entry.spec.n_bytes or not is_whole:
            raise DeltaError("%s: %s: its bytes %d to %d do not fit its shape, or what stands before it"
                             % (where, name, begin, end))
        entries[name], at = entry, end
    return entries, at


class File:
    """A safetensors file, open for reading. Several threads may read it at once."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._handle = open(path, "rb", buffering=0)
        size = os.fstat(self._handle.fileno()).st_size
        first = self._handle.read(8)
        n_header = struct.unpack("<Q", first)[0] if len(first) == 8 else size
        if n_header > min(size - 8, HEADER_BYTES_MAX):
            raise DeltaError("%s: not a safetensors file" % path)
        try:
            self.header = self._read_all(8, n_header).decode()
        except UnicodeDecodeError as error:
            raise DeltaError("%s: its header is not text: %s" % (path, error)) from None
        self._data = 8 + n_header
        self.entries, n_bytes = read_header(self.header, str(path))
        if self._data + n_bytes != size:
            raise DeltaError("%s: has %d bytes where its header says %d" % (path, size, self._data + n_bytes))

    def _read_all(self, at: int, n_bytes: int) -> bytes:
        memory = bytearray(n_bytes)
        self.read_into(memoryview(memory), at)
        return bytes(memory)

    def read_into(self, room: memoryview, at: int) -> None:
        done = 0
        while done < len(room):
            got = os.preadv(self._handle.fileno(), [room[done:]], at + done)
            if got == 0:
                raise DeltaError("%s: ends too early" % self.path)
            done += got

    def offset(self, name: str, first: int) -> int:
        """Returns the offset of element `first` of a tensor, in bytes from the beginning of the file."""
        entry = self.entries[name]
        return self._data + entry.begin + first * entry.spec.itemsize

    def close(self) -> None:
        self._handle.close()


class Files:
    """The tensors of one safetensors file, or of all files of a sharded checkpoint."""

    def __init__(self, path: str | os.PathLike[str]):
        paths, self.index = _shards(pathlib.Path(path))
        self.files = [File(one) for one in paths]
        self._of = {name: one for one in self.files for name in one.entries}
        if len(self._of) < sum(len(one.entries) for one in self.files):
            raise DeltaError("%s: a tensor is in two of its files" % path)
        self.specs = {name: one.entries[name].spec for one in self.files for name in one.entries}

    def read(self, name: str, first: int, n: int, scratch: Scratch, offset: int) -> int:
        """Read n elements, from element `first`, into `scratch` at `offset` bytes. Returns their address."""
        of, itemsize = self._of[name], self.specs[name].itemsize
        of.read_into(scratch.view(n * itemsize, offset), of.offset(name, first))
        return scratch.address + offset

    def close(self) -> None:
        for one in self.files:
            one.close()


def _shards(path: pathlib.Path) -> tuple[list[pathlib.Path], tuple[str, str] | None]:
    """Returns (paths of the files, (name, text) of the checkpoint's index or None if it has none)."""
    if path.is_dir():
        found = sorted(path.glob("*" + INDEX)) or sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise DeltaError("%s: has %d files of weights; name one, or the index" % (path, len(found)))
        path = found[0]
    if not path.name.endswith(".json"):
        return [path], None
    text = path.read_text(encoding="utf-8")
    try:
        names = sorted(set(json.loads(text)["weight_map"].values()))
        if not all(is_plain_name(name) for name in names):
            raise ValueError("a name of a file has a folder in it")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeltaError("%s: not an index of safetensors files: %s" % (path, error)) from None
    return [path.parent / name for name in names], (path.name, text)


def is_plain_name(name: object) -> bool:
    """Returns whether `name` is a file's name without a folder. Other names could lead out of the folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


class Tensors:
    """Tensors in this process's memory. places: {name: (spec, address)}. keep: owners of that memory."""

    def __init__(self, places: dict[str, tuple[Spec, int]], keep: object):
        self.specs = {name: spec for name, (spec, _) in places.items()}
        self._places, self._keep = places, keep

    def read(self, name: str, first: int, *_room: object) -> int:
        spec, address = self._places[name]
        return address + first * spec.itemsize


Source = Files | Tensors
