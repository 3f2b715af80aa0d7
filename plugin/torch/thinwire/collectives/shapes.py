"""What an operation is: its table of segments, its codec, and what is known of tensors of its shape."""

from __future__ import annotations

import collections
import dataclasses
import threading
import typing
from collections.abc import Callable, Sequence

import torch

from .. import capi, policy
from ..engine import segments
from . import columns


@dataclasses.dataclass
class Shape:
    """A table of segments, and what is known of operations with it."""

    table: segments.Table
    reasons: collections.Counter[str]
    n_pieces: int
    # {(whether in GPU memory, codec): planned bytes}
    bytes: dict[tuple[bool, str], int] = dataclasses.field(default_factory=dict)
    # Held from when the table's pointers are set until the library has copied it.
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    scaling: columns.Scaling | None = None
    names: tuple[str, ...] = ()  # names of the tensors; "" where one is not known
    n_posts: int = 0  # how many posts were to lose something
    staged: bool | None = None  # whether it is worth staging; None: not yet known

    @classmethod
    def of(cls, table: segments.Table, pieces: Sequence[segments.Piece],
           scaling: columns.Scaling | None = None) -> Shape:
        """Make one. pieces: the table's pieces in each rank's run."""
        reasons = collections.Counter(piece.unquantized for piece in pieces if piece.unquantized)
        return cls(table, reasons, len(pieces), scaling=scaling, names=tuple(one.name for one in pieces))


class Shaped(typing.NamedTuple):
    """Part of an operation: tensors of one type with one codec, None for plain."""

    dtype: torch.dtype
    shape: Shape
    codec: capi.Codec | None


def by_codec(
    pieces: Sequence[segments.Piece], offsets: Sequence[int], codec_of: Callable[[str], capi.Codec | None],
) -> list[tuple[capi.Codec | None, Sequence[segments.Piece], Sequence[int]]]:
    """Split pieces by the codecs that their names ask for. Returns (codec, pieces, where they begin) of
    each."""
    found: dict[str, tuple[capi.Codec | None, list[segments.Piece], list[int]]] = {}
    for piece, offset in zip(pieces, offsets):
        codec = codec_of(piece.name)
        _, mine, at = found.setdefault(str(codec), (codec, [], []))
        mine.append(piece)
        at.append(offset)
    return list(found.values())


def scaling(codec: capi.Codec | None, pieces: Sequence[segments.Piece], offsets: Sequence[int],
            itemsize: int, copies: int) -> columns.Scaling | None:
    """Scales for the columns of these matrices in so many runs. None if there are none or the codec does
    without."""
    found = columns.matrices(pieces, offsets, itemsize) if codec is not None and codec.columns else []
    return columns.Scaling(found, copies) if found else None


class Shapes:
    """The shapes of a group's tensors, by what makes them different."""

    LIMIT = 256

    def __init__(self) -> None:
        self._found: dict[object, Shape] = {}

    def get(self, key: object, make: Callable[[], Shape]) -> Shape:
        found = self._found.get(key)
        if found is None:  # if two threads make it at once, each uses its own
            if len(self._found) >= self.LIMIT:
                self._found.clear()
            found = self._found[key] = make()
        return found


@dataclasses.dataclass
class Operation:
    """What operations.post() is to do. Any thread may post it."""

    kind: str  # the report's name for it
    op: int
    dtype: torch.dtype
    shape: Shape
    place: Callable[[typing.Any], None]  # sets the table's pointers
    codec: capi.Codec | None
    keep: tuple[torch.Tensor, ...]
    reduction: tuple[int, float] = (capi.SUM, 1.0)
    step: int = 0
    of: str = ""  # what it moves; it is the same on all ranks, which is checked
    root: int = 0  # the rank that sends, in a broadcast
    # Whether it was made inside unquantized(), whenever it is posted.
    unquantized: bool = dataclasses.field(default_factory=policy.is_unquantized)
    # A reduction's input and output.
    source: torch.Tensor | None = None
    result: torch.Tensor | None = None

    @property
    def group(self) -> str:
        """What the report calls the group of parameters."""
        return self.of.partition(" of ")[2] or self.of
