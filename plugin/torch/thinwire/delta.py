"""Changes of weights as messages: from a trainer to those that infer, or a fine-tune beside the model it was
made from.

    message = thinwire.delta.encode(old, new)          tensors, or state dicts: {name: tensor}
    new = thinwire.delta.decode(old, message)          in_place=True: old's own memory becomes new
    thinwire.delta.diff("old.safetensors", "new.safetensors", "change.twd")
    thinwire.delta.patch("old.safetensors", "change.twd", "new.safetensors")

No bit is lost. bf16 and fp16 are sent as the change in units in the last place, entropy-coded; fp32 so in its
upper half, the lower one plain; new tensors by the lossless codec; other types plain; what has not changed
takes 17 bytes a tensor. Checksums: old weights that a message was not made from, and bytes that are spoilt,
are a DeltaError that names the tensor. Messages have no more than the weights' bytes, 17 for each tensor or 2
M elements, 13 for each run of tensors of a type, and a list of names."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import typing
from collections.abc import Callable, Iterator, Mapping

from . import chunks, message
from .weights import DeltaError, Files, Source, Spec, Tensors

if typing.TYPE_CHECKING:
    import torch

__all__ = ["DeltaError", "Progress", "decode", "diff", "encode", "patch"]

Progress = message.Progress
# The name of a tensor that is given without one.
ALONE = "tensor"


def _dtypes() -> dict[torch.dtype, str]:
    import torch

    names = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64",
             "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32",
             "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
             "uint16": "U16", "uint32": "U32", "uint64": "U64", "float8_e8m0fnu": "F8_E8M0"}
    return {getattr(torch, name): short for name, short in names.items() if hasattr(torch, name)}


def _on_host(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, in host memory: the tensor's own, if it is so."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError("%s: a %s, not a tensor" % (name, type(tensor).__name__))
    if type(tensor).__name__ == "DTensor":
        raise TypeError("%s: a DTensor; give its to_local() or its full_tensor()" % name)
    if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError("%s: a tensor without plain memory" % name)
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _source(given: Mapping[str, torch.Tensor]) -> tuple[Tensors, dict[str, torch.Tensor]]:
    """(where they are, themselves on the host)"""
    names, places, hosts = _dtypes(), {}, {}
    for name, tensor in given.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise TypeError("%r: not a name of a tensor" % (name,))
        hosts[name] = host = _on_host(name, tensor)
        if host.dtype not in names:
            raise TypeError("%s: the type %s is not known here" % (name, host.dtype))
        places[name] = Spec(names[host.dtype], tuple(host.shape)), host.data_ptr()
    return Tensors(places, hosts), hosts


def _named(weights: torch.Tensor | Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    return weights if isinstance(weights, Mapping) else {ALONE: weights}


def _header(specs: Mapping[str, Spec]) -> str:
    """As safetensors writes it."""
    fields, at = {}, 0
    for name, spec in specs.items():
        fields[name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [at, at + spec.n_bytes]}
        at += spec.n_bytes
    return json.dumps(fields)


def encode(old: torch.Tensor | Mapping[str, torch.Tensor], new: torch.Tensor | Mapping[str, torch.Tensor],
           threads: int | None = None, progress: Progress | None = None) -> bytes:
    """A message that makes `new` of `old`: both tensors, or both {name: tensor}. Tensors may be anywhere;
    those that are not contiguous in host memory are copied there. threads: None for one a core. progress:
    called with (bytes done, bytes in all). TypeError for what is no plain tensor."""
    if isinstance(old, Mapping) != isinstance(new, Mapping):
        raise TypeError("old and new weights: one is a tensor, the other has names")
    (before, _), (after, _) = _source(_named(old)), _source(_named(new))
    bases, removed = message.pair(before, after)
    head, written = message.Head([("", _header(after.specs))], bases, removed, None), []
    message.write(head, before, after, written.append, threads, progress)
    return b"".join(written)


def decode(old: torch.Tensor | Mapping[str, torch.Tensor], data: bytes, in_place: bool = False,
           threads: int | None = None) -> typing.Any:
    """The new weights, a tensor or {name: tensor} as `old` is, on the devices where the old ones are.
    in_place: they are in the old tensors' memory, but for added ones; what is no more stays in `old`. All of
    the message is compared with `old` before anything is written. DeltaError for old weights that the message
    was not made from, and for a message that is spoilt."""
    given = _named(old)
    (before, hosts), head = _source(given), message.read_head(message.taker(data))
    head.check_old(before.specs)
    _check_all(head, before, data, threads)
    result = _targets(head, _alone(head, hosts) if in_place else {})
    _decode_all(head, before, data, result, threads)
    found = {name: _back(given, head.bases.get(name, name), one, in_place) for name, one in result.items()}
    return found if isinstance(old, Mapping) else found[ALONE]


def _each(head: message.Head, data: bytes) -> Iterator[tuple[chunks.Chunk, chunks.Written]]:
    take = message.taker(data)
    message.read_head(take)
    yield from message.read_chunks(head, take)
    message.expect_end(take)


def _check_all(head: message.Head, old: Source, data: bytes, threads: int | None) -> None:
    work = ((chunk, written, old) for chunk, written in _each(head, data))
    for _ in message.in_order(lambda *one: chunks.coder().check(*one), work, threads):
        pass


def _alone(head: message.Head, hosts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The old tensors whose memory no other one reads: others must be read before any is written."""
    reads = collections.Counter(head.bases.get(name, name) for name in head.specs)
    found, end, last = {}, 0, None
    for begin, name in sorted((one.data_ptr(), name) for name, one in hosts.items()):
        if begin < end:
            found.pop(last, None)
        elif reads[name] == 1:
            found[name] = hosts[name]
        if begin + hosts[name].nbytes > end:
            end, last = begin + hosts[name].nbytes, name
    return found


def _targets(head: message.Head, hosts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Where the new tensors will be."""
    import torch

    types, found = {short: dtype for dtype, short in _dtypes().items()}, {}
    for name, spec in head.specs.items():
        base = head.bases.get(name, name)
        there = hosts.get(base) if base is not None else None
        found[name] = there if there is not None else torch.empty(spec.shape, dtype=types[spec.dtype])
    return found


def _decode_all(head: message.Head, old: Source, data: bytes, new: Mapping[str, torch.Tensor],
                threads: int | None) -> None:
    def place(run: chunks.Run) -> int:
        return new[run.name].data_ptr() + run.first * run.spec.itemsize

    work = ((chunk, written, old, place) for chunk, written in _each(head, data))
    for _ in message.in_order(lambda *one: chunks.coder().decode(*one), work, threads):
        pass


def _back(given: Mapping[str, torch.Tensor], base: str | None, made: torch.Tensor,
          in_place: bool) -> torch.Tensor:
    """On the device of the old tensor; in its memory, where it is asked for."""
    import torch

    old = given.get(base) if base is not None else None
    if old is None:
        old = next(iter(given.values()), made)
        return made.to(old.device)
    if not in_place:
        return made.to(old.device)
    if made.data_ptr() != old.data_ptr():
        with torch.no_grad():
            old.copy_(made)
    return old


# ---- files


class Summary(typing.NamedTuple):
    """Of a file that has been written."""

    message_bytes: int
    weights_bytes: int
    tensors: int
    added: int
    renamed: int
    removed: int


def diff(old: str | os.PathLike[str], new: str | os.PathLike[str], out: str | os.PathLike[str],
         threads: int | None = None, progress: Progress | None = None) -> Summary:
    """Write to the file `out` what makes `new` of `old`: safetensors files, indices of sharded ones, or
    folders with one of them. A few chunks of them are in memory at a time. `out` appears when it is
    complete."""
    before, after = Files(old), Files(new)
    try:
        bases, removed = message.pair(before, after)
        files = [(one.path.name if after.index else "", one.header) for one in after.files]
        head = message.Head(files, bases, removed, after.index)
        with _complete(pathlib.Path(out)) as partial, open(partial, "wb") as handle:
            message.write(head, before, after, handle.write, threads, progress)
            n_bytes = handle.tell()
    finally:
        before.close()
        after.close()
    renamed = sum(base is not None for base in bases.values())
    return Summary(n_bytes, head.n_bytes, len(head.specs), len(bases) - renamed, renamed, len(removed))


class _complete:
    """A file or folder under a name of its own until it is complete; removed if it does not become so."""

    def __init__(self, path: pathlib.Path):
        if path.is_dir():
            raise DeltaError("%s: there is such a folder" % path)
        self._path, self._partial = path, path.with_name("%s.%d.partial" % (path.name, os.getpid()))

    def __enter__(self) -> pathlib.Path:
        return self._partial

    def __exit__(self, kind: object, *_rest: object) -> None:
        if kind is None:
            os.replace(self._partial, self._path)
            return
        if self._partial.is_dir():
            for one in self._partial.iterdir():
                one.unlink()
            self._partial.rmdir()
        else:
            self._partial.unlink(missing_ok=True)


class _Writer:
    """Safetensors files that are written at any place."""

    def __init__(self, head: message.Head, path: pathlib.Path):
        self._places: dict[str, tuple[int, int]] = {}  # {tensor: (file, offset)}
        self._files: list[int] = []
        if head.index:
            path.mkdir()
            (path / head.index[0]).write_text(head.index[1], encoding="utf-8")
        for name, header in head.files:
            self._add(path / name if head.index else path, header)

    def _add(self, path: pathlib.Path, header: str) -> None:
        from .weights import read_header

        text = header.encode()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._files.append(file)
        os.write(file, len(text).to_bytes(8, "little") + text)
        for name, entry in read_header(header, str(path))[0].items():
            self._places[name] = file, 8 + len(text) + entry.begin

    def put(self, run: chunks.Run, data: memoryview) -> None:
        file, begin = self._places[run.name]
        at, done = begin + run.first * run.spec.itemsize, 0
        while done < len(data):
            done += os.pwrite(file, data[done:], at + done)

    def close(self) -> None:
        for one in self._files:
            os.close(one)


def patch(old: str | os.PathLike[str], change: str | os.PathLike[str], out: str | os.PathLike[str],
          threads: int | None = None, progress: Progress | None = None) -> Summary:
    """Make the new weights of `old` and of a file that diff() has written: the same bytes as the new file's,
    or a folder of the same files. `out` appears when all is complete and compared with its checksums.
    DeltaError names the tensor that differs."""
    before = Files(old)
    try:
        with open(change, "rb") as handle, _complete(pathlib.Path(out)) as partial:
            head = message.read_head(lambda n: _read(handle, n))
            head.check_old(before.specs)
            writer = _Writer(head, partial)
            try:
                _patch(head, before, handle, writer, threads, progress)
            finally:
                writer.close()
            n_bytes = handle.tell()
    finally:
        before.close()
    renamed = sum(base is not None for base in head.bases.values())
    return Summary(n_bytes, head.n_bytes, len(head.specs), len(head.bases) - renamed, renamed,
                   len(head.removed))


def _read(handle: typing.BinaryIO, n: int) -> bytes:
    data = handle.read(n)
    if len(data) < n:
        raise DeltaError("the message ends too early")
    return data


def _patch(head: message.Head, old: Source, handle: typing.BinaryIO, writer: _Writer, threads: int | None,
           progress: Callable[[int, int], None] | None) -> None:
    def make(chunk: chunks.Chunk, written: chunks.Written) -> int:
        data, at = chunks.coder().decode(chunk, written, old, None), 0
        for run in chunk:
            writer.put(run, data[at : at + run.n_bytes])
            at += run.n_bytes
        return at

    done = 0
    for n in message.in_order(make, message.read_chunks(head, lambda n: _read(handle, n)), threads):
        done += n
        if progress is not None:
            progress(done, head.n_bytes)
    message.expect_end(lambda n: _read(handle, n))
