"""Copy a matrix to another feature axis, from its stored rows and without the warehouse.

The axis of a matrix is fixed, so the copy is a new matrix at another location. It is committed once, when all of it is
written: until then its location holds no matrix.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from zarr_core.errors import MatrixError
from zarr_core.matrix.ingest.rewrite import BatchRewriter
from zarr_core.matrix.read.fetch import ChunkFetcher
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.claims import claim_shards
from zarr_core.matrix.store.create import CHUNK_FEATURES, check_vacant, commit_new, new_state
from zarr_core.matrix.store.head import HEAD
from zarr_core.matrix.store.metadata import announce
from zarr_core.matrix.store.state import MatrixBatch, MatrixState
from zarr_core.storage import Storage
from zarr_core.versioning.generations import load_same

logger = logging.getLogger(__name__)


def reindex(
    source_storage: Storage,
    fetcher: ChunkFetcher,
    source: MatrixState,
    old: FeatureAxis,
    new: FeatureAxis,
    storage: Storage,
    codec: str | None = None,
    chunk_features: int | None = None,
    progress: bool = False,
) -> MatrixState:
    """Write a copy of one state of a matrix to another axis and commit it; see ``WideMatrix.reindex``.

    Args:
        source_storage, fetcher, source, old: the matrix, the state to copy and its axis.
        new, storage: axis and location of the copy.
        codec, chunk_features, progress: as for ``WideMatrix.reindex``.
    """
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
    for table in source.metadata.values():
        storage.create(table.path, source_storage.read(table.path))
    count = sum(copy.shards_of(len(batch.sample_ids)) for batch in source.batches.values())
    if not count:
        return commit_new(storage, new, state)
    # An earlier call for this location may have died, or may be running: each writes to shards of its own.
    purpose = f"copy of matrix {source.matrix_id} to another axis"
    first = claim_shards(storage, state, copy, count * state.shard_rows, purpose, "Choose another location")
    writer = BatchRewriter(fetcher, source, len(new), features)
    members = {batch_id: batch.sample_ids for batch_id, batch in source.batches.items()}
    batches: dict[str, MatrixBatch] = {}
    with tqdm(total=len(source.rows), unit="sample", disable=not progress) as bar:
        for batch_id, batch in writer.write(storage, state, members, first):
            batches[batch_id] = batch
            bar.update(len(batch.sample_ids))
    state = replace(state, batches=batches)
    announce(storage, state.row_copy)
    load_same(source_storage, HEAD, source)  # what was copied is of this matrix, if it is still there
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
