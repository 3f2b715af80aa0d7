"""Scales of columns, for gradients that are sent with loss.

A block of 128 numbers has one scale: where one input of a layer is 100 times as large as the others, so is
its column of the gradient, and what shares a block with it becomes 0, in every step. So each matrix is
divided, column by column, by powers of two that all ranks have in common, and the sum is multiplied by them:
that rounds nothing. They come from the sums of squares of the operation before, which a small all-reduce
brings to all ranks meanwhile, with the same bits; the very first operation goes without loss."""

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
KEEPS = 0.5  # share of the earlier sums that each operation keeps
SAMPLE_ROWS = 512  # rows of a matrix that are summed, at most
# A matrix with fewer rows that are not 0 is not scaled. A part of a typical row is added to each column's
# sum: the column may be 0 in all rows but one today and in none tomorrow.
LEAST_ROWS, PRIOR_ROWS = 32, 0.25
# Largest exponent of a scale; fp16 itself has 5 bits for its exponent.
LIMIT, FP16_LIMIT = 60, 12


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A parameter's part of what one rank sends (its run), in elements."""

    offset: int
    n_elems: int
    columns: int

    def of(self, run: torch.Tensor, copies: int) -> torch.Tensor:
        """Returns this matrix in each of the runs, which follow one another: (copies, rows, columns)."""
        flat = run.view(-1)
        return flat.as_strided((copies, self.n_elems // self.columns, self.columns),
                               (flat.numel() // copies, self.columns, 1), flat.storage_offset() + self.offset)


def matrices(pieces: Sequence[segments.Piece], offsets: Sequence[int], itemsize: int) -> list[Matrix]:
    """The matrices among the pieces that are sent with loss."""
    return [Matrix(offset // itemsize, one.n_elems, one.columns) for one, offset in zip(pieces, offsets)
            if one.columns > 1 and one.n_elems and one.n_elems % one.columns == 0 and not one.unquantized]


def _powers(exponents: torch.Tensor) -> torch.Tensor:
    """Exact powers of two with these exponents."""
    return ((exponents.to(torch.int32) + 127) << 23).view(torch.float32)


class _Sums:
    """Computes (columns of all matrices) sums of squares, then (matrices) numbers of rows that are not 0."""

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
        """Returns (columns) exponents of the columns' root mean squares, relative to the matrix's geometric
        mean. A column without a gradient gets exponent 0, the typical one."""
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
    """Scales of the columns of one operation's matrices; each operation leaves them for the next."""

    def __init__(self, found: Sequence[Matrix], copies: int):
        """copies: how many runs follow one another in what is divided. The result is one run."""
        self._matrices, self._copies, self._sums = found, copies, _Sums(found)
        self._total: torch.Tensor | None = None
        self._new: typing.Any = None  # (sums) of the last operation, which an all-reduce adds up
        self._request: Request | None = None
        self._table = segments.Plain([segments.Piece(sum(self._sums.widths) + len(found), "")], 4)
        self._bytes: int | None = None  # what such an all-reduce sends to other nodes
        # (matrix, factors that divide its columns, factors that undo that) where they are not all 1
        self._powers: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def _take(self, limit: int) -> None:
        """Take the sums that the last operation's all-reduce has brought."""
        if self._request is None:
            return
        begin = time.perf_counter()
        self._request.wait()
        book.add(KIND, wait_sec=time.perf_counter() - begin, took_sec=self._request.take_elapsed())
        self._request = None
        before = self._total if self._total is not None else torch.zeros_like(self._new)
        added = before * KEEPS + self._new
        # NaN and Inf reach the job; they say nothing of the next operation.
        self._total = torch.where(torch.isfinite(added).all(), added, before)
        exponents = self._sums.exponents(self._total, limit).split(self._sums.widths)
        self._powers = [(i, _powers(-one), _powers(one)) for i, one in enumerate(exponents)
                        if one.is_cuda or one.any()]

    def divide(self, source: torch.Tensor) -> bool:
        """Divide the columns in place. Returns False if no sums are known yet."""
        self._take(FP16_LIMIT if source.dtype == torch.float16 else LIMIT)
        views = [one.of(source, self._copies) for one in self._matrices]
        self._new = self._sums.of(views)
        for i, down, _ in self._powers:
            views[i].mul_(down)
        return self._total is not None

    def post(self, communicator: Communicator) -> None:
        """Post the all-reduce of this operation's sums, after the operation itself, on all ranks."""
        self._table.reduce(self._new.data_ptr())
        args = self._table.args(op=capi.ALLREDUCE, type=capi.FP32)
        if communicator.cuda:
            args.stream = torch.cuda.current_stream().cuda_stream
        self._request = communicator.post(args, self._new, KIND)
        if self._bytes is None:
            self._bytes = communicator.planned_bytes(args)
        book.add(KIND, calls=1, plain_bytes=self._bytes, sent_bytes=self._bytes)

    def undone(self, request: Waitable, result: torch.Tensor) -> Scaled:
        """Wrap the operation, so that it ends when its result has been multiplied back."""
        return Scaled(request, [(self._matrices[i].of(result, 1), up) for i, _, up in self._powers])


class Scaled(Waitable):
    """An operation whose result is multiplied back when it has ended."""

    def __init__(self, request: Waitable, rest: list[tuple[torch.Tensor, torch.Tensor]]):
        self._request, self._rest, self._lock = request, rest, threading.Lock()
        self.declined = request.declined

    def test(self) -> bool:
        return self._request.test()

    def wait(self) -> None:
        self._request.wait()
        with self._lock, torch.no_grad():
            while self._rest:
                view, up = self._rest.pop()
                view.mul_(up)

    def exception(self) -> BaseException | None:
        return self._request.exception()

    def take_elapsed(self) -> float:
        return self._request.take_elapsed()
