"""The row copy: whole samples, each a run of chunks that is one byte range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from zarr_core.encoding import decode_into
from zarr_core.matrix.fetch import ChunkFetcher, ChunkRead
from zarr_core.matrix.grid import GridLayout
from zarr_core.matrix.head import MatrixState, array_path


def read_rows(
    fetcher: ChunkFetcher,
    state: MatrixState,
    value: str,
    sample_ids: Sequence[str],
    columns: np.ndarray | None,
    out: np.ndarray,
    places: np.ndarray,
) -> None:
    """Read samples into rows of an output.

    Args:
        fetcher: of the matrix.
        state: of the matrix.
        value: which table.
        sample_ids: whom to read; no sample twice.
        columns: which features, None for all.
        out: (rows, features) of the stored dtype; whole chunks are decoded right into it where its rows are contiguous.
        places: (samples,) row of the output for each.
    """
    layout = state.row_layout[value]
    width, n_features = layout.chunk[1], state.axis.length
    picked = _all_chunks(layout, n_features) if columns is None else _by_chunk(columns, width)
    rows = np.array([state.rows[i] for i in sample_ids], np.int64)
    chunks: list[ChunkRead] = []
    for sample in np.argsort(rows).tolist():
        shard, row = divmod(int(rows[sample]), layout.shard[0])
        key = f"{array_path(value)}/{layout.shard_key(shard, 0)}"
        first = row * layout.chunks[1]
        chunks += [ChunkRead(key, first + number, sample * len(picked) + n) for n, (number, _, _) in enumerate(picked)]
    scratch = np.empty(width, layout.dtype)
    in_place = out.strides[1] == out.itemsize and out.dtype == layout.dtype

    def place(tag: int, data: np.ndarray | None) -> None:
        sample, n = divmod(tag, len(picked))
        _, of_chunk, of_output = picked[n]
        row = out[places[sample]]
        if data is None:
            row[of_output] = np.nan
        elif of_chunk is None and in_place and of_output.stop - of_output.start == width:
            decode_into(layout.flat, data, row[of_output])
        else:
            decode_into(layout.flat, data, scratch)
            row[of_output] = scratch[: of_output.stop - of_output.start] if of_chunk is None else scratch[of_chunk]

    def name(tag: int) -> str:
        return f"{value} of sample {sample_ids[tag // len(picked)]!r}"

    fetcher.read(layout, chunks, place, name)


class _Picked(NamedTuple):
    """What is wanted of the chunks of one number: some cells, None for all, and where in the output they go."""

    number: int
    cells: np.ndarray | None
    to: Any


def _all_chunks(layout: GridLayout, n_features: int) -> list[_Picked]:
    width = layout.chunk[1]
    return [
        _Picked(number, None, slice(number * width, min((number + 1) * width, n_features)))
        for number in range(layout.chunks[1])
    ]


def _by_chunk(columns: np.ndarray, width: int) -> list[_Picked]:
    order = np.argsort(columns, kind="stable")
    numbers = columns[order] // width
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    return [_Picked(int(columns[to[0]]) // width, columns[to] % width, to) for to in np.split(order, cuts) if len(to)]


def row_chunks(layout: GridLayout, columns: np.ndarray | None) -> tuple[int, int]:
    """Chunks of one row that the columns lie in, and the runs of neighbours that they make."""
    if columns is None:
        return layout.chunks[1], 1
    numbers = np.unique(columns // layout.chunk[1])
    return len(numbers), 1 + int(np.count_nonzero(np.diff(numbers) > 1))
