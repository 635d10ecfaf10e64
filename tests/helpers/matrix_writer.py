"""A process that appends batches to a matrix; tests kill it: ``python -m tests.helpers.matrix_writer ROOT SEED BATCH``.

The cells of a batch follow from its name, so that every process writes the same cells and tests know them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from zarr_core.matrix import WideMatrix

N_FEATURES = 3_000
OPTIONS: dict[str, Any] = {"chunk_features": 500, "shard_rows": 4, "column_chunk": (4, 16)}


def samples_of(batch_id: str) -> list[str]:
    """Eleven samples: three shards, the last one short."""
    return [f"{batch_id}_s{n}" for n in range(11)]


def cells_of(batch_id: str) -> dict[str, np.ndarray]:
    """Cells of the batch."""
    rng = np.random.default_rng(list(batch_id.encode()))
    return {value: rng.random((11, N_FEATURES), np.float32) for value in ("beta", "coverage")}


def write_batches(root: str, seed: int, batches: Sequence[str]) -> None:
    """Append batches in an order that the seed determines, then derive the column-major copy."""
    matrix = WideMatrix.open(root)
    for batch_id in np.random.default_rng(seed).permutation(batches).tolist():
        matrix.append(batch_id, samples_of(batch_id), cells_of(batch_id))
    matrix.derive_columns()


def main() -> None:
    root, seed, *batches = sys.argv[1:]
    print("begin", flush=True)
    write_batches(root, int(seed), batches)
    print("done", flush=True)


if __name__ == "__main__":
    main()
