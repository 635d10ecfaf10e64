"""The order of an epoch: a keyed permutation that is computed index by index and never stored.

A Feistel network permutes the smallest power of two that is at least n. Results outside ``range(n)`` are permuted
again until they are inside ("cycle walking", Black and Rogaway 2002), which keeps the map a bijection and takes fewer
than two passes on average. An index costs the same anywhere in an epoch of any size.

The round keys are BLAKE2b hashes of (seed, epoch) and the arithmetic is on unsigned 64-bit integers, so an order is
the same on every machine and with every library version. Twenty-four rounds give all orders of a few samples with
equal frequency; fewer rounds prefer some.
"""

from __future__ import annotations

import hashlib
import json
from typing import TypeAlias

import numpy as np

from zarr_core._util.arguments import whole_number

_Words: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]

_ROUNDS = 24
# Of SplitMix64.
_SHIFTS = [np.uint64(bits) for bits in (30, 27, 31)]
_FACTORS = [np.uint64(factor) for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)]
_MAX_SIZE = 1 << 62
# For sizes of at most this many bits, the hashes of all halves are computed beforehand, which takes half the time.
_TABLE_BITS = 16


class Permutation:
    """A bijection of ``range(size)`` determined by (seed, epoch): ``Permutation(5, seed=1)([0, 1, 2, 3, 4])``.

    Args:
        size: number of indices, 1 to 2**62.
        seed: any integer.
        epoch: any integer; each epoch has its own order.

    Raises:
        ZarrCoreError: the size is out of range, or an argument is not an integer.
    """

    def __init__(self, size: int, *, seed: int = 0, epoch: int = 0) -> None:
        self.size = size = whole_number("size", size, 1, _MAX_SIZE)
        bits = (size - 1).bit_length()
        self._low_bits = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << bits // 2) - 1)
        self._high_mask = np.uint64((1 << bits - bits // 2) - 1)
        self._keys = _round_keys(whole_number("seed", seed), whole_number("epoch", epoch))
        self._tables: _Words | None = None
        if bits <= _TABLE_BITS:
            self._tables = _mix(np.arange(1 << bits - bits // 2, dtype=np.uint64) + self._keys[:, np.newaxis])
            self._tables[::2] &= self._high_mask
            self._tables[1::2] &= self._low_mask

    def __call__(self, positions: np.typing.ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Indices at the given positions of the order, int64, in the shape of ``positions``.

        Args:
            positions: integers of ``range(size)``.

        Raises:
            IndexError: a position is out of range.
        """
        places = np.asarray(positions, dtype=np.int64)
        if places.size and (places.min() < 0 or places.max() >= self.size):
            raise IndexError(f"positions must be in range({self.size})")
        found = self._pass(places.astype(np.uint64).ravel())
        while (outside := np.flatnonzero(found >= self.size)).size:
            found[outside] = self._pass(found[outside])
        return found.astype(np.int64).reshape(places.shape)

    def _pass(self, words: _Words) -> _Words:
        """One pass of the Feistel network: XOR each half in turn with a keyed hash of the other half."""
        high, low = words >> self._low_bits, words & self._low_mask
        if self._tables is not None:
            for round_of_high, round_of_low in zip(self._tables[::2], self._tables[1::2], strict=True):
                high ^= round_of_high[low]
                low ^= round_of_low[high]
            return (high << self._low_bits) | low
        for first, second in zip(self._keys[::2], self._keys[1::2], strict=True):
            high ^= _mix(low + first) & self._high_mask
            low ^= _mix(high + second) & self._low_mask
        return (high << self._low_bits) | low


def _mix(words: _Words) -> _Words:
    """The finaliser of SplitMix64 (Steele et al. 2014): every input bit affects every output bit."""
    words = words ^ (words >> _SHIFTS[0])
    for factor, shift in zip(_FACTORS, _SHIFTS[1:], strict=True):
        words *= factor
        words ^= words >> shift
    return words


def _round_keys(seed: int, epoch: int) -> _Words:
    entropy = json.dumps([seed, epoch], separators=(",", ":")).encode("ascii")
    octets = b"".join(
        hashlib.blake2b(entropy, digest_size=64, salt=bytes([part]), person=b"zarr_core.order").digest()
        for part in range(_ROUNDS // 8)
    )
    return np.frombuffer(octets, dtype="<u8").astype(np.uint64)
