"""Small matrices for tests: cells, appends of synthetic batches, damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarr_core.matrix import WideMatrix
from zarr_core.storage import Storage

FEATURES = [f"cg{number:06d}" for number in range(0, 700, 7)]
SMALL: dict[str, Any] = {"chunk_features": 16, "shard_rows": 4, "column_chunk": (4, 8)}


def block(n_samples: int, n_features: int = len(FEATURES), seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Cells with some missing values, and a run of features without any value."""
    rng = np.random.default_rng(seed)
    cells = rng.random((n_samples, n_features)).astype(dtype)
    cells[rng.random(cells.shape) < 0.2] = np.nan
    cells[:, n_features // 3 : n_features // 2] = np.nan
    return cells


def append(matrix: WideMatrix, batch_id: str, n_samples: int, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Append a batch of synthetic samples; returns their rows by value and sample."""
    sample_ids = [f"{batch_id}_s{number}" for number in range(n_samples)]
    tables = {
        value: block(n_samples, matrix.shape[1], seed + number, dtype)
        for number, (value, dtype) in enumerate(matrix.values.items())
    }
    assert matrix.append(batch_id, sample_ids, tables)
    return {value: dict(zip(sample_ids, table, strict=True)) for value, table in tables.items()}


def count_writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that are written through ``Storage`` from now on; "replace HEAD.json" for a swap."""
    names: list[str] = []
    inside: list[str] = []

    def counted(method: str) -> None:
        original = getattr(Storage, method)

        def wrapper(self: Storage, name: str, *arguments: Any, **options: Any) -> Any:
            if not inside:
                names.append(f"{method} {name}")
            inside.append(name)
            try:
                return original(self, name, *arguments, **options)
            finally:
                inside.pop()

        monkeypatch.setattr(Storage, method, wrapper)

    for method in ("write", "create", "replace"):
        counted(method)
    return names


def flip(path: Path, offset: int) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
