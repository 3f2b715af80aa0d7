"""A stream's messages as files of a folder: on a disk, or in whatever store fsspec knows, such as s3://.

    store = Store("s3://bucket/run", every=50)
    store.put(publisher)                                       who trains, after each publish()
    store.follow(subscriber)                                   who serves, now and then

NUMBER.twd leads to version NUMBER from the one before, NUMBER.all.twd from any. What is not there yet is
waited for: the next call finds it. OSError for a store that cannot be reached, and DeltaError for a file that
is spoilt or of another run, name it; after the latter follow(Subscriber({})) takes all weights."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from .message import Version
from .sources import DeltaError
from .stream import Publisher, Subscriber

_NAME = re.compile(r"(\d{10})(\.all)?\.twd")


class Store:
    """url: a folder. Buckets are not made, other folders are. every: of so many versions one is written with
    all weights, too, and what is older than the last two of these is removed. options: fsspec's, of the
    store."""

    def __init__(self, url: str, every: int = 50, **options: object):
        import fsspec

        self._files, self._root = fsspec.core.url_to_fs(url, **options)
        self._bucket = self._root.partition("/")[0]  # "" in a store of folders
        self._every = every
        self._last: Version | None = None

    def _path(self, number: int, is_all: bool) -> str:
        return "%s/%010d%s.twd" % (self._root, number, ".all" if is_all else "")

    def _there(self) -> tuple[list[int], list[int]]:
        """Returns the numbers of changes, and of versions with all weights, ascending."""
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
        """Write a file. In a store of folders it gets its name when it is complete; in others it is seen
        only then."""
        with _named(path):
            if self._bucket:
                self._files.pipe_file(path, data)
            else:
                self._files.makedirs(self._root, exist_ok=True)
                self._files.pipe_file(path + ".partial", data)
                self._files.mv(path + ".partial", path)

    def put(self, publisher: Publisher) -> None:
        """Write what leads to the publisher's newest version; the first time, for another run, and after a
        gap all weights, beside which nothing stays."""
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
        """Paths and messages that lead from this version, or None, to the newest that can be reached: by
        changes if these go as far, else by all weights and what came after."""
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
            except FileNotFoundError:  # removed since, or listed early
                return
            yield path, data

    def since(self, have: Version | None) -> list[bytes]:
        """What leads from this version, or None, to the newest: changes if all are there, else all weights
        and what came after."""
        return [data for _, data in self._since(have)]

    def follow(self, subscriber: Subscriber) -> int:
        """Let the subscriber apply the messages that it lacks, one after the other. Returns how many."""
        n = 0
        for path, data in self._since(subscriber.version):
            try:
                n += subscriber.apply(data)
            except DeltaError as error:
                raise type(error)("%s: %s" % (path, error)) from None
        return n


def _end(first: int, changes: list[int]) -> int:
    """The version that changes lead to from this one, without a gap."""
    while first + 1 in changes:
        first += 1
    return first


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    """Turn whatever a store raises into an OSError that names the path."""
    try:
        yield
    except Exception as error:
        kind = type(error) if isinstance(error, FileNotFoundError | PermissionError) else OSError
        raise kind("%s: %s" % (path, error)) from error
