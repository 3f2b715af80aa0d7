"""Buffers of reductions in host memory, used again: the kernel hands out fresh memory page by page and zeroes
it, which takes longer than to fill it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch

from .. import inside

# So many are in use at once: one of the reduction that runs, and one of the next.
KEPT = 2
KEPT_BYTES = 256 << 20  # limit of all of them together


class Buffers:
    """Memory for tensors of which many come and go, all about as large."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[torch.UntypedStorage] = []

    def take(self, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Make a tensor, as torch.empty does, in memory of which no other tensor is left."""
        n_bytes = math.prod(size) * dtype.itemsize
        with self._lock:
            for storage in self._kept:
                if n_bytes <= storage.nbytes() <= 2 * n_bytes and not inside.is_in_use(storage):
                    return torch.empty(0, dtype=dtype).set_(storage, 0, tuple(size))
            made = torch.empty(size, dtype=dtype)
            self._keep(made.untyped_storage())
            return made

    def _keep(self, made: torch.UntypedStorage) -> None:
        """Keep this buffer, too. Buffers that nobody uses are dropped for it, the oldest first."""
        kept = [*self._kept, made]
        while len(kept) > KEPT or sum(one.nbytes() for one in kept) > KEPT_BYTES:
            unused = next((one for one in kept if not inside.is_in_use(one)), made)
            kept = [one for one in kept if one is not unused]
            if unused is made:
                break
        self._kept = kept


shared = Buffers()
