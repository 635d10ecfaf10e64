"""Write stored rows again: some of a batch's samples, or a whole matrix on another feature axis.

The axis of a matrix is fixed, so the copy is a new matrix at another location. It is committed once, when all of it is
written: until then its location holds no matrix.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
from tqdm import tqdm

from zarr_core.errors import MatrixError
from zarr_core.matrix.ingest.append import digest_rows, write_shards
from zarr_core.matrix.read.cells import feature_parts, read_copy
from zarr_core.matrix.read.fetch import ChunkFetcher
from zarr_core.matrix.read.reader import MatrixReader
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.claims import announce, claim_shards
from zarr_core.matrix.store.create import CHUNK_FEATURES, check_vacant, commit_new, new_state
from zarr_core.matrix.store.head import HEAD
from zarr_core.matrix.store.sample_table import read_table_file
from zarr_core.matrix.store.state import MatrixBatch, MatrixState
from zarr_core.storage import Storage
from zarr_core.versioning.generations import load_same

_BLOCK_BYTES = 64 << 20  # cells of one value that are in memory together, beside the encoded shard that they go to

logger = logging.getLogger(__name__)


def reindex(
    matrix: MatrixReader,
    new: FeatureAxis,
    storage: Storage,
    codec: str | None,
    chunk_features: int | None,
    progress: bool,
) -> MatrixState:
    """Write a copy of the matrix as it is now to the ``new`` axis and commit it; see ``WideMatrix.reindex``."""
    old, source = matrix.feature_ids, matrix._state
    features = old.shared(new)
    if not len(features[0]):
        raise MatrixError(f"none of the {len(new):,} features is on the axis of the matrix ({len(old):,} features)")
    if dropped := len(old) - len(features[0]):
        kept = np.zeros(len(old), bool)
        kept[features[0]] = True
        logger.warning(
            "%d of %d features are not on the new axis and are left out, such as %r; "
            "matrix.feature_ids.union(...) keeps them",
            *(dropped, len(old), old[int(np.argmin(kept))]),
        )
    check_vacant(storage)
    state = replace(_empty_copy(source, new, codec, chunk_features), metadata=source.metadata)
    copy = state.row_copy
    for kind, table in source.metadata.items():
        storage.create(table.path, read_table_file(matrix._storage, table, kind))
    count = sum(copy.shards_of(len(batch.sample_ids)) for batch in source.batches.values())
    if not count:
        return commit_new(storage, new, state)
    # An earlier call for this location may have died, or may be running: each writes to shards of its own.
    purpose = f"copy of matrix {source.matrix_id} to another axis"
    first = claim_shards(storage, state, copy, count * state.shard_rows, purpose, "Choose another location")
    members = {batch_id: batch.sample_ids for batch_id, batch in source.batches.items()}
    written = rewrite_batches(matrix._fetcher, source, storage, state, members, first, features)
    batches: dict[str, MatrixBatch] = {}
    with tqdm(total=len(source.rows), unit="sample", disable=not progress) as bar:
        for batch_id, batch in written:
            batches[batch_id] = batch
            bar.update(len(batch.sample_ids))
    state = replace(state, batches=batches)
    check_vacant(storage)  # the arrays of a matrix that was made meanwhile keep their description
    announce(storage, state.row_copy)
    load_same(matrix._storage, HEAD, source)  # what was copied is of this matrix, if it is still there
    return commit_new(storage, new, state)


def _empty_copy(source: MatrixState, axis: FeatureAxis, codec: str | None, chunk_features: int | None) -> MatrixState:
    """The state of the copy without batches: settings of the source if none are given, layout for the new axis."""
    if chunk_features is None:
        # A source of a single chunk per row has no width of its own choice.
        one_chunk = source.axis.length <= source.chunk_features
        chunk_features = max(source.chunk_features, CHUNK_FEATURES) if one_chunk else source.chunk_features
    state = new_state(
        axis,
        source.values,
        codec=source.codec if codec is None else codec,
        chunk_features=chunk_features,
        shard_rows=None,
        max_shards=source.max_shards,
        column_chunk=source.column_chunk,
    )
    retired = replace(source.retired, next_shard=0)
    return replace(state, shard_rows=min(state.shard_rows, source.shard_rows), retired=retired)


def rewrite_batches(
    fetcher: ChunkFetcher,
    source: MatrixState,
    storage: Storage,
    state: MatrixState,
    batches: Mapping[str, Sequence[str]],
    first: int,
    features: tuple[np.ndarray, np.ndarray] | None = None,
) -> Iterator[tuple[str, MatrixBatch]]:
    """Write samples of batches to claimed shards of another state; yields each batch's new entry.

    Memory: an encoded shard twice, and 64 MiB of cells per value. Each row is read twice, for its shard and for the
    digest by which a later append recognizes the batch.

    Args:
        fetcher, source: the matrix and the state to read.
        storage, state: the matrix and the state to write.
        batches: samples to write, by batch.
        first: number of the first claimed shard.
        features: positions of the features that both have, in both; None where the axes are the same.
    """
    copy, height, width = source.row_copy, state.shard_rows, state.axis.length
    columns, to = features or (None, None)
    itemsize = max(np.dtype(dtype).itemsize for dtype in source.values.values())
    block_rows = max(1, _BLOCK_BYTES // (itemsize * width))

    def blocks(value: str, sample_ids: Sequence[str]) -> Iterator[np.ndarray]:
        """Rows of samples, as many at a time as fit into a block; for all values equally many."""
        chunks = feature_parts(copy, value, columns, to)
        for start in range(0, len(sample_ids), block_rows):
            members = sample_ids[start : start + block_rows]
            cells = np.full((len(members), width), np.nan, copy.layouts[value].dtype)
            read_copy(fetcher, copy, value, members, chunks, cells)
            yield cells

    for batch_id, sample_ids in batches.items():
        parts = [sample_ids[start : start + height] for start in range(0, len(sample_ids), height)]
        written = {}
        for value in source.values:
            written[value] = write_shards(storage, state, value, first, map(partial(blocks, value), parts))
        ordered = sorted(sample_ids)
        rows = {value: chain.from_iterable(blocks(value, ordered)) for value in source.values}
        digest = digest_rows(ordered, rows)
        recorded = source.batches[batch_id].source
        yield batch_id, MatrixBatch(first * height, tuple(sample_ids), digest, written, recorded)
        first += state.row_copy.shards_of(len(sample_ids))
