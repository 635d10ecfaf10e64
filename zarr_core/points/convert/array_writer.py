"""Writes the array of one field of a sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from zarr_core.errors import SampleError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.moments import FieldMoments, MomentsAccumulator
from zarr_core.format.names import FieldName
from zarr_core.format.rounding import RoundingAccumulator, RoundingError
from zarr_core.format.shards import encode_shard
from zarr_core.points.convert.stored_values import checked_rounding, is_lossless, not_finite, stored_blocks
from zarr_core.points.store.mesh import Write

if TYPE_CHECKING:
    import torch


class ArrayWriter:
    """Writes the array of one field of a sample: gathered, cast, encoded, and measured on the way.

    Args:
        sample_id: id of the sample.
        name: of the field.
        layout: of the array.
        values: (n_points, dim), in the order of the source.

    Attributes:
        lengths: bytes of each encoded chunk.
    """

    def __init__(self, sample_id: str, name: FieldName, layout: ArrayLayout, values: torch.Tensor) -> None:
        self.lengths: list[int] = []
        self._field = (sample_id, name, layout, values)
        self._moments = MomentsAccumulator()
        exact = layout.codec.scale is None and is_lossless(values, layout.dtype)
        self._rounding = None if exact else RoundingAccumulator(layout.dim)

    def write(self, permutation: np.ndarray, path: str, write: Write) -> int:
        """Write all shards, or all chunks of an array without shards; returns their bytes."""
        layout = self._field[2]
        size = 0
        if not layout.sharded:
            for number, points in enumerate(self._chunks(permutation)):
                size += write(f"{path}/{layout.shard_key(number)}", encode_shard(layout, [points], self.lengths))
            return size
        for shard in range(layout.n_shards):
            rows = permutation[shard * layout.shard_points : (shard + 1) * layout.shard_points]
            pieces = encode_shard(layout, self._chunks(rows), self.lengths)
            size += write(f"{path}/{layout.shard_key(shard)}", pieces)
        return size

    def _chunks(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        _, _, layout, values = self._field
        for points in stored_blocks(values, rows, layout, self._rounding):
            self._moments.add(points)
            for start in range(0, len(points), layout.chunk_points):
                yield points[start : start + layout.chunk_points]

    def check(self) -> tuple[FieldMoments, RoundingError]:
        """The moments and the rounding error of what was written; raises SampleError if it must not be stored."""
        sample_id, name, layout, _ = self._field
        moments = self._moments.result()
        if not np.isfinite([moments.min, moments.max]).all():
            raise not_finite(*self._field)
        if not moments.is_finite:
            largest = max(moments.max.max(), -moments.min.min())
            reason = f"largest value {largest:.6g} is so large that its square is infinite"
            raise SampleError(sample_id, name.canonical, reason, "repair the source, or leave the sample out")
        if self._rounding is None:
            return moments, RoundingError.none(layout.dim)
        return moments, checked_rounding(*self._field, self._rounding, moments)
