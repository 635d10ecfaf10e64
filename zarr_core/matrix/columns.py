"""The transposed copy: a few features of many samples, without the rest of each row.

It holds the same cells with the axes exchanged, in chunks of some features of many samples, and is derived from what is
committed: batches that it does not hold yet are packed into blocks, each written once and named by a commit of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from zarr_core.format.shards import decode_into
from zarr_core.matrix.claims import create_shard
from zarr_core.matrix.fetch import ChunkFetcher, ChunkRead, Cost
from zarr_core.matrix.rows import ChunkCells, read_rows
from zarr_core.matrix.state import Batch, ColumnBlock, MatrixState, columns_path
from zarr_core.storage import Storage


def read_columns(
    fetcher: ChunkFetcher,
    state: MatrixState,
    value: str,
    sample_ids: Sequence[str],
    columns: np.ndarray,
    out: np.ndarray,
    places: np.ndarray,
) -> Cost:
    """Read features of samples that the transposed copy holds.

    Args:
        fetcher: of the matrix.
        state: of the matrix.
        value: which table.
        sample_ids: whom to read; no sample twice.
        columns: (features,) which features.
        out: (rows, features) of the stored dtype.
        places: (samples,) row of the output for each.

    Returns:
        What it cost.
    """
    layout = state.column_layout[value]
    height, width = layout.chunk
    rows = np.array([state.column_rows[i] for i in sample_ids], np.int64)
    samples = [(number, rows[of] % width, places[of]) for number, of in _grouped(rows // width)]
    features = [(number, columns[of] % height, of) for number, of in _grouped(columns // height)]
    chunks: list[ChunkRead] = []
    for block, (along, _, _) in enumerate(samples):
        for n, (number, _, _) in enumerate(features):
            shard, in_shard = divmod(number, layout.chunks[0])
            key = f"{columns_path(value)}/{layout.shard_key(shard, along)}"
            chunks.append(ChunkRead(key, in_shard, block * len(features) + n))
    scratch = np.empty(layout.chunk, layout.dtype)

    def place(tag: int, data: np.ndarray | None) -> None:
        block, n = divmod(tag, len(features))
        _, of_chunk, to_rows = samples[block]
        _, cells, to_columns = features[n]
        if data is None:
            out[np.ix_(to_rows, to_columns)] = np.nan
            return
        decode_into(layout.flat, data, scratch)
        out[np.ix_(to_rows, to_columns)] = scratch[np.ix_(cells, of_chunk)].T

    def name(tag: int) -> str:
        block, n = divmod(tag, len(features))
        return (
            f"{value}, transposed, column {columns[features[n][2][0]]} and others of {len(samples[block][1])} samples"
        )

    return fetcher.read(layout, chunks, place, name)


def expected_cost(state: MatrixState, value: str, sample_ids: Sequence[str], columns: np.ndarray) -> Cost:
    """About what :func:`read_columns` will cost: chunks as large as they are on average."""
    layout = state.column_layout[value]
    height, width = layout.chunk
    n_chunks = len(np.unique(columns // height))
    touched = {state.column_rows[i] // width for i in sample_ids}
    expected = Cost()
    for block in state.column_blocks:
        first, count = block.row // width, state.widths_of(block)
        wanted = sum(along in touched for along in range(first, first + count))
        stored = block.bytes[value] / (count * math.ceil(layout.shape[0] / height))
        expected.add(wanted * n_chunks, round(wanted * n_chunks * stored))
    return expected


def _grouped(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each different number in order, and where it is."""
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    return ((int(numbers[of[0]]), of) for of in np.split(order, cuts))


def plan_blocks(state: MatrixState) -> list[tuple[str, ...]]:
    """Batches that the transposed copy lacks, packed in order so that few places are left empty."""
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
    """Read batches from the row copy and write them transposed; memory: a few shards of the transposed copy.

    Args:
        storage: the matrix.
        fetcher: of the matrix.
        state: of the matrix, which holds the batches.
        batches: their ids.
        first: number of the first shard along the second axis; claimed.
    """
    members: list[Batch] = [state.batches[batch_id] for batch_id in batches]
    sample_ids = [sample_id for batch in members for sample_id in batch.sample_ids]
    written: Mapping[str, int] = {
        value: sum(_write_value(storage, fetcher, state, value, sample_ids, first)) for value in state.values
    }
    return ColumnBlock(first * state.column_chunk[1], tuple(batches), written)


def _write_value(
    storage: Storage, fetcher: ChunkFetcher, state: MatrixState, value: str, sample_ids: Sequence[str], first: int
) -> Iterator[int]:
    layout = state.column_layout[value]
    features, width = layout.shard  # as many features as a chunk of the row copy has, so none is decoded twice
    for number, start in enumerate(range(0, len(sample_ids), width)):
        members = sample_ids[start : start + width]
        for shard in range(math.ceil(layout.shape[0] / features)):
            count = min(features, layout.shape[0] - shard * features)
            cells = np.empty((len(members), count), layout.dtype)
            picked = [ChunkCells(shard, None, slice(0, count))]
            read_rows(fetcher, state, value, members, picked, cells, np.arange(len(members)))
            key = f"{columns_path(value)}/{layout.shard_key(shard, first + number)}"
            yield create_shard(storage, key, layout.encode_shard(np.ascontiguousarray(cells.T)))
