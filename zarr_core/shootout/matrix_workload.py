"""The samples that every format of a matrix holds, and what to read of them."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np

from zarr_core._util.redaction import redact
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.store.head import HEAD
from zarr_core.shootout.candidates import MATRIX_ENTRIES, chunk_sizes
from zarr_core.shootout.formats.matrices import Cells, Rows
from zarr_core.shootout.request import ShootoutRequest
from zarr_core.shootout.workload import Workload
from zarr_core.storage import Storage
from zarr_core.versioning.generations import load

# Bytes of the samples, if their number is not given; they are written once per format and tier.
_BYTES = 128 << 20
# Single features that an epoch reads.
_SINGLE_FEATURES = 256


def take_matrix(request: ShootoutRequest, folder: Path, end: float = math.inf) -> Workload:
    """Copy samples of a matrix, with its first value table, to a matrix below a local folder.

    Args:
        request: of the shootout; by default 128 MiB are taken, but at least a batch.
        folder: local.
        end: time of ``time.monotonic`` after which no further batch of samples is read.

    Raises:
        ZarrCoreError: the matrix is empty.
        StoreError, CorruptChunkError: the matrix cannot be read.
    """
    storage, batch_size, num_features = Storage(request.source), request.batch_size, request.num_features
    state = load(storage, HEAD)
    matrix = WideMatrix(storage, state)
    value, dtype = next(iter(state.values.items()))
    row_bytes = np.dtype(dtype).itemsize * state.axis.length
    ids = matrix.sample_ids[: request.samples or max(batch_size, _BYTES // row_bytes)]
    if not ids:
        raise ZarrCoreError(f"{redact(request.source)} holds no samples")
    blocks: list[np.ndarray] = []
    for start in range(0, len(ids), batch_size):
        if blocks and time.monotonic() >= end:
            ids = ids[:start]
            break
        blocks.append(matrix.read(ids[start : start + batch_size], value=value))
    copy = WideMatrix.create(
        folder / "samples",
        matrix.feature_ids,
        {value: dtype},
        codec=state.codec,
        chunk_features=state.chunk_features,
        column_chunk=state.column_chunk,
    )
    copy.append("shootout", ids, {value: np.concatenate(blocks)})
    n, rng = state.axis.length, np.random.default_rng(0)
    draws = {"samples": Cells(range(len(ids)))}
    reads = {"samples": "whole samples"}
    if num_features < n:
        draws["selected"] = Cells(range(len(ids)), np.sort(rng.choice(n, num_features, replace=False)))
        reads["selected"] = f"samples of {num_features:,} features"
    draws["features"] = Cells(rng.choice(n, min(n, _SINGLE_FEATURES), replace=False).tolist(), by_feature=True)
    reads["features"] = f"features of {len(ids):,} samples"
    facts = {
        "source": redact(request.source),
        "is_store": True,
        "dataset_name": storage.url.rstrip("/").rpartition("/")[2],
        "samples": len(ids),
        "other_fields": 0,
        "samples_total": len(state.rows),
        "fields": {value: dtype},
        "features": n,
        "num_features": num_features,
        "bytes_raw": row_bytes * len(ids),
        "codec": state.codec,
        "chunk_features": state.chunk_features,
        "unit": "features",
        "reads": reads,
        "described": {"value table": f"{value} ({dtype})", "features per sample": f"{n:,}"},
    }
    current = state.chunk_features
    sizes = chunk_sizes(n, current, n, current // 4, current // 16)
    return Workload(Rows(str(folder / "samples"), ids), draws, MATRIX_ENTRIES, sizes, facts)
