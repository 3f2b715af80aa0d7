"""Measures what quantization loses: now and then each rank encodes and decodes a sample of each quantized
parameter and compares it with the original, for the report. Rank 0 warns of parameters that lose too much."""

from __future__ import annotations

import ctypes as C
import threading
import typing

from .. import capi
from ..telemetry.tally import Loss, book, warn
from .shapes import Operation

EVERY = 5  # one in EVERY operations of the same shape is measured
SAMPLE_ELEMS = 16384  # about the elements of one parameter that are measured: takes tens of microseconds
# After LOOKS measurements rank 0 warns of a parameter if more than MOST_ZEROS of its values became 0, or if
# its relative error is above MOST_ERROR.
LOOKS, MOST_ZEROS, MOST_ERROR = 3, 0.5, 0.5
MOST_MUON_ERROR = 0.03  # the same, of a parameter that Muon updates: docs/loss.md has what larger ones do
ROUNDED_MUON = ("gradients are rounded, and Muon updates matrices: all directions of an update become equal,"
                " also those that hold only errors. In our runs validation losses were 4 to 9 % worse; set "
                "TW_GRADS=lossless, or int8")


def too_much(loss: Loss) -> bool:
    return loss.looks >= LOOKS and (loss.zeros > MOST_ZEROS or loss.error > MOST_ERROR)


def _advice(kind: str, name: str, codec: capi.Codec) -> str:
    variable = "TW_WEIGHTS" if kind == "all-gather" else "TW_GRADS"
    exempt = 'set %s="%s;%s=lossless"' % (variable, codec, name)
    return exempt + (", or leave out columns=no" if codec.columns is False else "")


class _Sampler:
    """Encodes and decodes samples for this process."""

    def __init__(self) -> None:
        self._samplers: dict[str, C.c_void_p] = {}
        self._lock = threading.Lock()
        self.has_muon = False  # Muon updates matrices in this process

    def _sampler(self, codec: capi.Codec) -> C.c_void_p:
        key = str(codec)
        if key not in self._samplers:
            pointer = C.c_void_p()
            capi.check(capi.lib().tw_quant_sampler_create(C.byref(codec), C.byref(pointer)), "codec")
            self._samplers[key] = pointer
        return self._samplers[key]

    def look(self, operation: Operation, dtype: int, rank: int) -> None:
        """Measure what an operation loses, once every EVERY operations. The table's pointers must be set."""
        shape, number = operation.shape, operation.shape.n_posts
        shape.n_posts += 1
        if number % EVERY != 1 or not any(shape.names):
            return
        n_tensors, segments = len(shape.names), shape.table.segments
        copies = shape.table.n_segments // n_tensors
        # Before a gather only this rank's part is here. Before a reduction all are: samples take turns.
        first = (rank if operation.op == capi.ALLGATHER else number // EVERY) % copies * n_tensors
        with self._lock:
            for tensor, name in enumerate(shape.names):
                one = segments[first + tensor]
                if name and one.n_elems and not one.unquantized:
                    self._add(operation, name, dtype, one)

    def _add(self, operation: Operation, name: str, dtype: int, segment: capi.Segment) -> None:
        codec, found = typing.cast(capi.Codec, operation.codec), capi.Loss()
        values = capi.LosslessSegment(segment.src or segment.dst, None, segment.n_elems, segment.row_elems, 0)
        status = capi.lib().tw_quant_loss_add(self._sampler(codec), dtype, C.byref(values), SAMPLE_ELEMS,
                                              C.byref(found))
        capi.check(status, "losses")
        loss = book.lost(operation.kind, operation.group, name,
                         (found.squares, found.errors, found.n_values, found.n_vanished))
        if too_much(loss):
            warn("%s of %s loses too much by %s: %s (bounds: %.0f %%, %.2f); %s" % (
                operation.kind, name, codec, loss, 100 * MOST_ZEROS, MOST_ERROR,
                _advice(operation.kind, name, codec)), once="lost %s %s" % (operation.kind, name))
        if self.has_muon and operation.kind != "all-gather" and loss.error > MOST_MUON_ERROR:
            warn(ROUNDED_MUON)


sampler = _Sampler()
