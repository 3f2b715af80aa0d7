"""What lossless gradients would have cost: now and then a few of those that are sent with loss are encoded
so, for the report."""

from __future__ import annotations

import ctypes as C
import threading

from . import capi, segments
from .tally import book

SAMPLE_ELEMS = 1 << 18  # at most, in one look: about a millisecond
EVERY = 61  # operations of a kind; a prime, so that all groups of parameters have their turn


class _Sampler:
    """Of this process."""

    def __init__(self) -> None:
        self._codec = C.c_void_p()
        self._room = bytearray()
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()

    def due(self, kind: str) -> bool:
        """Whether this operation is one to look at."""
        with self._lock:
            self._seen[kind] = self._seen.get(kind, 0) + 1
            return self._seen[kind] % EVERY == 1 and book.is_first()

    def _segments(self, kind: str, table: segments.Table) -> tuple[list[capi.LosslessSegment], int]:
        """Some that follow each other, others each time; their elements."""
        chosen, total, first = [], 0, self._seen[kind] // EVERY * 7919
        for i in range(table.n_segments):
            one = table.segments[(first + i) % table.n_segments]
            n = min(one.n_elems, SAMPLE_ELEMS - total)
            chosen.append(capi.LosslessSegment(one.src or one.dst, None, n, one.row_elems, 0))
            total += n
            if total == SAMPLE_ELEMS:
                break
        return chosen, total

    def look(self, kind: str, dtype: int, itemsize: int, table: segments.Table) -> None:
        """Encode some of what the table's pointers show."""
        with self._lock:
            chosen, total = self._segments(kind, table)
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
        book.sampled(kind, total * itemsize, used.value)


sampler = _Sampler()
