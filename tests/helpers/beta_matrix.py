"""A small wide matrix of beta values with gaps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zarr_core.matrix import WideMatrix

FEATURES = [f"cg{number:03d}" for number in range(50)]


def write_matrix(url: str | Path, batches: Sequence[int] = (3, 5, 4)) -> tuple[WideMatrix, np.ndarray]:
    """A matrix of these batches, and its beta values, (samples, features)."""
    matrix = WideMatrix.create(url, FEATURES, shard_rows=2, chunk_features=16, column_chunk=(8, 4))
    random = np.random.default_rng(0)
    tables = []
    for number, size in enumerate(batches):
        beta = random.uniform(-0.002, 1.002, (size, len(FEATURES))).astype("float32")
        beta[random.random(beta.shape) < 0.1] = np.nan
        beta[:, 7] = np.nan  # a feature without measurements
        ids = [f"b{number}s{sample}" for sample in range(size)]
        matrix.append(f"b{number}", ids, {"beta": beta, "coverage": np.full_like(beta, 30)})
        tables.append(beta)
    return matrix, np.concatenate(tables)
