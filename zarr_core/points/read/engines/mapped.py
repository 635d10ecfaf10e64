"""Copies points from maps of local files into a batch. A chunk must have been read, and its checksum compared, before.

The path of later epochs over data that fit into memory: Python's part is a few microseconds per field, so that nothing
here is more general than it must be. What cannot be copied is read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zarr_core._util import reused_memory
from zarr_core.points.read.engines.sample_metadata import KnownSample
from zarr_core.points.read.sampling import Draw
from zarr_core.points.read.selection import SelectedColumn
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.storage.byte_ranges import LocalObjects
from zarr_core.storage.maps import LOOK_AGAIN, MappedChunks


class MappedSample:
    """The arrays of a sample, mapped when they are first wanted.

    Args:
        files: of the store.
        known: metadata of the sample.
        entry: its entry in the manifest.
    """

    def __init__(self, files: LocalObjects, known: KnownSample, entry: SampleEntry) -> None:
        self._files, self._known, self._entry = files, known, entry
        self._arrays: dict[str, MappedChunks] = {}
        # The columns that were copied last, nearly always the same, and the stream and array of each. Replaced as one,
        # for threads.
        self._last: tuple[Sequence[SelectedColumn], list[tuple[str, MappedChunks]]] = [], []
        # When the sizes of these files were looked at.
        self._looked = -math.inf

    def copy(
        self, columns: Sequence[SelectedColumn], draws: Mapping[str, Draw], out: Sequence[np.ndarray] | None
    ) -> Sequence[np.ndarray] | None:
        """Copy the points of a sample.

        Args:
            columns: the arrays.
            draws: points by stream.
            out: (points, dim) for each column, C-contiguous; new arrays if None.

        Returns:
            The points; None if they must be read: a chunk was not verified yet, an array cannot be mapped, or a file
            has shrunk.
        """
        of_columns, arrays = self._last
        if of_columns is not columns:
            arrays = []
            for selected in columns:
                array = self._array(selected)
                if array is None:
                    return None
                arrays.append((selected.stream, array))
            self._last = columns, arrays
            self._looked = -math.inf
        if out is None:
            out = []
            for _, column, _, stream in columns:
                out.append(reused_memory.empty((draws[stream].num_points, column.dim), column.dtype))
        now = time.monotonic()
        if now - self._looked >= LOOK_AGAIN:
            for _, array in arrays:
                if array.file_size() < array.size:
                    return None
            self._looked = now
        blocks = {stream: _blocks(drawn) for stream, drawn in draws.items()}
        for (stream, (_, _, chunks, verified)), target in zip(arrays, out, strict=True):
            for first, last, rows, to in blocks[stream]:
                if last - first == 1:  # the usual case, in half the time of the other
                    if not verified[first]:
                        return None
                    target[to] = chunks[first, rows]
                    continue
                if 0 in verified[first:last]:
                    return None
                copied = chunks[first:last, rows]
                target[to].reshape(copied.shape)[...] = copied
        return out

    def _array(self, selected: SelectedColumn) -> MappedChunks | None:
        name, column = selected.column.array_name, selected.column
        mapped = self._arrays.get(name)
        array = self._known.arrays.get(name)
        if mapped is not None or array is None or not array.is_straight or array.accepted is not self._entry:
            return mapped
        layout = array.layout
        # Draws have the chunks of the manifest.
        if layout.n_shards > 1 or layout.chunk_points != self._entry.domains[selected.domain].chunk_points:
            return None
        # So are dtype and width of the output, which may be others in stores of an earlier version.
        if (layout.dtype, layout.dim) != (column.dtype, column.dim):
            return None
        shape = layout.chunk_points, layout.dim
        file = self._files.map(array.shard_name(0))
        assert array.index is not None
        mapped = MappedChunks.of(
            file, layout.n_chunks, shape, array.dtype, array.verified, array.index.starts[0], array.step
        )
        if mapped is not None:
            self._arrays[name] = mapped
        return mapped


class _Block(NamedTuple):
    """Points to copy.

    Attributes:
        first, last: half-open range of chunks; several only if they are copied whole.
        rows: rows of each chunk.
        target: rows of the output.
    """

    first: int
    last: int
    rows: slice
    target: slice


def _blocks(drawn: Draw) -> list[_Block]:
    """The points of a draw. Neighbouring chunks that are wanted whole are one copy."""
    size = drawn.chunk_points
    blocks = []
    to = 0
    for start, stop in drawn.runs:
        while start < stop:
            chunk, row = divmod(start, size)
            whole_chunks = 0 if row else (stop - start) // size
            if whole_chunks:
                points = whole_chunks * size
                rows = slice(0, size)
            else:
                points = min(stop - start, size - row)
                rows = slice(row, row + points)
            blocks.append(_Block(chunk, chunk + (whole_chunks or 1), rows, slice(to, to + points)))
            start += points
            to += points
    return blocks
