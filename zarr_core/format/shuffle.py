"""The stored order of a sample's points: a fixed function of (seed, sample id, domain).

NumPy guarantees that the streams of ``numpy.random.RandomState`` never change. So ``verify`` can recompute the order
and compare a store with its source row by row.
"""

from __future__ import annotations

import hashlib

import numpy as np


def shuffle_permutation(seed: int, sample_id: str, domain: str, n_points: int) -> np.ndarray:
    """Source row of each stored row: ``stored[i] == source[permutation[i]]`` for every field of the domain.

    Returns:
        (n_points,) int64.
    """
    digest = hashlib.sha256(f"{seed}\n{sample_id}\n{domain}".encode()).digest()
    return np.random.RandomState(np.frombuffer(digest, "<u4")).permutation(n_points)


def in_source_order(stored: np.ndarray, seed: int, sample_id: str, domain: str) -> np.ndarray:
    """All rows of a stored array in the order of the source."""
    rows = np.empty_like(stored)
    rows[shuffle_permutation(seed, sample_id, domain, len(stored))] = stored
    return rows
