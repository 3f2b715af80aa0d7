"""A stream's messages as files of a folder: on a disk, or in whatever store fsspec knows, such as s3://.

    store = Store("s3://bucket/run", every=50)
    store.put(publisher)                                       who trains, after each publish()
    for one in store.since(subscriber.version):                who serves, now and then
        subscriber.apply(one)

NUMBER.twd leads to version NUMBER from the one before, NUMBER.all.twd from any. A file that is not complete
yet, or of another run, is refused with a DeltaError: ask again later, or since(None)."""

from __future__ import annotations

import re

from .message import Version
from .stream import Publisher

_NAME = re.compile(r"(\d{10})(\.all)?\.twd")


class Store:
    """url: a folder, which is made. every: of so many versions one is written with all weights, too, and what
    is older than the last two of these is removed. options: fsspec's, of the store."""

    def __init__(self, url: str, every: int = 50, **options: object):
        import fsspec

        self._files, self._root = fsspec.core.url_to_fs(url, **options)
        self._files.makedirs(self._root, exist_ok=True)
        self._every = every
        self._last: Version | None = None

    def _path(self, number: int, is_all: bool) -> str:
        return "%s/%010d%s.twd" % (self._root, number, ".all" if is_all else "")

    def _there(self) -> tuple[list[int], list[int]]:
        """Returns the numbers of changes, and of versions with all weights, ascending."""
        self._files.invalidate_cache()
        paths = self._files.ls(self._root, detail=False)
        found = [_NAME.fullmatch(path.rpartition("/")[2]) for path in paths]
        both = [(int(one[1]), bool(one[2])) for one in found if one]
        return sorted(n for n, is_all in both if not is_all), sorted(n for n, is_all in both if is_all)

    def put(self, publisher: Publisher) -> None:
        """Write what leads to the publisher's newest version; the first time, for another run, and after a
        gap all weights, beside which nothing stays."""
        version, messages = publisher.version, publisher.since(self._last)
        is_whole = self._last is None or version.number != self._last.number + len(messages)
        for number, one in zip(range(version.number - len(messages) + 1, version.number + 1), messages):
            self._files.pipe_file(self._path(number, is_whole), one)
        if not is_whole and version.number % self._every == 0:
            self._files.pipe_file(self._path(version.number, True), publisher.since(None)[0])
        self._last = version
        changes, wholes = self._there()
        oldest = version.number if is_whole else wholes[-2:][0]
        for numbers, is_all in ((changes, False), (wholes, True)):
            for n in numbers:
                if n < oldest or (is_whole and (n, is_all) != (oldest, True)):
                    self._files.rm_file(self._path(n, is_all))

    def since(self, have: Version | None) -> list[bytes]:
        """What leads from this version, or None, to the newest: changes if all are there, else all weights
        and what came after."""
        changes, wholes = self._there()
        newest = max(changes[-1:] + wholes[-1:], default=0)
        first = have.number if have and have.number <= newest else None
        if first is None or not set(range(first + 1, newest + 1)) <= set(changes):
            first = wholes[-1] if wholes else newest
            paths = [self._path(n, True) for n in wholes[-1:]]
        else:
            paths = []
        paths += [self._path(n, False) for n in range(first + 1, newest + 1)]
        return [self._files.cat_file(path) for path in paths]
