"""Zarr v3 metadata of arrays and sample groups: where the points of an array lie, and its ``zarr.json``.

An array of shape (n_points, dim) is cut along its points into chunks; a shard is one object that holds consecutive
chunks (``sharding_indexed`` of the Zarr v3 specification). Any Zarr v3 reader opens the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarr_core.errors import SourceError, StoreError
from zarr_core.format.codecs import Codec
from zarr_core.format.names import check_relative_path

VALUE_DTYPES = ("float16", "float32", "float64")
COORDS_DTYPE = "float32"

# More chunks than this in one array are no store but an attack on the memory of who opens it.
MAX_CHUNKS = 1 << 22
MAX_POINTS = 10**12

CHECKSUM_BYTES = 4


@dataclass(frozen=True)
class ArrayLayout:
    """Where the points of one array lie.

    Attributes:
        n_points: points of the sample in this domain.
        dim: components per point.
        chunk_points: points in a chunk; the last chunk is padded with zeros to this size.
        shard_points: points in a shard, a multiple of ``chunk_points``.
        dtype: stored NumPy dtype, little-endian.
        codec: compressor of each chunk.
        checksum: whether each chunk ends with its crc32c.
    """

    n_points: int
    dim: int
    chunk_points: int
    shard_points: int
    dtype: str
    codec: Codec
    checksum: bool = True

    @property
    def n_chunks(self) -> int:
        """Chunks of the array, the ragged last one included."""
        return -(-self.n_points // self.chunk_points)

    @property
    def chunks_per_shard(self) -> int:
        """Entries in a shard's index."""
        return self.shard_points // self.chunk_points

    @property
    def n_shards(self) -> int:
        """Objects that hold the array."""
        return -(-self.n_chunks // self.chunks_per_shard)

    @property
    def index_bytes(self) -> int:
        """Size of the index at the end of each shard."""
        return 16 * self.chunks_per_shard + CHECKSUM_BYTES

    def shard_key(self, shard: int) -> str:
        """Object name of a shard below the array's path."""
        return f"c/{shard}/0"

    def to_zarr_json(self) -> dict[str, Any]:
        """The array's ``zarr.json``."""
        endian = {"name": "bytes", "configuration": {"endian": "little"}}
        crc32c = {"name": "crc32c"}
        compressors = self.codec.to_zarr_json(np.dtype(self.dtype).itemsize)
        sharding = {
            "chunk_shape": [self.chunk_points, self.dim],
            "codecs": [endian, *compressors, *([crc32c] if self.checksum else [])],
            "index_codecs": [endian, crc32c],
            "index_location": "end",
        }
        return {
            "shape": [self.n_points, self.dim],
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.shard_points, self.dim]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0.0,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": {},
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        }

    @classmethod
    def from_zarr_json(cls, metadata: Mapping[str, Any]) -> ArrayLayout:
        """The layout that an array's ``zarr.json`` describes; raises StoreError if this library does not write such."""
        try:
            n_points, dim = metadata["shape"]
            shard_points, shard_dim = metadata["chunk_grid"]["configuration"]["chunk_shape"]
            (sharding,) = metadata["codecs"]
            configuration = sharding["configuration"]
            chunk_points, chunk_dim = configuration["chunk_shape"]
            endian, *compressors = configuration["codecs"]
            checksum = bool(compressors) and compressors[-1]["name"] == "crc32c"
            counts = (n_points, dim, chunk_points, shard_points)
            plain = (
                sharding["name"] == "sharding_indexed"
                and configuration.get("index_location", "end") == "end"
                and endian == {"name": "bytes", "configuration": {"endian": "little"}}
                and [codec["name"] for codec in configuration["index_codecs"]] == ["bytes", "crc32c"]
                and metadata["chunk_key_encoding"] == {"name": "default", "configuration": {"separator": "/"}}
                and metadata["data_type"] in VALUE_DTYPES
                and dim == shard_dim == chunk_dim
                and all(type(count) is int and count > 0 for count in counts)
                and shard_points % chunk_points == 0
                and metadata["fill_value"] == 0
                and not metadata.get("storage_transformers")
            )
            codec = Codec.from_zarr_json(compressors[:-1] if checksum else compressors)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise StoreError(f"array metadata is incomplete or not sharded: {error!r}") from error
        if not plain:
            raise StoreError("array layout is none that this library writes; read the array with zarr-python")
        layout = cls(n_points, dim, chunk_points, shard_points, metadata["data_type"], codec, checksum)
        if max(layout.n_chunks, layout.chunks_per_shard) > MAX_CHUNKS or n_points > MAX_POINTS:
            raise StoreError(f"array of {n_points} points in {layout.n_chunks} chunks: more than any store holds")
        return layout


def group_zarr_json(attributes: Mapping[str, Any], arrays: Mapping[str, ArrayLayout]) -> dict[str, Any]:
    """A sample group's ``zarr.json``, with the metadata of all that lies below it inlined.

    Args:
        attributes: the group's attributes.
        arrays: layout by array name ("surface/position").
    """
    below: dict[str, Any] = {name.partition("/")[0]: EMPTY_GROUP for name in arrays}
    below |= {name: layout.to_zarr_json() for name, layout in arrays.items()}
    return {
        "attributes": dict(attributes),
        "zarr_format": 3,
        "node_type": "group",
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": dict(sorted(below.items()))},
    }


EMPTY_GROUP: dict[str, Any] = {"attributes": {}, "zarr_format": 3, "node_type": "group"}


def group_arrays(group: Mapping[str, Any]) -> dict[str, ArrayLayout]:
    """Layout by array name, from a sample group's ``zarr.json``; raises StoreError."""
    try:
        below = group["consolidated_metadata"]["metadata"]
        return {
            check_relative_path(name): ArrayLayout.from_zarr_json(metadata)
            for name, metadata in below.items()
            if metadata["node_type"] == "array"
        }
    except (KeyError, TypeError, AttributeError, SourceError) as error:
        raise StoreError(f"group metadata is damaged: {error!r}") from error
