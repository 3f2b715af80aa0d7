"""Messages between safetensors files."""

from __future__ import annotations

import contextlib
import os
import pathlib
import typing

from . import chunks, message
from .message import Progress
from .sources import DeltaError, Files, Source, read_header


class Summary(typing.NamedTuple):
    """What diff() or patch() has done: sizes in bytes, and numbers of tensors."""

    message_bytes: int
    weights_bytes: int
    tensors: int
    added: int
    renamed: int
    removed: int


def _summary(n_bytes: int, head: message.Head) -> Summary:
    renamed = sum(base is not None for base in head.bases.values())
    added = len(head.bases) - renamed
    return Summary(n_bytes, head.n_bytes, len(head.specs), added, renamed, len(head.removed))


def diff(old: str | os.PathLike[str], new: str | os.PathLike[str], out: str | os.PathLike[str],
         threads: int | None = None, progress: Progress | None = None, verify: bool = False) -> Summary:
    """Write the message that turns `old` into `new` to the file `out`. old, new: a safetensors file, the
    index of a sharded checkpoint, or a folder with one of these. Only a few chunks are in memory at a time.
    `out` appears when it is complete; with `verify`, only if patching `old` with `out` makes `new`."""
    before, after = Files(old), Files(new)
    try:
        bases, removed = message.pair(before, after)
        files = [(one.path.name if after.index else "", one.header) for one in after.files]
        head = message.Head(files, bases, removed, after.index)
        with _complete(pathlib.Path(out)) as partial:
            with open(partial, "wb") as handle:
                message.write(head, before, after, handle.write, threads, progress)
                n_bytes = handle.tell()
            if verify:
                patch(old, partial, None, threads, progress)
    finally:
        before.close()
        after.close()
    return _summary(n_bytes, head)


class _complete:
    """Context of writing a file or folder, which has a temporary name until the end. Then it gets its real
    name. After an exception it is removed."""

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
    """Writes safetensors files. Runs of tensors may come in any order."""

    def __init__(self, head: message.Head, path: pathlib.Path):
        self._places: dict[str, tuple[int, int]] = {}  # {tensor: (file, offset)}
        self._files: list[int] = []
        if head.index:
            path.mkdir()
            (path / head.index[0]).write_text(head.index[1], encoding="utf-8")
        for name, header in head.files:
            self._add(path / name if head.index else path, header)

    def _add(self, path: pathlib.Path, header: str) -> None:
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


def patch(old: str | os.PathLike[str], change: str | os.PathLike[str], out: str | os.PathLike[str] | None,
          threads: int | None = None, progress: Progress | None = None) -> Summary:
    """Make the new weights from `old` and `change`, a file that diff() has written. `out` gets the same bytes
    as diff()'s `new`: one file, or a folder of files. `out` appears when it is complete and all checksums
    are right. If `out` is None, only the checksums are verified. DeltaError names the tensor that differs."""
    before = Files(old)
    try:
        with (open(change, "rb") as handle,
              contextlib.nullcontext() if out is None else _complete(pathlib.Path(out)) as partial):
            head = message.read_head(lambda n: _read(handle, n))
            head.check_old(before.specs)
            writer = _Writer(head, partial) if partial is not None else None
            try:
                _patch(head, before, handle, writer, threads, progress)
            finally:
                if writer is not None:
                    writer.close()
            n_bytes = handle.tell()
    finally:
        before.close()
    return _summary(n_bytes, head)


def _read(handle: typing.BinaryIO, n: int) -> bytes:
    data = handle.read(n)
    if len(data) < n:
        raise DeltaError("the message ends too early")
    return data


def _patch(head: message.Head, old: Source, handle: typing.BinaryIO, writer: _Writer | None,
           threads: int | None, progress: Progress | None) -> None:
    def make(chunk: chunks.Chunk, written: chunks.Written) -> int:
        data, at = chunks.coder().decode(chunk, written, old, None), 0
        assert data is not None, "it is in the coder's memory"
        for run in chunk:
            if writer is not None:
                writer.put(run, data[at : at + run.n_bytes])
            at += run.n_bytes
        return at

    done = 0
    for n in message.in_order(make, message.read_chunks(head, lambda n: _read(handle, n)), threads):
        done += n
        if progress is not None:
            progress(done, head.n_bytes)
    message.expect_end(lambda n: _read(handle, n))
