"""New arrays in memory of arrays that are gone.

The C library returns large blocks to the kernel when they are freed, and the kernel clears the pages of new ones, which
takes longer than a batch is copied. So memory of batches is kept, and used again when no array refers to it.
"""

from __future__ import annotations

import math
import mmap
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zarr_core._util.locks import ProcessLock

# The C library keeps smaller blocks.
_LEAST = 1 << 17
# Of memory that no array uses, per process.
_MOST_KEPT = 128 << 20


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """A new array with undefined content, C-contiguous, as ``np.empty``; raises MemoryError, ValueError like it."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if not _LEAST <= size <= _MOST_KEPT:
        return np.empty(shape, dtype)
    # Sizes that differ by less than a sixteenth share blocks.
    step = 1 << (size.bit_length() - 5)
    size = -(-size // step) * step
    return np.ndarray(shape, dtype, _Lease(size, np.uint8, _kept.take(size)))


class _Kept:
    """Blocks of memory that no array uses, by size; ``most`` bytes of them are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_size: OrderedDict[int, list[mmap.mmap]] = OrderedDict()
        self._bytes = 0
        self._lock = ProcessLock()

    def take(self, size: int) -> mmap.mmap:
        """A block of this size.

        It begins at a page. Memory of the C library begins 16 bytes later, and a processor copies several times more
        slowly to an address that is a few bytes further within its page than the one that it copies from, as AMD's do.
        """
        with self._lock:
            found = self._by_size.get(size)
            if found:
                self._bytes -= size
                return found.pop()
        try:
            # Private: a child process must not write into the batches of its parent.
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{size} bytes: {error}") from error

    def give_back(self, block: mmap.mmap) -> None:
        """Keep a block, and drop those of the size that was used least recently if they are too many."""
        with self._lock:
            self._by_size.setdefault(len(block), []).append(block)
            self._by_size.move_to_end(len(block))
            self._bytes += len(block)
            while self._bytes > self._most:
                size, oldest = next(iter(self._by_size.items()))
                if oldest:
                    oldest.pop()
                    self._bytes -= size
                else:
                    del self._by_size[size]


_kept = _Kept(_MOST_KEPT)


class _Lease(np.ndarray):
    """The bytes of a block, to which an array and its views refer. When the last of them goes, it gives the block back.

    NumPy lets an array refer to the array below its base, but not to what is no array, as the block is.
    """

    # The names are bound here, because the modules may be empty when the interpreter ends.
    def __del__(self, give_back: Callable[[Any], None] = _kept.give_back, block: type = mmap.mmap) -> None:
        if isinstance(self.base, block):  # views of these bytes have others
            give_back(self.base)
