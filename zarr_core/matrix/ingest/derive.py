"""Derive the column-major copy from the row-major one.

Committed batches that the copy lacks are packed into blocks. Each block is written once and has a commit of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from zarr_core.errors import MatrixError
from zarr_core.matrix.read.cells import feature_parts, read_copy
from zarr_core.matrix.read.fetch import ChunkFetcher
from zarr_core.matrix.store.claims import claim, create_shard
from zarr_core.matrix.store.metadata import announce
from zarr_core.matrix.store.state import HEAD, ColumnBlock, MatrixState
from zarr_core.storage import Storage
from zarr_core.versioning.generations import commit


def derive_columns(storage: Storage, fetcher: ChunkFetcher, state: MatrixState) -> tuple[MatrixState, list[str]]:
    """Write the batches that the column-major copy lacks; returns the new state and the batches that this call added.

    Raises:
        MatrixError: the copy is full.
        StoreError: the matrix was deleted or replaced.
    """
    for copy in (state.row_copy, state.column_copy):  # shortens what an earlier version announced
        announce(storage, copy)
    added: list[str] = []
    while blocks := plan_blocks(state):  # planned again after each block: others may derive at the same time
        batches = blocks[0]
        copy = state.column_copy
        samples = len(state.samples_of(batches))
        count = copy.shards_of(samples)
        first = claim(storage, "columns", copy.next_shard, count, f"batches {', '.join(batches)}")
        if first + count > state.max_shards:
            raise MatrixError(f"{storage.url}: the column-major copy is full ({state.max_shards} shards)")
        announce(storage, copy, first * copy.shard_samples + samples)
        block = write_block(storage, fetcher, state, batches, first)
        state, committed = _commit_block(storage, state, block)
        if committed:
            added += batches
    return state, added


def plan_blocks(state: MatrixState) -> list[tuple[str, ...]]:
    """Batches that the column-major copy lacks, packed in order so that few places are left empty."""
    held = {batch_id for block in state.column_blocks for batch_id in block.batches}
    width = state.column_chunk[1]
    blocks: list[list[str]] = []
    filled = width
    for batch_id, batch in state.batches.items():
        if batch_id in held:
            continue
        if filled + len(batch.sample_ids) > width:
            blocks.append([])
            filled = 0
        blocks[-1].append(batch_id)
        filled += len(batch.sample_ids)
    return [tuple(block) for block in blocks]


def write_block(
    storage: Storage, fetcher: ChunkFetcher, state: MatrixState, batches: Sequence[str], first: int
) -> ColumnBlock:
    """Read batches from the row-major copy and write them column by column, from the claimed shard ``first`` on.

    Memory: a few column shards.
    """
    sample_ids = state.samples_of(batches)
    written = {value: sum(_write_value(storage, fetcher, state, value, sample_ids, first)) for value in state.values}
    return ColumnBlock(first * state.column_chunk[1], tuple(batches), written)


def _write_value(
    storage: Storage, fetcher: ChunkFetcher, state: MatrixState, value: str, sample_ids: Sequence[str], first: int
) -> Iterator[int]:
    """Write the shards of one value; yields their sizes in bytes."""
    layout = state.column_copy.layouts[value]
    features, width = layout.shard  # as many features as a row chunk has, so that no row chunk is decoded twice
    for number, start in enumerate(range(0, len(sample_ids), width)):
        members = sample_ids[start : start + width]
        for shard in range(layout.shards_across):
            count = min(features, layout.shape[0] - shard * features)
            cells = np.empty((len(members), count), layout.dtype)
            columns = np.arange(shard * features, shard * features + count)
            parts = feature_parts(state.row_copy, value, columns)
            read_copy(fetcher, state.row_copy, value, members, parts, cells, np.arange(len(members)))
            name = state.column_copy.shard_name(value, first + number, shard)
            yield create_shard(storage, name, layout.encode_blocks([np.ascontiguousarray(cells.T)]))


def _commit_block(storage: Storage, state: MatrixState, block: ColumnBlock) -> tuple[MatrixState, bool]:
    """The committed state, and whether it has the block: False if one of its batches was derived or retired."""
    added = False

    def change(current: MatrixState | None) -> MatrixState:
        nonlocal added
        assert current is not None
        held = {batch_id for known in current.column_blocks for batch_id in known.batches}
        unchanged = all(current.batches.get(name) == state.batches[name] for name in block.batches)
        added = unchanged and held.isdisjoint(block.batches)
        return replace(current, column_blocks=(*current.column_blocks, block)) if added else current

    return commit(storage, HEAD, change, state), added
