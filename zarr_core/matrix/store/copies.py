"""The two copies of a matrix: the chunks of their arrays in plain Zarr v3, and where the samples lie in them.

A shard holds its chunks in row-major order and without gaps, so the chunks of consecutive rows are one byte range.
``zarr_core.format.shards`` writes and reads the bytes; there a shard is a sequence of chunks of any shape. Missing
cells are NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from zarr_core._util.cached import cached_property
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.codecs import Codec
from zarr_core.format.shards import encode_shard

#: Ending of the column-major arrays' names.
COLUMNS = "_columns"


@dataclass(frozen=True)
class ChunkLayout:
    """Chunk layout of one array.

    Attributes:
        shape: cells along each axis.
        chunk: cells of a chunk along each axis.
        shard: cells of a shard along each axis, multiples of the chunk's.
        dtype: stored NumPy dtype, a float.
        codec: compressor of each chunk.
        sample_axis: number of the axis along which the samples lie, 0 or 1; the features lie along the other one.
    """

    shape: tuple[int, int]
    chunk: tuple[int, int]
    shard: tuple[int, int]
    dtype: str
    codec: Codec
    sample_axis: int

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
    def feature_axis(self) -> int:
        """Number of the axis along which the features lie."""
        return 1 - self.sample_axis

    def to_zarr_json(self) -> dict[str, Any]:
        """The ``zarr.json`` of an array of this shape."""
        metadata = self.flat.to_zarr_json()
        metadata["codecs"][0]["configuration"]["chunk_shape"] = list(self.chunk)
        return metadata | {
            "shape": list(self.shape),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.shard)}},
            "fill_value": "NaN",
            "dimension_names": ["sample", "feature"] if self.sample_axis == 0 else ["feature", "sample"],
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


class Block(NamedTuple):
    """Samples that were written together and lie one after another, from the first position of a shard on.

    Attributes:
        first: position of the first sample.
        sample_ids: samples in the order of their positions.
        bytes: stored bytes by value.
    """

    first: int
    sample_ids: Sequence[str]
    bytes: Mapping[str, int]


@dataclass(frozen=True)
class Copy:
    """One copy of a matrix: an array for each value table, with the samples along one of the two axes.

    Attributes:
        name: "row-major" or "column-major".
        layouts: chunk layout by value.
        blocks: the samples that the copy holds.
    """

    name: str
    layouts: Mapping[str, ChunkLayout]
    blocks: Sequence[Block]

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Position of each sample along the axis of the samples."""
        found: dict[str, int] = {}
        for block in self.blocks:
            found.update(zip(block.sample_ids, count(block.first), strict=False))
        return found

    @property
    def end(self) -> int:
        """The first position after all samples."""
        return max((block.first + len(block.sample_ids) for block in self.blocks), default=0)

    @property
    def shard_samples(self) -> int:
        """Samples of a shard."""
        layout = next(iter(self.layouts.values()))
        return layout.shard[layout.sample_axis]

    def shards_of(self, samples: int) -> int:
        """Number of shards that a block of ``samples`` samples takes. Each block begins a new shard."""
        return -(-samples // self.shard_samples)

    def path(self, value: str) -> str:
        """Path of the array of a value."""
        return f"{value}{COLUMNS if self.name == 'column-major' else ''}.zarr"

    def shard_name(self, value: str, along: int, across: int = 0) -> str:
        """Full name of a shard, by its numbers along the samples and across them."""
        first, second = (along, across) if self.layouts[value].sample_axis == 0 else (across, along)
        return f"{self.path(value)}/c/{first}/{second}"

    def shards(self, blocks: Iterable[Block] | None = None) -> Iterator[tuple[str, ChunkLayout]]:
        """Name and layout of every shard that holds samples of the blocks; by default of all."""
        for block in self.blocks if blocks is None else blocks:
            start = block.first // self.shard_samples
            for value, layout in self.layouts.items():
                across = -(-layout.shape[layout.feature_axis] // layout.shard[layout.feature_axis])
                for along in range(start, start + self.shards_of(len(block.sample_ids))):
                    for number in range(across):
                        yield self.shard_name(value, along, number), layout
