"""New arrays in memory of arrays that are gone.

The C library returns large blocks to the kernel when they are freed, and the kernel clears the pages of new ones, which
takes longer than a batch is copied. So memory of batches is kept, and used again when no array refers to it.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

# The C library keeps smaller blocks.
_LEAST = 1 << 17
# Blocks begin at a page. The C library begins them 16 bytes later, and a processor copies several times more slowly to
# an address that is a few bytes further within its page than the one that it copies from, as AMD's do.
_PAGE = 4096
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
    return np.asarray(_Owner(_kept.take(-(-size // step) * step), tuple(shape), dtype))


class _Block(NamedTuple):
    """Memory.

    Attributes:
        memory: holds it.
        address: of its first byte.
        size: in bytes.
    """

    memory: np.ndarray
    address: int
    size: int


class _Kept:
    """Blocks that no array uses, by size.

    Args:
        most: bytes to keep.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_size: OrderedDict[int, list[_Block]] = OrderedDict()
        self._bytes = 0
        # Reentrant, because a garbage collection may give back a block at any point.
        self._lock = threading.RLock()

    def take(self, size: int) -> _Block:
        """A block of this size."""
        with self._lock:
            found = self._by_size.get(size)
            if found:
                self._bytes -= size
                return found.pop()
        memory = np.empty(size + _PAGE, np.uint8)
        address = memory.ctypes.data
        return _Block(memory, address + -address % _PAGE, size)

    def give_back(self, block: _Block) -> None:
        """Keep a block, and drop those of the size that was used least recently if they are too many."""
        with self._lock:
            self._by_size.setdefault(block.size, []).append(block)
            self._by_size.move_to_end(block.size)
            self._bytes += block.size
            while self._bytes > self._most:
                size, oldest = next(iter(self._by_size.items()))
                if oldest:
                    oldest.pop()
                    self._bytes -= size
                else:
                    del self._by_size[size]


_kept = _Kept(_MOST_KEPT)


class _Owner:
    """What an array and its views refer to. The last of them that goes gives the block back."""

    __slots__ = ("__array_interface__", "_block")

    def __init__(self, block: _Block, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._block = block
        self.__array_interface__ = {"shape": shape, "typestr": dtype.str, "data": (block.address, False), "version": 3}

    # The name is bound here, because the module may be empty when the interpreter ends.
    def __del__(self, give_back: Callable[[_Block], None] = _kept.give_back) -> None:
        give_back(self._block)
