"""Read from the column-major copy: a few features of many samples, without the rest of each row.

The copy holds the same cells with the axes exchanged, in chunks of some features of many samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from zarr_core.format.shards import decode_into
from zarr_core.matrix.read.fetch import ChunkFetcher, ReadCost, WantedChunk
from zarr_core.matrix.store.state import MatrixState


def read_columns(
    fetcher: ChunkFetcher,
    state: MatrixState,
    value: str,
    sample_ids: Sequence[str],
    columns: np.ndarray,
    out: np.ndarray,
    places: np.ndarray,
) -> ReadCost:
    """Read features of samples that the column-major copy holds.

    Args:
        fetcher, state, value: matrix and value table to read.
        sample_ids: samples to read, without duplicates.
        columns: (features,) indices of the features.
        out: (rows, features) of the stored dtype.
        places: (samples,) row of the output for each sample.
    """
    layout = state.column_copy.layouts[value]
    height, width = layout.chunk
    rows = np.array([state.column_copy.positions[i] for i in sample_ids], np.int64)
    samples = [(number, rows[of] % width, places[of]) for number, of in _grouped(rows // width)]
    features = [(number, columns[of] % height, of) for number, of in _grouped(columns // height)]
    chunks: list[WantedChunk] = []
    for block, (along, _, _) in enumerate(samples):
        for n, (number, _, _) in enumerate(features):
            shard, in_shard = divmod(number, layout.chunks[0])
            name = state.column_copy.shard_name(value, along, shard)
            chunks.append(WantedChunk(name, in_shard, block * len(features) + n))
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

    def describe(tag: int) -> str:
        block, n = divmod(tag, len(features))
        first = columns[features[n][2][0]]
        return f"column-major copy of {value}, column {first} and others of {len(samples[block][1])} samples"

    return fetcher.read(layout, chunks, place, describe)


def expected_cost(state: MatrixState, value: str, sample_ids: Sequence[str], columns: np.ndarray) -> ReadCost:
    """Estimated cost of :func:`read_columns`, from the average size of the chunks."""
    layout = state.column_copy.layouts[value]
    height, width = layout.chunk
    n_chunks = len(np.unique(columns // height))
    touched = {state.column_copy.positions[i] // width for i in sample_ids}
    expected = ReadCost()
    for block, placed in zip(state.column_blocks, state.column_copy.blocks, strict=True):
        first, count = block.row // width, state.column_copy.shards_of(len(placed.sample_ids))
        wanted = sum(along in touched for along in range(first, first + count))
        stored = block.bytes[value] / (count * math.ceil(layout.shape[0] / height))
        expected.add(wanted * n_chunks, round(wanted * n_chunks * stored))
    return expected


def _grouped(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each distinct number in ascending order, with its positions."""
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    return ((int(numbers[of[0]]), of) for of in np.split(order, cuts))
