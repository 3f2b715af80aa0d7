"""Scales of columns, for gradients that are sent with loss.

A codec gives a block of, say, 128 numbers one scale. If one input of a layer is 100 times as large as the
others, its column of the gradient is, too, and the other numbers of its blocks become 0 in every step. So
each column of a matrix is divided by a power of two before the operation, and the sum is multiplied by it
afterwards, which rounds nothing. The powers come from the columns' sums of squares in the operation before. A
small all-reduce sums those over all ranks, so all ranks have the same powers. The very first operation has no
sums yet: it goes without loss."""

from __future__ import annotations

import dataclasses
import threading
import time
import typing
from collections.abc import Sequence

import torch

from .. import capi
from ..engine import segments
from ..engine.communicators import Communicator, Request, Waitable
from ..telemetry.tally import book

KIND = "column scales"
KEEPS = 0.5  # factor of the sums so far when an operation adds its own, as a moving average
SAMPLE_ROWS = 512  # about the most rows of a matrix that are sampled for its sums
# A matrix with fewer than LEAST_ROWS rows that are not 0 is not scaled. Each column's sum counts PRIOR_ROWS
# more rows of typical size, so that a column with few values that are not 0 gets no extreme scale.
LEAST_ROWS, PRIOR_ROWS = 32, 0.25
# Largest exponent of a scale. fp16 has a smaller limit because its own exponent has only 5 bits.
LIMIT, FP16_LIMIT = 60, 12


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A parameter's place in a run (the consecutive elements of a rank). All fields are in elements."""

    offset: int
    n_elems: int
    columns: int

    def of(self, run: torch.Tensor, copies: int) -> torch.Tensor:
        """Returns a view (copies, rows, columns) of this matrix in all of `copies` consecutive runs."""
        flat = run.view(-1)
        return flat.as_strided((copies, self.n_elems // self.columns, self.columns),
                               (flat.numel() // copies, self.columns, 1), flat.storage_offset() + self.offset)


def matrices(pieces: Sequence[segments.Piece], offsets: Sequence[int], itemsize: int) -> list[Matrix]:
    """Returns the matrices among the pieces that are quantized. offsets: where the pieces begin, in bytes."""
    return [Matrix(offset // itemsize, one.n_elems, one.columns) for one, offset in zip(pieces, offsets)
            if one.columns > 1 and one.n_elems and one.n_elems % one.columns == 0 and not one.unquantized]


def _powers(exponents: torch.Tensor) -> torch.Tensor:
    """Returns 2 to the power of each exponent, exactly, as fp32."""
    return ((exponents.to(torch.int32) + 127) << 23).view(torch.float32)


class _Sums:
    """Computes one vector: all columns' sums of squares, then each matrix's number of rows that are not 0."""

    def __init__(self, found: Sequence[Matrix]):
        self.widths = [one.columns for one in found]
        self._of = torch.repeat_interleave(torch.arange(len(found)), torch.tensor(self.widths))

    def of(self, views: Sequence[torch.Tensor]) -> torch.Tensor:
        sums, rows = [], []
        for one in views:
            every = -(-one.shape[0] * one.shape[1] // SAMPLE_ROWS)
            squares = one[:, ::every].to(torch.float32).square()
            sums.append(squares.sum((0, 1)))
            rows.append((squares.sum(2) > 0).sum().to(torch.float32).view(1))
        return torch.cat(sums + rows)

    def _by_matrix(self, values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(len(self.widths)).index_add_(0, self._of.to(values.device), values)

    def exponents(self, total: torch.Tensor, limit: int) -> torch.Tensor:
        """Returns each column's exponent: log2 of (the column's root mean square / the geometric mean of
        all columns' in its matrix). 0 for a column of zeros, and in a matrix with few rows (LEAST_ROWS)."""
        of = self._of.to(total.device)
        squares, rows = total.split([len(of), len(self.widths)])
        rows = rows[of].clamp(min=1)
        mean, is_there = squares / rows, squares > 0
        logs = torch.where(is_there, mean, mean.new_ones(())).log2()
        n_there = self._by_matrix(is_there.to(torch.float32))[of].clamp(min=1)
        typical = self._by_matrix(logs)[of] / n_there
        mean = (squares + PRIOR_ROWS * typical.exp2()) / (rows + PRIOR_ROWS)
        found = (0.5 * (mean.log2() - typical)).round().clamp(-limit, limit)
        return torch.where((rows >= LEAST_ROWS) & is_there, found, torch.zeros_like(found))


class Scaling:
    """Scales of the columns of an operation's matrices. Each step computes the next step's scales."""

    def __init__(self, found: Sequence[Matrix], copies: int):
        """copies: number of consecutive runs in the operation's source. The result is always one run."""
        self._matrices, self._copies, self._sums = found, copies, _Sums(found)
        self._total: torch.Tensor | None = None
        self._new: typing.Any = None  # _Sums.of() the last operation, which an all-reduce sums over the ranks
        self._request: Request | None = None
        self._table = segments.Plain([segments.Piece(sum(self._sums.widths) + len(found), "")], 4)
        self._bytes: int | None = None  # bytes that the all-reduce of the sums sends to other nodes
        # (index of a matrix, factors that divide its columns, factors that undo it), unless all factors are 1
        self._powers: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def _take(self, limit: int) -> None:
        """Wait for the last operation's sums, and make the scales of the next operation from them."""
        if self._request is None:
            return
        begin = time.perf_counter()
        self._request.wait()
        book.add(KIND, wait_sec=time.perf_counter() - begin, took_sec=self._request.take_elapsed())
        self._request = None
        before = self._total if self._total is not None else torch.zeros_like(self._new)
        added = before * KEEPS + self._new
        # The job itself sees NaN and Inf in its gradients. They must not spoil the next operation's scales.
        self._total = torch.where(torch.isfinite(added).all(), added, before)
        exponents = self._sums.exponents(self._total, limit).split(self._sums.widths)
        self._powers = [(i, _powers(-one), _powers(one)) for i, one in enumerate(exponents)
                        if one.is_cuda or one.any()]

    def divide(self, source: torch.Tensor) -> bool:
        """Divide the columns in place. Before the first sums: leave the columns as they are, return False."""
        self._take(FP16_LIMIT if source.dtype == torch.float16 else LIMIT)
        views = [one.of(source, self._copies) for one in self._matrices]
        self._new = self._sums.of(views)
        for i, down, _ in self._powers:
            views[i].mul_(down)
        return self._total is not None

    def post(self, communicator: Communicator) -> None:
        """Post the all-reduce of the sums. All ranks do this right after posting the operation itself."""
        self._table.reduce(self._new.data_ptr())
        args = self._table.args(op=capi.ALLREDUCE, type=capi.FP32)
        if communicator.cuda:
            args.stream = torch.cuda.current_stream().cuda_stream
        self._request = communicator.post(args, self._new, KIND)
        if self._bytes is None:
            self._bytes = communicator.planned_bytes(args)
        book.add(KIND, calls=1, plain_bytes=self._bytes, sent_bytes=self._bytes)

    def undone(self, request: Waitable, result: torch.Tensor) -> Scaled:
        """Returns a wrapper of `request`, which at its end multiplies the columns of the result back."""
        return Scaled(request, [(self._matrices[i].of(result, 1), up) for i, _, up in self._powers])


class Scaled(Waitable):
    """An operation on divided columns. The test() or wait() that finds the end multiplies them back."""

    def __init__(self, request: Waitable, rest: list[tuple[torch.Tensor, torch.Tensor]]):
        self._request, self._rest, self._lock = request, rest, threading.Lock()
        self.declined = request.declined

    def test(self) -> bool:
        has_ended = self._request.test()
        if has_ended and self._request.exception() is None:
            self._multiply()
        return has_ended

    def wait(self) -> None:
        self._request.wait()
        self._multiply()

    def _multiply(self) -> None:
        with self._lock, torch.no_grad():
            while self._rest:
                view, up = self._rest.pop()
                view.mul_(up)

    def exception(self) -> BaseException | None:
        return self._request.exception()

    def take_elapsed(self) -> float:
        return self._request.take_elapsed()
