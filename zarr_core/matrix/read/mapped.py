"""Copies cells from maps of local files. Their chunks must have been read, and their checksums compared, before.

The path of later epochs over row-major data without codec that fit into memory: each cell is copied once. What cannot
be copied is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from zarr_core.matrix.read.fetch import ChunkFetcher, KnownShard
from zarr_core.matrix.read.parts import Part, parts
from zarr_core.matrix.store.copies import Copy
from zarr_core.storage.local_files import AT_ONCE_BYTES


def copy_rows(
    fetcher: ChunkFetcher,
    copy: Copy,
    value: str,
    sample_ids: Sequence[str],
    columns: np.ndarray | None,
    out: np.ndarray,
) -> bool:
    """Copy samples of the row-major copy, all of them at once.

    Args:
        fetcher, copy, value: the array.
        sample_ids: of the rows of the output.
        columns: (features,) indices of the features, at least as many as samples; None: all of them.
        out: (samples, features) of the stored dtype.

    Returns:
        False, without a copy, if a sample must be read or has missing chunks, or if there is too much for one copy.
    """
    if out.nbytes > AT_ONCE_BYTES or not out.flags.c_contiguous:
        return False
    if columns is not None and (len(columns) < len(sample_ids) or copy.layouts[value].chunks[1] > 1):
        return False
    known = fetcher.mapped_rows(copy, value)
    rows: list[list[np.ndarray]] = []
    for sample_id in sample_ids:
        row = known.get(sample_id)
        if row is None:
            row = _mapped_row(fetcher, copy, value, sample_id)
            if row is None:
                return False
            known[sample_id] = row
        rows.append(row)
    if columns is None:
        np.concatenate(list(chain.from_iterable(rows)), out=out.reshape(-1))
    else:
        for (whole,), cells in zip(rows, out, strict=True):
            whole.take(columns, out=cells, mode="clip")  # other modes copy twice
    return True


def _mapped_row(fetcher: ChunkFetcher, copy: Copy, value: str, sample_id: str) -> list[np.ndarray] | None:
    """The chunks of a sample; None if one of them must be read or is missing."""
    layout = copy.layouts[value]
    height, across, width = layout.shard[0], layout.chunks[1], layout.chunk[1]
    number, row = divmod(copy.positions.get(sample_id, -1), height)
    shard = fetcher.mapped(copy, value, number)
    if shard is None or shard.mapped is None:
        return None
    _, _, chunks, verified = shard.mapped
    pieces = []
    for chunk in range(row * across, (row + 1) * across):
        if not verified[chunk]:
            return None
        pieces.append(chunks[shard.slots[chunk]])
    pieces[-1] = pieces[-1][: layout.shape[1] - (across - 1) * width]  # the last chunk may be wider than its features
    return pieces


def copy_mapped(
    fetcher: ChunkFetcher,
    copy: Copy,
    value: str,
    positions: np.ndarray,
    to: np.ndarray,
    features: Sequence[Part],
    out: np.ndarray,
) -> np.ndarray:
    """Copy samples of the row-major copy.

    Args:
        fetcher, copy, value: the array.
        positions: (samples,) where the samples lie in the array.
        to: (samples,) their rows in the output.
        features: returned by :func:`feature_parts`.
        out: (rows, features) of the stored dtype.

    Returns:
        The rows of the output that must be read: a chunk was not verified yet, or its file is not mapped.
    """
    layout = copy.layouts[value]
    height, across = layout.shard[0], layout.chunks[1]
    if out.shape[1] < len(to):
        cells = [(number, _indices(inside).tolist(), _indices(to).tolist()) for number, inside, to, _ in features]
        rest: list[np.ndarray] = []
        for samples in parts(positions, to, height):
            shard = fetcher.mapped(copy, value, samples.number)
            if shard is None or not _copy_features(shard, samples, across, cells, out):
                rest.append(np.array([_indices(samples.inside) + samples.number * height, _indices(samples.to)]))
        if not rest:
            return np.empty(0, np.int64)
        positions, to = np.concatenate(rest, axis=1)
    left: list[int] = []
    for place, position in zip(to.tolist(), positions.tolist(), strict=True):
        number, row = divmod(position, height)
        shard = fetcher.mapped(copy, value, number)
        if shard is None or not _copy_sample(shard, row * across, features, out[place]):
            left.append(place)
    return np.array(left, np.int64)


def _copy_sample(shard: KnownShard, first: int, features: Sequence[Part], cells: np.ndarray) -> bool:
    """Copy features of one sample, whose first chunk has a number; False if a chunk was not verified yet."""
    assert shard.mapped is not None
    _, _, chunks, verified = shard.mapped
    for number, inside, to, _ in features:
        slot = shard.slots[first + number]
        if slot < 0:
            cells[to] = np.nan
        elif not verified[first + number]:
            return False
        elif isinstance(inside, slice) or not isinstance(to, slice):
            cells[to] = chunks[slot, inside]
        else:
            chunks[slot].take(inside, out=cells[to], mode="clip")  # other modes copy twice
    return True


def _copy_features(
    shard: KnownShard, samples: Part, across: int, features: Sequence[tuple[int, list[int], list[int]]], out: np.ndarray
) -> bool:
    """Copy a few features of many samples: chunk, cells in it and columns. False if a chunk was not verified yet."""
    assert shard.mapped is not None
    stored, verified, rows = shard.mapped.chunks, shard.mapped.verified, samples.inside
    if shard.slots[len(stored) - 1] != len(stored) - 1:  # a chunk before it is not stored
        return False
    for number, inside, to in features:
        if isinstance(rows, slice):
            chunks: Any = slice(rows.start * across + number, rows.stop * across, across)
            is_verified = 0 not in verified[chunks]
        else:
            chunks = rows * across + number
            is_verified = bool(np.asarray(verified)[chunks].all())
        if not is_verified:
            return False
        for cell, place in zip(inside, to, strict=True):
            out[samples.to, place] = stored[:, cell][chunks]
    return True


def _indices(chosen: Any) -> np.ndarray:
    """An integer, a slice or an array of indices as an array."""
    indices: np.ndarray = chosen if isinstance(chosen, np.ndarray) else np.r_[chosen]
    return indices
