"""Read from the row-major copy: whole samples, each of which is one byte range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from zarr_core.format.shards import decode_into
from zarr_core.matrix.read.fetch import ChunkFetcher, ReadCost, WantedChunk
from zarr_core.matrix.store.layout import ChunkLayout
from zarr_core.matrix.store.state import MatrixState


class ChunkCells(NamedTuple):
    """Cells to read from one chunk of each row.

    Attributes:
        number: index of the chunk in the row.
        cells: indices of its cells; None for the first cells, as many as ``to`` has positions.
        to: their positions in a row of the output; a slice if ``cells`` is None.
    """

    number: int
    cells: np.ndarray | None
    to: Any


def pick_chunks(layout: ChunkLayout, columns: np.ndarray | None) -> list[ChunkCells]:
    """Chunks of a row that hold the columns (None: all), in order."""
    width, n_features = layout.chunk[1], layout.shape[1]
    if columns is None:
        return [
            ChunkCells(number, None, slice(number * width, min((number + 1) * width, n_features)))
            for number in range(layout.chunks[1])
        ]
    order = np.argsort(columns, kind="stable")
    cuts = np.flatnonzero(np.diff(columns[order] // width)) + 1
    return [ChunkCells(int(columns[to[0]]) // width, columns[to] % width, to) for to in np.split(order, cuts)]


def expected_cost(state: MatrixState, value: str, sample_ids: Sequence[str], picked: Sequence[ChunkCells]) -> ReadCost:
    """Estimated cost of :func:`read_rows`, from the average size of the chunks."""
    numbers = np.array([wanted.number for wanted in picked])
    runs = 1 + int(np.count_nonzero(np.diff(numbers) > 1))
    share = len(picked) / state.row_copy.layouts[value].chunks[1]
    expected = ReadCost()
    wanted = set(sample_ids)
    for batch in state.batches.values():
        count = len(wanted.intersection(batch.sample_ids))
        expected.add(count * runs, round(count * share * batch.bytes[value] / len(batch.sample_ids)))
    return expected


def read_rows(
    fetcher: ChunkFetcher,
    state: MatrixState,
    value: str,
    sample_ids: Sequence[str],
    picked: Sequence[ChunkCells],
    out: np.ndarray,
    places: np.ndarray,
) -> ReadCost:
    """Read samples into rows of an output array.

    Args:
        fetcher, state, value: matrix and value table to read.
        sample_ids: samples to read, without duplicates.
        picked: cells to read from each row, in the order of the chunks.
        out: (rows, features) of the stored dtype. Whole chunks are decoded in place if its rows are contiguous.
        places: (samples,) row of the output for each sample.
    """
    layout = state.row_copy.layouts[value]
    width = layout.chunk[1]
    rows = np.array([state.rows[i] for i in sample_ids], np.int64)
    chunks: list[WantedChunk] = []
    for sample in np.argsort(rows).tolist():
        shard, row = divmod(int(rows[sample]), layout.shard[0])
        key = state.row_copy.shard_name(value, shard)
        first = row * layout.chunks[1]
        chunks += [
            WantedChunk(key, first + number, sample * len(picked) + n) for n, (number, _, _) in enumerate(picked)
        ]
    scratch = np.empty(width, layout.dtype)
    in_place = out.strides[1] == out.itemsize and out.dtype == layout.dtype

    def whole(tag: int) -> np.ndarray | None:
        """The destination of a chunk's cells if all of them are wanted and contiguous."""
        sample, n = divmod(tag, len(picked))
        _, of_chunk, of_output = picked[n]
        if of_chunk is None and in_place and of_output.stop - of_output.start == width:
            return cast("np.ndarray", out[places[sample], of_output])
        return None

    def destination(tag: int) -> np.ndarray | None:
        cells = whole(tag)
        return None if cells is None else cells.view(np.uint8)

    def place(tag: int, data: np.ndarray | None) -> None:
        sample, n = divmod(tag, len(picked))
        _, of_chunk, of_output = picked[n]
        row = out[places[sample]]
        cells = whole(tag)
        if data is None:
            row[of_output] = np.nan
        elif cells is not None:
            decode_into(layout.flat, data, cells)
        else:
            decode_into(layout.flat, data, scratch)
            row[of_output] = scratch[: of_output.stop - of_output.start] if of_chunk is None else scratch[of_chunk]

    def describe(tag: int) -> str:
        return f"{value} of sample {sample_ids[tag // len(picked)]!r}"

    return fetcher.read(layout, chunks, place, describe, destination if layout.codec.name == "none" else None)
