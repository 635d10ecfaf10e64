"""Derive the column-major copy from the row-major one.

Committed batches that the copy lacks are packed into blocks. Each block is written once and has a commit of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from tqdm import tqdm

from zarr_core.matrix.read.cells import feature_parts, read_copy
from zarr_core.matrix.read.fetch import ChunkFetcher
from zarr_core.matrix.store.batch_names import outside
from zarr_core.matrix.store.claims import announce, claim_shards, create_shard
from zarr_core.matrix.store.head import HEAD, Overtaken, commit
from zarr_core.matrix.store.state import ColumnBlock, MatrixState
from zarr_core.storage import Storage
from zarr_core.versioning.generations import load_same


def derive_columns(
    storage: Storage, fetcher: ChunkFetcher, state: MatrixState, progress: bool
) -> tuple[MatrixState, list[str]]:
    """Write the batches that the column-major copy lacks; returns the new state and the added batches."""
    added: list[str] = []
    lacking = len(state.samples_of(outside(state.batches, state.transposed)))
    with tqdm(total=lacking, unit="sample", desc="derive columns", disable=not (progress and lacking)) as bar:
        while blocks := plan_blocks(state):  # planned again after each block: others may derive at the same time
            batches = blocks[0]
            copy, samples = state.column_copy, len(state.samples_of(batches))
            purpose, way_out = f"batches {', '.join(batches)}", "Reads of these batches use the row-major copy"
            first = claim_shards(storage, state, copy, samples, purpose, way_out)
            announce(storage, copy, first * copy.shard_samples + samples)
            block = write_block(storage, fetcher, state, batches, first)
            bar.update(samples)
            try:
                state = commit(storage, state, partial(_with_block, state, block))
                added += batches
            except Overtaken:
                state = load_same(storage, HEAD, state)
    return state, added


def plan_blocks(state: MatrixState) -> list[tuple[str, ...]]:
    """Batches that the column-major copy lacks, packed in order so that few places are left empty."""
    width = state.column_chunk[1]
    blocks: list[tuple[str, ...]] = []
    filled = width
    for batch_id in outside(state.batches, state.transposed):
        count = len(state.batches[batch_id].sample_ids)
        if filled + count > width:
            blocks.append(())
            filled = 0
        blocks[-1] += (batch_id,)
        filled += count
    return blocks


def write_block(
    storage: Storage, fetcher: ChunkFetcher, state: MatrixState, batches: Sequence[str], first: int
) -> ColumnBlock:
    """Read batches from the row-major copy and write them column by column, from the claimed shard ``first`` on.

    Memory: a few column shards.
    """
    sample_ids, copy = state.samples_of(batches), state.row_copy
    written = dict.fromkeys(state.values, 0)
    for value, layout in state.column_copy.layouts.items():
        # One chunk of each row after another goes to shards of as many features, so that none is decoded twice.
        parts = feature_parts(copy, value, None)
        width = layout.shard[1]
        for along, start in enumerate(range(0, len(sample_ids), width), first):
            members = sample_ids[start : start + width]
            for across, part in enumerate(parts):
                cells = np.empty((len(members), part.inside.stop), layout.dtype)
                read_copy(fetcher, copy, value, members, [part._replace(to=part.inside)], cells)
                name = state.column_copy.shard_name(value, along, across)
                written[value] += create_shard(storage, name, layout.encode_blocks([np.ascontiguousarray(cells.T)]))
    return ColumnBlock(first * state.column_chunk[1], tuple(batches), written)


def _with_block(state: MatrixState, block: ColumnBlock, current: MatrixState) -> MatrixState:
    """The current state with a block; raises Overtaken if one of its batches was derived or retired since ``state``."""
    unchanged = all(current.batches.get(name) == state.batches[name] for name in block.batches)
    if not unchanged or not current.transposed.keys().isdisjoint(block.batches):
        raise Overtaken
    return replace(current, column_blocks=(*current.column_blocks, block))
