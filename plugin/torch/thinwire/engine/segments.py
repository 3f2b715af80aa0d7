"""Tables of segments: how an operation's buffers fall into tensors.

A table is made once for a shape; before each post its pointers are set, all at once, through a view of the
same memory. The library copies a table when an operation is posted."""

from __future__ import annotations

import array
import ctypes as C
import dataclasses
import itertools
from collections.abc import Sequence

from .. import capi

WORD = 8
_WORDS = C.sizeof(capi.Segment) // WORD
_SRC, _DST = capi.Segment.src.offset // WORD, capi.Segment.dst.offset // WORD


@dataclasses.dataclass(frozen=True)
class Piece:
    """A tensor's share of one rank's run: elements, and why it is not quantized, or ""."""

    n_elems: int
    unquantized: str
    row_elems: int = 0  # a matrix's last dimension, for the lossless codec; 0 if it is none
    name: str = ""  # the parameter's, or ""
    columns: int = 0  # a matrix's row length, over all dimensions but the first; 0 if it is none


class Table:
    """Segments of an operation, whose pointers are set before each post."""

    def __init__(self, n_segments: int):
        memory = bytearray(n_segments * C.sizeof(capi.Segment))
        self.segments = (capi.Segment * n_segments).from_buffer(memory)
        self.n_segments = n_segments
        self._words = memoryview(memory).cast("Q")
        self._keep: list[object] = []

    def _fill(self, index: int, piece: Piece, tensor: int, counts: C.Array | None) -> None:
        segment = self.segments[index]
        segment.n_elems, segment.tensor = piece.n_elems, tensor
        segment.unquantized = int(bool(piece.unquantized))
        segment.row_elems = piece.row_elems
        segment.counts = C.addressof(counts) if counts is not None else None
        self._keep.append(counts)

    def _column(self, column: int, base: int, offsets: Sequence[int]) -> None:
        self._words[column::_WORDS] = memoryview(array.array("Q", [base + offset for offset in offsets]))

    def args(self, **fields: object) -> capi.Args:
        return capi.Args(segments=self.segments, n_segments=self.n_segments, **fields)


def offsets_of(pieces: Sequence[Piece], itemsize: int) -> list[int]:
    """Where each piece begins, in bytes."""
    return [0, *itertools.accumulate(piece.n_elems * itemsize for piece in pieces)][:-1]


class RankMajor(Table):
    """Segments of FSDP2's flat buffers, (W, sum of pieces), where all that belongs to rank 0 comes first: one
    for each (rank, piece). offsets, run_bytes: where the pieces begin in a rank's run, and its length; None:
    they are all of it."""

    def __init__(self, world: int, rank: int, pieces: Sequence[Piece], itemsize: int,
                 offsets: Sequence[int] | None = None, run_bytes: int | None = None):
        super().__init__(world * len(pieces))
        own = offsets_of(pieces, itemsize) if offsets is None else offsets
        if run_bytes is None:
            run_bytes = sum(piece.n_elems for piece in pieces) * itemsize
        self._whole = [owner * run_bytes + offset for owner in range(world) for offset in own]
        self._own = [offset if owner == rank else 0 for owner in range(world) for offset in own]
        for owner in range(world):
            for tensor, piece in enumerate(pieces):
                counts = (C.c_size_t * world)()
                counts[owner] = piece.n_elems
                self._fill(owner * len(pieces) + tensor, piece, tensor, counts)

    def gather(self, whole: int) -> None:
        """All-gather in place: the own run is where it belongs in the buffer at address `whole`."""
        self._column(_SRC, 0, [0] * self.n_segments)
        self._column(_DST, whole, self._whole)

    def scatter(self, whole: int, own: int) -> None:
        """Reduce-scatter from address `whole` into the own run's buffer at address `own`."""
        self._column(_SRC, whole, self._whole)
        self._column(_DST, own, self._own)


class Plain(Table):
    """Tensors one after another, split evenly over the ranks: all-reduce in place. offsets: where they begin,
    in bytes; None: they are all there is."""

    def __init__(self, pieces: Sequence[Piece], itemsize: int, offsets: Sequence[int] | None = None):
        super().__init__(len(pieces))
        self._offset = offsets_of(pieces, itemsize) if offsets is None else offsets
        for tensor, piece in enumerate(pieces):
            self._fill(tensor, piece, tensor, None)

    def reduce(self, whole: int) -> None:
        self._column(_SRC, 0, [0] * self.n_segments)
        self._column(_DST, whole, self._offset)


class Whole(Table):
    """One tensor as one segment. counts: elements of each rank's shard, or those that go to each rank; None:
    split evenly. recv_counts: those that come from each rank, of an all-to-all."""

    def __init__(self, n_elems: int, row_elems: int = 0, counts: Sequence[int] | None = None,
                 recv_counts: Sequence[int] | None = None):
        super().__init__(1)
        sent, received = [None if one is None else (C.c_size_t * len(one))(*one)
                          for one in (counts, recv_counts)]
        self._fill(0, Piece(n_elems, "", row_elems), 0, sent)
        if received is not None:
            self.segments[0].recv_counts = C.addressof(received)
            self._keep.append(received)

    def move(self, source: int, target: int) -> None:
        """Set the addresses; source 0: what is sent lies in the target already, where it belongs."""
        self._column(_SRC, source, [0])
        self._column(_DST, target, [0])
