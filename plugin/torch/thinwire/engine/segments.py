"""Tables of segments. Segments tell the library which tensors are in an operation's buffers.

A table is made once for a shape. Before each post all its pointers are set, which is fast because it goes
through a view of the table as 64-bit words. The library copies the table when an operation is posted."""

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
    """A tensor's share of a run (a rank's consecutive elements). unquantized: why not quantized, or ""."""

    n_elems: int
    unquantized: str
    row_elems: int = 0  # a matrix's last dimension, for the lossless codec; 0 if it is no matrix
    name: str = ""  # the parameter's name, or "" if it is not known
    columns: int = 0  # elements of a row: the product of all dimensions but the first; 0 if it is no matrix


class Table:
    """The segments of an operation. Subclasses set their pointers before each post."""

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
    """Returns the offset of each piece, in bytes, if they follow one another."""
    return [0, *itertools.accumulate(piece.n_elems * itemsize for piece in pieces)][:-1]


class RankMajor(Table):
    """Segments of a flat buffer of FSDP2: `world` runs, rank 0's first, each with all pieces. One segment for
    each (rank, piece). offsets: of the pieces in a run, in bytes. run_bytes: size of a run. Both are None if
    the pieces follow one another and fill the run."""

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
        """Set pointers for an all-gather in place: this rank's run is in its place in the buffer `whole`."""
        self._column(_SRC, 0, [0] * self.n_segments)
        self._column(_DST, whole, self._whole)

    def scatter(self, whole: int, own: int) -> None:
        """Set pointers for a reduce-scatter from the buffer `whole` into this rank's run, `own`."""
        self._column(_SRC, whole, self._whole)
        self._column(_DST, own, self._own)


class Plain(Table):
    """Segments of an all-reduce in place, one for each piece. The library splits them evenly over the ranks.
    offsets: of the pieces in the buffer, in bytes; None if they follow one another."""

    def __init__(self, pieces: Sequence[Piece], itemsize: int, offsets: Sequence[int] | None = None):
        super().__init__(len(pieces))
        self._offset = offsets_of(pieces, itemsize) if offsets is None else offsets
        for tensor, piece in enumerate(pieces):
            self._fill(tensor, piece, tensor, None)

    def reduce(self, whole: int) -> None:
        self._column(_SRC, 0, [0] * self.n_segments)
        self._column(_DST, whole, self._offset)


class Whole(Table):
    """One tensor as one segment. counts: elements of each rank's shard; in an all-to-all, elements sent to
    each rank; None to split evenly. recv_counts: in an all-to-all, elements received from each rank."""

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
        """Set the addresses. source: 0 for an operation in place, if the input is already in the target."""
        self._column(_SRC, source, [0])
        self._column(_DST, target, [0])
