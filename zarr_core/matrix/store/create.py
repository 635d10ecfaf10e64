"""The state of a new matrix: its settings are checked and its chunk layout is chosen."""

from __future__ import annotations

import datetime
import hashlib
import math
import uuid
from collections.abc import Mapping
from functools import partial

import numpy as np

from zarr_core._util.arguments import check_mapping, whole_number
from zarr_core.errors import ManifestError, MatrixError, ZarrCoreError
from zarr_core.format.codecs import Codec
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.claims import announce
from zarr_core.matrix.store.head import HEAD
from zarr_core.matrix.store.state import AXIS, COLUMN_NAMES, ITEM_NAMES, Axis, MatrixState, check_values
from zarr_core.storage import Storage
from zarr_core.versioning.generations import commit

VALUES = {"beta": "float32", "coverage": "float32"}
CHUNK_FEATURES = 45_000
COLUMN_CHUNK = (16, 256)
# Of the column-major copy of a matrix without codec: its chunks are small and often partly empty.
_COLUMN_CODEC = "blosc-lz4"
MAX_SHARDS = 65_536
_SHARD_BYTES = 800_000_000
# The index of a shard, 16 bytes per chunk, is written and read whole, however few rows a batch has.
_SHARD_CHUNKS = 8_192
# Each batch begins a new shard, and other Zarr readers see the unused rows of a shard before the next batch.
_SHARD_ROWS = 512


def new_state(
    axis: FeatureAxis,
    values: Mapping[str, str],
    *,
    codec: str,
    chunk_features: int,
    shard_rows: int | None,
    max_shards: int,
    column_chunk: tuple[int, int],
) -> MatrixState:
    """The state of an empty matrix; arguments as for ``WideMatrix.create``.

    Raises:
        MatrixError: an argument is invalid. The state has been parsed by the code that opens a matrix.
    """
    check_mapping("values", values, "{'beta': 'float32'}", error=MatrixError)
    try:
        check_values(values)
        for value in values:
            if value in ITEM_NAMES:
                raise ValueError(f"value table {value!r}: items of a dataset have another tensor of this name")
            if value in COLUMN_NAMES:
                raise ValueError(f"value table {value!r}: views and exports have another column of this name")
        parsed = Codec.parse(codec)
    except (ValueError, ZarrCoreError) as error:
        raise MatrixError(str(error)) from error
    if not isinstance(column_chunk, tuple | list) or len(column_chunk) != 2:
        raise MatrixError(f"column_chunk must be (features, samples), not {column_chunk!r:.80}")
    positive = partial(whole_number, minimum=1, error=MatrixError)
    chunk_features, max_shards = positive("chunk_features", chunk_features), positive("max_shards", max_shards)
    height, width = (positive("column_chunk", cells) for cells in column_chunk)
    # Chunks of nearly equal width, each a whole number of chunks of the column-major copy.
    n_chunks = math.ceil(len(axis) / chunk_features)
    chunk_features = height * math.ceil(len(axis) / n_chunks / height)
    if shard_rows is None:
        itemsize = max(np.dtype(dtype).itemsize for dtype in values.values())
        shard_rows = max(1, min(_SHARD_ROWS, _SHARD_BYTES // (itemsize * len(axis)), _SHARD_CHUNKS // n_chunks))
    shard_rows = positive("shard_rows", shard_rows)
    sha256 = hashlib.sha256(axis.to_npy()).hexdigest()
    state = MatrixState(
        generation=0,
        matrix_id=uuid.uuid4().hex,
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        # Named by a digest of its content, so that the axis of a failed creation cannot be mistaken for this one.
        axis=Axis(f"{AXIS}/{sha256[:16]}.npy", len(axis), sha256),
        values=dict(values),
        codec=str(parsed),
        column_codec=str(Codec.parse(_COLUMN_CODEC) if parsed.name == "none" else parsed),
        chunk_shape=(1, chunk_features),
        shard_rows=shard_rows,
        max_shards=max_shards,
        column_chunk=(height, width),
        batches={},
        column_blocks=(),
    )
    try:
        MatrixState.from_json(state.to_json())
    except ManifestError as error:
        raise MatrixError(f"no reader could open a matrix with these settings: {error.__cause__}") from error
    return state


def commit_new(storage: Storage, axis: FeatureAxis, state: MatrixState) -> MatrixState:
    """Write the names of the features and commit a state as the first generation; returns the committed state.

    Raises:
        MatrixError: the location holds a matrix already.
    """
    check_vacant(storage)
    storage.create(state.axis.path, axis.to_npy())
    created = commit(storage, HEAD, lambda current: current or state)
    announce(storage, created.row_copy)  # also if it is another's, whose arrays this call may have described
    if created.matrix_id != state.matrix_id:
        raise MatrixError(f"{storage.url}: another process has just created a matrix here; open that one")
    return created


def check_vacant(storage: Storage) -> None:
    """Raise MatrixError if the location holds a matrix."""
    if storage.exists(HEAD.name):
        raise MatrixError(f"{storage.url} already holds a matrix; open it, or choose another location")
