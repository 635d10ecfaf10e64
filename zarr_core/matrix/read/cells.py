"""Read cells of a matrix, those of each sample from the cheaper of the row-major and the column-major copy.

Both copies hold the same cells: one in chunks of many features of a sample, the other in chunks of some features of
many samples. Along each axis, the cells to read are divided into the parts that lie in one chunk.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from zarr_core.matrix.read.fetch import ChunkFetcher, ReadCost, WantedChunk
from zarr_core.matrix.read.mapped import copy_mapped
from zarr_core.matrix.read.parts import Part, feature_parts, outer, parts
from zarr_core.matrix.store.copies import Copy
from zarr_core.matrix.store.state import MatrixState

logger = logging.getLogger(__name__)


def read_cells(
    fetcher: ChunkFetcher,
    state: MatrixState,
    value: str,
    samples: np.ndarray,
    columns: np.ndarray | None,
    out: np.ndarray,
) -> None:
    """Read features of samples.

    Args:
        fetcher, state, value: matrix and value table to read.
        samples: (rows,) number of the sample of each row of the output; numbers may repeat.
        columns: (features,) indices of the features; None: all of them.
        out: (rows, features) of the stored dtype.
    """
    rows, transposed = state.row_copy, state.column_copy
    to = np.arange(len(samples))
    if columns is not None and state.column_blocks:
        positions = state.column_positions[samples]
        held = np.flatnonzero(positions >= 0)
        by_rows = _expected_cost(rows, value, state.row_positions[samples[held]], columns)
        by_columns = _expected_cost(transposed, value, positions[held], columns)
        if by_columns.weight < by_rows.weight:
            logger.debug("%s: about %s, and %s from rows", fetcher.url, by_columns, by_rows)
            _read_samples(fetcher, state, transposed, value, samples, held, columns, out)
            to = np.flatnonzero(positions < 0)
    features = feature_parts(rows, value, columns)
    if len(to):
        to = copy_mapped(fetcher, rows, value, state.row_positions[samples[to]], to, features, out)
    if len(to):
        _read_samples(fetcher, state, rows, value, samples, to, columns, out)


def _read_samples(
    fetcher: ChunkFetcher,
    state: MatrixState,
    copy: Copy,
    value: str,
    samples: np.ndarray,
    to: np.ndarray,
    columns: np.ndarray | None,
    out: np.ndarray,
) -> None:
    """Read samples of one copy into rows ``to`` of the output, each once."""
    names = state.sample_ids
    places: dict[str, int] = {}
    again: list[tuple[int, int]] = []
    for place in to.tolist():
        first = places.setdefault(names[samples[place]], place)
        if first != place:
            again.append((place, first))
    read_copy(fetcher, copy, value, places, feature_parts(copy, value, columns), out)
    for place, first in again:
        out[place] = out[first]


def read_copy(
    fetcher: ChunkFetcher,
    copy: Copy,
    value: str,
    places: Mapping[str, int],
    features: Sequence[Part],
    out: np.ndarray,
) -> None:
    """Read samples that one copy holds into rows of an output array; what that cost is logged at debug level.

    Args:
        fetcher, copy, value: the array to read.
        places: row of the output for each sample.
        features: returned by :func:`feature_parts`.
        out: (rows, features) of the stored dtype. Whole chunks are decoded in place if its rows are contiguous.
    """
    started = time.perf_counter()
    layout = copy.layouts[value]
    by_rows = layout.sample_axis == 0
    path, (down, across) = copy.path(value), layout.chunks
    positions = np.array([copy.positions[sample_id] for sample_id in places], np.int64)
    to_rows = np.array(list(places.values()), np.int64)
    name_at = dict(zip(places.values(), places, strict=True))
    chunks: list[WantedChunk] = []
    for samples in parts(positions, to_rows, layout.chunk[layout.sample_axis]):
        rows = [samples.to] if isinstance(samples.to, int) else np.r_[samples.to].tolist()
        more = f" and {len(rows) - 1} others" if len(rows) > 1 else ""
        label = f"{value} of sample {name_at[rows[0]]!r}{more}"
        for part in features:
            one, other = (samples, part) if by_rows else (part, samples)
            shard = f"{path}/c/{one.number // down}/{other.number // across}"
            number = one.number % down * across + other.number % across
            inside, to = outer(one.inside, other.inside), outer(one.to, other.to)
            chunks.append(WantedChunk(shard, number, inside, to, one.whole and other.whole, label))
    cost = fetcher.read(layout, chunks, out if by_rows else out.T)
    ms = (time.perf_counter() - started) * 1e3
    text = "%s: %s of %d samples x %d features from %s: %s, %.1f ms"
    logger.debug(text, fetcher.url, value, len(places), out.shape[1], "rows" if by_rows else "columns", cost, ms)


def _expected_cost(copy: Copy, value: str, positions: np.ndarray, columns: np.ndarray) -> ReadCost:
    """Estimated cost of :func:`read_copy`, from the average size of the chunks.

    Args:
        copy, value: what to read.
        positions: (samples,) where the samples lie in the copy.
        columns: (features,) indices of the features.
    """
    layout = copy.layouts[value]
    height, width = layout.chunk[layout.sample_axis], layout.chunk[layout.feature_axis]
    chunks_across = math.ceil(layout.shape[layout.feature_axis] / width)
    across = np.unique(columns // width)
    runs = 1 + int(np.count_nonzero(np.diff(across) > 1))  # neighbouring chunks of a shard are one request
    along = np.unique(positions // height)
    expected = ReadCost()
    for block in copy.blocks:
        first, length = block.first // height, math.ceil(len(block.sample_ids) / height)
        count = int(np.count_nonzero((along >= first) & (along < first + length)))
        chunk_bytes = block.bytes[value] / (length * chunks_across)
        expected.add(count * runs, round(count * len(across) * chunk_bytes))
    return expected
