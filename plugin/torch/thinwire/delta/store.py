"""A stream's messages as files in a folder: on a disk, or in any store that fsspec supports, such as s3://.

    store = Store("s3://bucket/run", every=50)
    store.put(publisher)                                       the trainer, after each publish()
    store.follow(subscriber)                                   the inference server, now and then

NUMBER.twd leads from version NUMBER - 1 to NUMBER. NUMBER.all.twd has all weights of version NUMBER. follow()
applies the files that are there. OSError if the store cannot be reached. DeltaError for a file that is
damaged or of another run; follow(Subscriber({})) then loads all weights. Both errors name the file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from .message import Version
from .sources import DeltaError
from .stream import Publisher, Subscriber

_NAME = re.compile(r"(\d{10})(\.all)?\.twd")


class Store:
    """The files of a stream. url: the folder; it is made if it is missing, but a bucket is not. every: of
    one in `every` versions a file with all weights is written, too; files older than the last two such files
    are removed. options: the store's options, for fsspec."""

    def __init__(self, url: str, every: int = 50, **options: object):
        import fsspec

        self._files, self._root = fsspec.core.url_to_fs(url, **options)
        self._bucket = self._root.partition("/")[0]  # "" for a file system
        self._every = every
        self._last: Version | None = None

    def _path(self, number: int, is_all: bool) -> str:
        return "%s/%010d%s.twd" % (self._root, number, ".all" if is_all else "")

    def _there(self) -> tuple[list[int], list[int]]:
        """Returns the version numbers of the files NUMBER.twd, and of NUMBER.all.twd, both ascending."""
        self._files.invalidate_cache()
        try:
            with _named(self._root):
                paths = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            if self._bucket and not self._files.exists(self._bucket):
                raise
            return [], []
        found = [_NAME.fullmatch(path.rpartition("/")[2]) for path in paths]
        both = [(int(one[1]), bool(one[2])) for one in found if one]
        return sorted(n for n, is_all in both if not is_all), sorted(n for n, is_all in both if is_all)

    def _write(self, path: str, data: bytes) -> None:
        """Write a file so that readers see all or nothing: with a rename, which a bucket does not need."""
        with _named(path):
            if self._bucket:
                self._files.pipe_file(path, data)
            else:
                self._files.makedirs(self._root, exist_ok=True)
                self._files.pipe_file(path + ".partial", data)
                self._files.mv(path + ".partial", path)

    def put(self, publisher: Publisher) -> None:
        """Write the messages that lead from the last put() to the publisher's newest version. At the first
        call, for another run or after a gap, write all weights instead and remove all other files."""
        version, messages = publisher.version, publisher.since(self._last)
        is_whole = self._last is None or version.number != self._last.number + len(messages)
        for number, one in zip(range(version.number - len(messages) + 1, version.number + 1), messages):
            self._write(self._path(number, is_whole), one)
        if not is_whole and version.number % self._every == 0:
            self._write(self._path(version.number, True), publisher.since(None)[0])
        self._last = version
        changes, wholes = self._there()
        oldest = version.number if is_whole else min(wholes[-2:], default=0)
        for numbers, is_all in ((changes, False), (wholes, True)):
            for n in numbers:
                if n < oldest or (is_whole and (n, is_all) != (oldest, True)):
                    with contextlib.suppress(FileNotFoundError), _named(self._path(n, is_all)):
                        self._files.rm_file(self._path(n, is_all))

    def _since(self, have: Version | None) -> Iterator[tuple[str, bytes]]:
        """Yields (path, message) from version `have` (None: no weights yet) to the newest in the store:
        changes if none is missing, otherwise all weights and the changes after them."""
        changes, wholes = self._there()
        first = have.number if have and have.number <= max(changes + wholes, default=0) else None
        paths = []
        if wholes and (first is None or _end(first, changes) < _end(wholes[-1], changes)):
            first = wholes[-1]
            paths = [self._path(first, True)]
        if first is not None:
            paths += [self._path(n, False) for n in range(first + 1, _end(first, changes) + 1)]
        for path in paths:
            try:
                with _named(path):
                    data = self._files.cat_file(path)
            except FileNotFoundError:  # removed after it was listed, or listed before it can be read
                return
            yield path, data

    def since(self, have: Version | None) -> list[bytes]:
        """Returns the messages from version `have` (None: no weights yet) to the newest in the store."""
        return [data for _, data in self._since(have)]

    def follow(self, subscriber: Subscriber) -> int:
        """Let the subscriber apply the messages that it lacks, one by one. Returns the number applied."""
        n = 0
        for path, data in self._since(subscriber.version):
            try:
                n += subscriber.apply(data)
            except DeltaError as error:
                raise type(error)("%s: %s" % (path, error)) from None
        return n


def _end(first: int, changes: list[int]) -> int:
    """Returns the last version that is reached from version `first` through changes without a gap."""
    while first + 1 in changes:
        first += 1
    return first


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Turn any exception of a store into an OSError that names the path."""
    try:
        yield
    except Exception as error:
        kind = type(error) if isinstance(error, FileNotFoundError | PermissionError) else OSError
        raise kind("%s: %s" % (path, error)) from error
