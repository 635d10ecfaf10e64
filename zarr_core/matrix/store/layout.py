"""Chunk layout of a two-dimensional array: its cells in chunks and shards of plain Zarr v3, NaN for missing cells.

A shard holds its chunks in row-major order and without gaps, so the chunks of consecutive rows are one byte range.
``zarr_core.format.shards`` writes and reads the bytes; there a shard is a sequence of chunks of any shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarr_core._util.cached import cached_property
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.codecs import Codec
from zarr_core.format.shards import encode_shard


@dataclass(frozen=True)
class ChunkLayout:
    """Chunk layout of one array.

    Attributes:
        shape: cells along each axis.
        chunk: cells of a chunk along each axis.
        shard: cells of a shard along each axis, multiples of the chunk's.
        dtype: stored NumPy dtype, a float.
        codec: compressor of each chunk.
        axes: names of the two axes, as in ("sample", "feature").
    """

    shape: tuple[int, int]
    chunk: tuple[int, int]
    shard: tuple[int, int]
    dtype: str
    codec: Codec
    axes: tuple[str, str]

    @cached_property
    def chunks(self) -> tuple[int, int]:
        """Chunks of a shard along each axis."""
        return self.shard[0] // self.chunk[0], self.shard[1] // self.chunk[1]

    @cached_property
    def flat(self) -> ArrayLayout:
        """Layout of a shard as a one-dimensional sequence of its chunks."""
        cells = self.chunk[0] * self.chunk[1]
        in_shard = cells * self.chunks[0] * self.chunks[1]
        return ArrayLayout(in_shard, 1, cells, in_shard, self.dtype, self.codec)

    @property
    def sample_axis(self) -> int:
        """Number of the axis along which the samples lie."""
        return self.axes.index("sample")

    @property
    def feature_axis(self) -> int:
        """Number of the axis along which the features lie."""
        return self.axes.index("feature")

    @property
    def shards_across(self) -> int:
        """Shards along the axis of the features."""
        return -(-self.shape[self.feature_axis] // self.shard[self.feature_axis])

    def to_zarr_json(self) -> dict[str, Any]:
        """The ``zarr.json`` of an array of this shape."""
        metadata = self.flat.to_zarr_json()
        metadata["codecs"][0]["configuration"]["chunk_shape"] = list(self.chunk)
        return metadata | {
            "shape": list(self.shape),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.shard)}},
            "fill_value": "NaN",
            "dimension_names": list(self.axes),
        }

    def encode_blocks(self, blocks: Iterable[np.ndarray]) -> Iterator[bytes]:
        """One shard object, piece by piece. Chunks of NaN alone are not stored.

        Args:
            blocks: at most one shard's cells, of the stored dtype, in blocks of rows; all but the last have whole rows
                of chunks. The rest of the shard is missing.
        """
        return encode_shard(self.flat, (chunk for cells in blocks for chunk in self._chunks(cells)))

    def _chunks(self, cells: np.ndarray) -> Iterator[np.ndarray | None]:
        height, width = self.chunk
        for top in range(0, len(cells), height):
            for left in range(0, self.shard[1], width):
                yield self._chunk(cells[top : top + height, left : left + width])

    def _chunk(self, cells: np.ndarray) -> np.ndarray | None:
        missing = np.isnan(cells)
        if missing.all():
            return None
        if cells.shape != self.chunk or missing.any():  # NaN of one payload, so that equal cells are equal bytes
            padded = np.full(self.chunk, np.nan, self.dtype)
            np.copyto(padded[: cells.shape[0], : cells.shape[1]], cells, where=~missing)
            cells = padded
        return np.ascontiguousarray(cells).reshape(-1, 1)
