"""What is lost: of what is sent with loss a few numbers of each parameter are encoded and decoded once more,
now and then, on each rank, for the report; rank 0 warns of a parameter that loses too much."""

from __future__ import annotations

import ctypes as C
import threading
import typing

from .. import capi
from ..telemetry.tally import Loss, book, warn
from .shapes import Operation

EVERY = 5  # one operation in so many of a shape is looked at
SAMPLE_ELEMS = 16384  # elements of a parameter in one look, about: some tens of microseconds
# Rank 0 warns of a parameter after so many looks, if more of its values became 0 or its error is larger.
LOOKS, MOST_ZEROS, MOST_ERROR = 3, 0.5, 0.5


def too_much(loss: Loss) -> bool:
    return loss.looks >= LOOKS and (loss.zeros > MOST_ZEROS or loss.error > MOST_ERROR)


def _advice(kind: str, name: str, codec: capi.Codec) -> str:
    variable = "TW_WEIGHTS" if kind == "all-gather" else "TW_GRADS"
    exempt = 'set %s="%s;%s=lossless"' % (variable, codec, name)
    return exempt + (", or leave out columns=no" if codec.columns is False else "")


class _Sampler:
    """Encodes and decodes samples for this process."""

    def __init__(self) -> None:
        self._coders: dict[str, C.c_void_p] = {}
        self._lock = threading.Lock()

    def _coder(self, codec: capi.Codec) -> C.c_void_p:
        """Returns a tw_quant_t, or a tw_quant_messages_t of a codec whose messages say their length."""
        key, library, pointer = str(codec), capi.lib(), C.c_void_p()
        if key not in self._coders:
            if codec.says_length:
                status = library.tw_quant_messages_create(C.byref(codec), None, C.byref(pointer))
            else:
                params = capi.QuantParams(codec=codec, mem=capi.HOST)
                status = library.tw_quant_create(C.byref(params), C.byref(pointer))
            capi.check(status, "codec")
            self._coders[key] = pointer
        return self._coders[key]

    def _measure(self, codec: capi.Codec, dtype: int, segment: capi.Segment) -> capi.Loss:
        library, coder, found = capi.lib(), self._coder(codec), capi.Loss()
        values = segment.src or segment.dst
        if codec.says_length:
            part = capi.LosslessSegment(values, None, segment.n_elems, segment.row_elems, 0)
            status = library.tw_quant_loss_add_message(coder, dtype, C.byref(part), SAMPLE_ELEMS,
                                                       C.byref(found))
        else:
            status = library.tw_quant_loss_add(coder, dtype, values, segment.n_elems, SAMPLE_ELEMS,
                                               C.byref(found))
        capi.check(status, "losses")
        return found

    def look(self, operation: Operation, dtype: int, rank: int) -> None:
        """Measure what an operation loses, if it is time. The table's pointers are set."""
        shape, number = operation.shape, operation.shape.n_posts
        shape.n_posts += 1
        if number % EVERY != 1 or not any(shape.names):
            return
        n_tensors, segments = len(shape.names), shape.table.segments
        copies = shape.table.n_segments // n_tensors
        # In a gather only the own part is here; in a reduction all ranks' parts are, and each has its turn.
        first = (rank if operation.op == capi.ALLGATHER else number // EVERY) % copies * n_tensors
        with self._lock:
            for tensor, name in enumerate(shape.names):
                one = segments[first + tensor]
                if name and one.n_elems and not one.unquantized:
                    self._add(operation, name, dtype, one)

    def _add(self, operation: Operation, name: str, dtype: int, segment: capi.Segment) -> None:
        codec = typing.cast(capi.Codec, operation.codec)
        found = self._measure(codec, dtype, segment)
        loss = book.lost(operation.kind, operation.group, name,
                         (found.squares, found.errors, found.n_values, found.n_vanished))
        if too_much(loss):
            warn("%s of %s loses too much by %s: %s (bounds: %.0f %%, %.2f); %s" % (
                operation.kind, name, codec, loss, 100 * MOST_ZEROS, MOST_ERROR,
                _advice(operation.kind, name, codec)), once="lost %s %s" % (operation.kind, name))


sampler = _Sampler()
