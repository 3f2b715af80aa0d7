"""Describes an operation: its table of segments and its codec. The table and what has been found out about it
are a Shape, which later operations on tensors of the same sizes use again."""

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
    """A table of segments, and what is known of operations that use it."""

    table: segments.Table
    reasons: collections.Counter[str]
    n_pieces: int
    # {(whether in GPU memory, codec): planned bytes}
    bytes: dict[tuple[bool, str], int] = dataclasses.field(default_factory=dict)
    # Held from the moment the table's pointers are set until the library has copied the table.
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    scaling: columns.Scaling | None = None
    names: tuple[str, ...] = ()  # names of the tensors; "" for a tensor without a known name
    n_posts: int = 0  # number of posts with a codec that loses something
    staged: bool | None = None  # whether staging (staging.py) pays off; None until the first post

    @classmethod
    def of(cls, table: segments.Table, pieces: Sequence[segments.Piece],
           scaling: columns.Scaling | None = None) -> Shape:
        """Make a shape. pieces: the tensors in one rank's run of the table."""
        reasons = collections.Counter(piece.unquantized for piece in pieces if piece.unquantized)
        return cls(table, reasons, len(pieces), scaling=scaling, names=tuple(one.name for one in pieces))


class Shaped(typing.NamedTuple):
    """The part of an operation with one type and one codec (None: plain)."""

    dtype: torch.dtype
    shape: Shape
    codec: capi.Codec | None


def by_codec(
    pieces: Sequence[segments.Piece], offsets: Sequence[int], codec_of: Callable[[str], capi.Codec | None],
) -> list[tuple[capi.Codec | None, Sequence[segments.Piece], Sequence[int]]]:
    """Group pieces by codec. codec_of: returns a name's codec. Returns [(codec, pieces, offsets)]."""
    found: dict[str, tuple[capi.Codec | None, list[segments.Piece], list[int]]] = {}
    for piece, offset in zip(pieces, offsets):
        codec = codec_of(piece.name)
        _, mine, at = found.setdefault(str(codec), (codec, [], []))
        mine.append(piece)
        at.append(offset)
    return list(found.values())


def scaling(codec: capi.Codec | None, pieces: Sequence[segments.Piece], offsets: Sequence[int],
            itemsize: int, copies: int) -> columns.Scaling | None:
    """Returns scales for the columns of the matrices among the pieces, or None if there are no matrices or
    the codec does not scale columns. copies: see columns.Scaling."""
    found = columns.matrices(pieces, offsets, itemsize) if codec is not None and codec.columns else []
    return columns.Scaling(found, copies) if found else None


class Shapes:
    """A cache of shapes. A key has all that makes a shape differ from others: types, sizes, the operation."""

    LIMIT = 256

    def __init__(self) -> None:
        self._found: dict[object, Shape] = {}

    def get(self, key: object, make: Callable[[], Shape]) -> Shape:
        found = self._found.get(key)
        if found is None:  # two threads may make the same shape at once: each then uses its own
            if len(self._found) >= self.LIMIT:
                self._found.clear()
            found = self._found[key] = make()
        return found


@dataclasses.dataclass
class Operation:
    """An operation for operations.post(). Any thread may post it."""

    kind: str  # the report's name for it
    op: int
    dtype: torch.dtype
    shape: Shape
    place: Callable[[typing.Any], None]  # sets the table's pointers
    codec: capi.Codec | None
    keep: tuple[torch.Tensor, ...]
    reduction: tuple[int, float] = (capi.SUM, 1.0)
    step: int = 0
    of: str = ""  # name of what it moves; all ranks must give the same name, which is checked
    root: int = 0  # the rank that sends, in a broadcast
    # Whether the operation was made inside unquantized(). It may be posted later, outside.
    unquantized: bool = dataclasses.field(default_factory=policy.is_unquantized)
    # A reduction's input and output.
    source: torch.Tensor | None = None
    result: torch.Tensor | None = None

    @property
    def group(self) -> str:
        """The report's name for the group of parameters that this operation moves."""
        return self.of.partition(" of ")[2] or self.of
