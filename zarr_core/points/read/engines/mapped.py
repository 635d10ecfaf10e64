"""Finds points in maps of local files. A chunk must have been read, and its checksum compared, before they are copied.

The path of later epochs over data that fit into memory: Python's part is a few microseconds per field, so that nothing
here is more general than it must be. What cannot be copied is read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from zarr_core.points.read.engines.sample_metadata import KnownSample
from zarr_core.points.read.plan import chunk_spans
from zarr_core.points.read.sampling import Draw
from zarr_core.points.read.selection import SelectedColumn
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.storage.byte_ranges import LocalObjects
from zarr_core.storage.local_files import LOOK_AGAIN, MappedChunks


class MappedSample:
    """The arrays of a sample, mapped when they are first wanted."""

    def __init__(self, files: LocalObjects, known: KnownSample, entry: SampleEntry) -> None:
        self._files, self._known, self._entry = files, known, entry
        self._arrays: dict[str, MappedChunks] = {}
        # The columns that were copied last, nearly always the same; the stream and array of each; and when the sizes
        # of their files were looked at. Replaced as one, for threads.
        self._last: tuple[Sequence[SelectedColumn], list[tuple[str, MappedChunks]], float] = [], [], -math.inf

    def pieces(self, columns: Sequence[SelectedColumn], draws: Mapping[str, Draw]) -> list[list[np.ndarray]] | None:
        """The points of columns of a sample, drawn by stream.

        For each column its points in parts, one after another, each (points, dim) in a map, to be copied at once; None
        if they must be read: a chunk was not verified yet, an array cannot be mapped, or a file has shrunk.
        """
        of_columns, arrays, looked = self._last
        if of_columns is not columns:
            arrays = []
            for selected in columns:
                array = self._array(selected)
                if array is None:
                    return None
                arrays.append((selected.stream, array))
            looked = -math.inf
        now = time.monotonic()
        if now - looked >= LOOK_AGAIN:
            for _, array in arrays:
                if array.file_size() < array.size:
                    return None
            self._last = columns, arrays, now
        wanted: dict[str, list[tuple[int, slice]]] = {}
        for stream, drawn in draws.items():
            spans = chunk_spans(drawn.runs, drawn.chunk_points)
            wanted[stream] = [(chunk, slice(first, last)) for chunk, first, last in spans]
        pieces = []
        for stream, (_, _, chunks, verified) in arrays:
            parts = []
            for points in wanted[stream]:
                if not verified[points[0]]:
                    return None
                parts.append(chunks[points])
            pieces.append(parts)
        return pieces

    def _array(self, selected: SelectedColumn) -> MappedChunks | None:
        name, column = selected.column.array_name, selected.column
        mapped = self._arrays.get(name)
        array = self._known.arrays.get(name)
        if mapped is not None or array is None or array.accepted is not self._entry:
            return mapped
        layout, index = array.layout, array.index
        if index is None or not array.is_straight:
            return None
        # Draws have the chunks of the manifest.
        if layout.n_shards > 1 or layout.chunk_points != self._entry.domains[selected.domain].chunk_points:
            return None
        # So are dtype and width of the output, which may be others in stores of an earlier version.
        if (layout.dtype, layout.dim) != (column.dtype, column.dim):
            return None
        # A map has one distance from each chunk to the next.
        starts = index.starts
        step = starts[1] - starts[0] if len(starts) > 1 else array.chunk_bytes
        if step < array.chunk_bytes or (np.diff(starts) != step).any():
            return None
        shape = layout.chunk_points, layout.dim
        file = self._files.map(array.shard_name(0))
        if file is None:
            return None
        verified = array.verified(0, file.identity)
        mapped = MappedChunks.of(file, layout.n_chunks, shape, array.dtype, verified, starts[0], step)
        if mapped is not None:
            self._arrays[name] = mapped
        return mapped
