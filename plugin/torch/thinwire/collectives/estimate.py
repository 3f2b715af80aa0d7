"""Estimates how many bytes lossless gradients would take in a job that sends gradients with loss: now and
then a sample of them is encoded without loss. The report shows the estimate."""

from __future__ import annotations

import collections
import ctypes as C
import threading

from .. import capi
from ..engine import segments
from ..telemetry.tally import book
from .shapes import Operation

SAMPLE_ELEMS = 1 << 18  # most elements of a sample: encoding them takes about a millisecond
EVERY = 61  # one operation in EVERY is sampled; a prime, so that every group of parameters gets its turn


class _Sampler:
    """Encodes samples for this process."""

    def __init__(self) -> None:
        self._codec = C.c_void_p()
        self._room = bytearray()
        self._seen: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    @staticmethod
    def _segments(table: segments.Table, number: int) -> tuple[list[capi.LosslessSegment], int]:
        """Choose consecutive segments of the table. Each sample begins at another segment. number: the
        sample's number. Returns (segments, their number of elements)."""
        chosen, total, first = [], 0, number * 7919
        for i in range(table.n_segments):
            one = table.segments[(first + i) % table.n_segments]
            n = min(one.n_elems, SAMPLE_ELEMS - total)
            chosen.append(capi.LosslessSegment(one.src or one.dst, None, n, one.row_elems, 0))
            total += n
            if total == SAMPLE_ELEMS:
                break
        return chosen, total

    def look(self, operation: Operation, dtype: int) -> None:
        """On rank 0, encode a sample of one in EVERY operations. The table's pointers must be set."""
        with self._lock:
            number = self._seen[operation.kind]
            self._seen[operation.kind] += 1
            if number % EVERY or not book.is_first():
                return
            chosen, total = self._segments(operation.shape.table, number // EVERY)
            library, used = capi.lib(), C.c_size_t()
            if not self._codec:
                capi.check(library.tw_quant_lossless_create(None, C.byref(self._codec)), "lossless codec")
            bound = library.tw_quant_lossless_bound_bytes(dtype, total)
            if len(self._room) < bound:
                self._room = bytearray(bound)
            array = (capi.LosslessSegment * len(chosen))(*chosen)
            room = C.addressof((C.c_char * bound).from_buffer(self._room))
            status = library.tw_quant_lossless_encode(self._codec, dtype, array, len(chosen), room, bound,
                                                      C.byref(used))
            capi.check(status, "estimate")
        book.add(operation.kind, samples=1, sampled_bytes=total * operation.dtype.itemsize,
                 sampled_lossless_bytes=used.value)


sampler = _Sampler()
