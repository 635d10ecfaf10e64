"""Copies points from maps of local files into a batch. A chunk must have been read, and its checksum compared, before.

The path of later epochs over data that fit into memory: Python's part is a few microseconds per field, so that nothing
here is more general than it must be. What cannot be copied is read.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zarr_core.points.read.engines.sample_metadata import KnownSample
from zarr_core.points.read.plan import wanted_rows
from zarr_core.points.read.sampling import Draw
from zarr_core.points.read.selection import SampleDraws, SelectedColumn
from zarr_core.storage.byte_ranges import LocalObjects


class MappedArray(NamedTuple):
    """An array in one shard that is mapped.

    Attributes:
        stream: which draw selects its points.
        file: the map.
        size: bytes of the file that hold the chunks.
        chunks: (chunks, chunk_points, dim), in the map.
        verified: by chunk number, whether the chunk may be copied.
    """

    stream: str
    file: mmap.mmap
    size: int
    chunks: np.ndarray
    verified: bytearray


@dataclass(frozen=True, slots=True)
class MappedSample:
    """The arrays of a sample, in the order of its columns."""

    columns: Sequence[SelectedColumn]
    arrays: Sequence[MappedArray]

    def copy(self, draws: Mapping[str, Draw], number: int, out: Sequence[Sequence[np.ndarray]]) -> bool:
        """Copy the points into place ``number`` of each output.

        Returns:
            False if they must be read, because a chunk was not verified yet or a file has shrunk.
        """
        wanted = {stream: wanted_rows(drawn.runs, drawn.chunk_points) for stream, drawn in draws.items()}
        for (stream, file, size, chunks, verified), rows in zip(self.arrays, out, strict=True):
            target = rows[number]
            if file.size() < size:  # beyond the end of a file, a copy ends the process
                return False
            for chunk, spans in wanted[stream]:
                if not verified[chunk]:
                    return False
                stored = chunks[chunk]
                for first, last, to in spans:
                    target[to : to + last - first] = stored[first:last]
        return True


def map_sample(files: LocalObjects, known: KnownSample, sample: SampleDraws) -> MappedSample | None:
    """Map the arrays of a sample; None if one of them is to be read instead."""
    if not sample.entry.is_ours:  # files of other programs may change
        return None
    arrays = []
    for _, column, domain, stream in sample.columns:
        array = known.arrays.get(column.array_name)
        if array is None or not array.is_straight or array.accepted is not sample.entry or array.layout.n_shards > 1:
            return None
        file = files.map(array.shard_name(0))
        layout = array.layout
        if layout.chunk_points != sample.entry.domains[domain].chunk_points:  # draws have the manifest's chunks
            return None
        size = layout.n_chunks * array.chunk_bytes
        if file is None or len(file) < size:
            return None
        shape = (layout.n_chunks, layout.chunk_points, layout.dim)
        strides = (array.chunk_bytes, array.row_bytes, array.dtype.itemsize)
        chunks: np.ndarray = np.ndarray(shape, array.dtype, file, strides=strides)
        arrays.append(MappedArray(stream, file, size, chunks, array.verified))
    return MappedSample(sample.columns, arrays)
