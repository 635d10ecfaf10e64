"""Copies points from maps of local files into a batch. A chunk must have been read, and its checksum compared, before.

The path of later epochs over data that fit into memory: Python's part is a few microseconds per field, so that nothing
here is more general than it must be. What cannot be copied is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zarr_core.points.read.engines.sample_metadata import KnownSample
from zarr_core.points.read.plan import chunk_spans
from zarr_core.points.read.sampling import Draw
from zarr_core.points.read.selection import SelectedColumn
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.storage.byte_ranges import LocalObjects


class MappedArray(NamedTuple):
    """An array in one shard that is mapped.

    Attributes:
        file_size: bytes of the file now.
        size: bytes of the file that hold the chunks.
        chunks: (chunks, chunk_points, dim), in the map.
        verified: by chunk number, whether the chunk may be copied.
    """

    file_size: Callable[[], int]
    size: int
    chunks: np.ndarray
    verified: bytearray


class MappedSample:
    """The arrays of a sample, mapped when they are first wanted.

    Args:
        files: of the store.
        known: metadata of the sample.
        entry: its entry in the manifest.
    """

    def __init__(self, files: LocalObjects, known: KnownSample, entry: SampleEntry) -> None:
        self._files, self._known, self._entry = files, known, entry
        self._arrays: dict[str, MappedArray] = {}
        # The columns that were copied last, nearly always the same, and the stream and array of each. Replaced as one,
        # for threads.
        self._last: tuple[Sequence[SelectedColumn], list[tuple[str, MappedArray]]] = [], []

    def copy(self, columns: Sequence[SelectedColumn], draws: Mapping[str, Draw], out: Sequence[np.ndarray]) -> bool:
        """Copy the points of a sample.

        Args:
            columns: the arrays.
            draws: points by stream.
            out: (points, dim) for each column.

        Returns:
            False if they must be read: a chunk was not verified yet, an array cannot be mapped, or a file has shrunk.
        """
        of_columns, arrays = self._last
        if of_columns is not columns:
            arrays = []
            for column in columns:
                array = self._array(column.column.array_name, column.domain)
                if array is None:
                    return False
                arrays.append((column.stream, array))
            self._last = columns, arrays
        wanted = {stream: _wanted(drawn) for stream, drawn in draws.items()}
        for (stream, (file_size, size, chunks, verified)), target in zip(arrays, out, strict=True):
            if file_size() < size:  # beyond the end of a file, a copy ends the process
                return False
            for chunk, stored, rows in wanted[stream]:
                if not verified[chunk]:
                    return False
                target[rows] = chunks[stored]
        return True

    def _array(self, name: str, domain: str) -> MappedArray | None:
        mapped = self._arrays.get(name)
        array = self._known.arrays.get(name)
        if mapped is not None or array is None or not array.is_straight or array.accepted is not self._entry:
            return mapped
        layout = array.layout
        # Draws have the manifest's chunks.
        if layout.n_shards > 1 or layout.chunk_points != self._entry.domains[domain].chunk_points:
            return None
        file = self._files.map(array.shard_name(0))
        size = layout.n_chunks * array.chunk_bytes
        if file is None or len(file) < size:
            return None
        shape = (layout.n_chunks, layout.chunk_points, layout.dim)
        strides = (array.chunk_bytes, array.row_bytes, array.dtype.itemsize)
        chunks: np.ndarray = np.ndarray(shape, array.dtype, file, strides=strides)
        mapped = self._arrays[name] = MappedArray(file.size, size, chunks, array.verified)
        return mapped


def _wanted(drawn: Draw) -> list[tuple[int, tuple[int, slice], slice]]:
    """Chunk numbers, the rows of each in an array of chunks, and their rows in the output."""
    wanted = []
    for chunk, (first, last, to) in chunk_spans(drawn.runs, drawn.chunk_points):
        wanted.append((chunk, (chunk, slice(first, last)), slice(to, to + last - first)))
    return wanted
