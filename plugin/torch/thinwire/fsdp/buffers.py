"""Buffers for reductions in host memory, which are used again. Fresh memory would be slow: at the first
access to each page Linux allocates and zeroes it, which takes longer than writing to it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch

from .. import inside

# Most buffers that are kept: one for the reduction that runs, and one for the next.
KEPT = 2
KEPT_BYTES = 256 << 20  # most bytes that are kept


class Buffers:
    """Memory for short-lived tensors of about the same size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[torch.UntypedStorage] = []

    def take(self, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns a new tensor like torch.empty(), in kept memory if some of fitting size is free. The memory
        is free again when no tensor uses it."""
        n_bytes = math.prod(size) * dtype.itemsize
        with self._lock:
            for storage in self._kept:
                if n_bytes <= storage.nbytes() <= 2 * n_bytes and not inside.is_in_use(storage):
                    return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(size))
            made = torch.empty(size, dtype=dtype)
            self._keep(made.untyped_storage())
            return made

    def _keep(self, made: torch.UntypedStorage) -> None:
        """Keep this buffer, too, and drop unused ones, the oldest first, if that is too much. If all are in
        use, drop the new one."""
        kept = [*self._kept, made]
        while len(kept) > KEPT or sum(one.nbytes() for one in kept) > KEPT_BYTES:
            unused = next((one for one in kept if not inside.is_in_use(one)), made)
            kept = [one for one in kept if one is not unused]
            if unused is made:
                break
        self._kept = kept


shared = Buffers()
