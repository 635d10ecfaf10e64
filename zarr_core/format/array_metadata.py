"""Zarr v3 metadata of arrays and sample groups.

An array of shape (n_points, dim) is split along its points into chunks. A shard is one object that holds consecutive
chunks (``sharding_indexed`` of the Zarr v3 specification). In a packed group, each chunk is an object of its own, an
entry of the archive. Any Zarr v3 reader opens the result.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zarr_core._util.documents import expect
from zarr_core.errors import SourceError, StoreError
from zarr_core.format.codecs import LITTLE_ENDIAN, Codec
from zarr_core.format.names import check_relative_path

VALUE_DTYPES = ("float16", "float32", "float64")
COORDS_DTYPE = "float32"
# Stored dtype of all other fields, unless another one is chosen.
VALUES_DTYPE = "float16"
# Dtype of the values of a field with an error bound.
BOUNDED_DTYPE = "float32"

# Upper limits per array. They protect the reader's memory against hostile metadata.
MAX_CHUNKS = 1 << 22
MAX_POINTS = 10**12
MAX_COMPONENTS = 10_000
MAX_CHUNK_BYTES = 2**31 - 1  # also Blosc's limit

CHECKSUM_BYTES = 4
_CRC32C = {"name": "crc32c"}
_KEY_ENCODING = {"name": "default", "configuration": {"separator": "/"}}


@dataclass(frozen=True)
class ArrayLayout:
    """Chunks and shards of one array.

    Attributes:
        n_points: points of the sample in this domain.
        dim: components per point.
        chunk_points: points in a chunk; the last chunk is padded with zeros to this size.
        shard_points: points in a shard, a multiple of ``chunk_points``; equal to it without shards.
        dtype: stored NumPy dtype, little-endian.
        codec: compressor of each chunk.
        checksum: whether each chunk ends with its crc32c.
        units: of the values, as the attribute ``units`` of the CF conventions; "" if they are not known.
        domain: of the field, for the names of the dimensions; "" writes none. Readers of this library ignore them.
        sharded: whether chunks lie in shards; otherwise each is an object.
        max_error: bound of the difference of a stored value and its source, as the attribute ``max_error``; None: there
            is none.
    """

    n_points: int
    dim: int
    chunk_points: int
    shard_points: int
    dtype: str
    codec: Codec
    checksum: bool = True
    units: str = field(default="", compare=False)
    domain: str = field(default="", compare=False)
    sharded: bool = True
    max_error: float | None = None

    @property
    def n_chunks(self) -> int:
        """Chunks of the array, including a shorter last one."""
        return -(-self.n_points // self.chunk_points)

    @property
    def chunks_per_shard(self) -> int:
        """Entries in a shard's index."""
        return self.shard_points // self.chunk_points

    @property
    def n_shards(self) -> int:
        """Number of shards, each one object."""
        return -(-self.n_chunks // self.chunks_per_shard)

    @property
    def index_bytes(self) -> int:
        """Size of the index at the end of each shard; 0 without shards."""
        if not self.sharded:
            return 0
        return 16 * self.chunks_per_shard + CHECKSUM_BYTES

    @property
    def is_straight(self) -> bool:
        """Whether the stored bytes of a chunk are its rows in memory, then its checksum."""
        return self.codec.name == "none" and self.checksum and sys.byteorder == "little"

    @property
    def excess(self) -> str:
        """What exceeds the limits of a store, which no reader opens; "" if nothing does."""
        limits = {
            "points": (self.n_points, MAX_POINTS),
            "components per point": (self.dim, MAX_COMPONENTS),
            "chunks": (max(self.n_chunks, self.chunks_per_shard), MAX_CHUNKS),
            "bytes per chunk": (self.chunk_points * self.dim * np.dtype(self.dtype).itemsize, MAX_CHUNK_BYTES),
        }
        return ", ".join(f"{n:,} {what} (maximum {most:,})" for what, (n, most) in limits.items() if n > most)

    def shard_key(self, shard: int) -> str:
        """Object name of a shard, or of a chunk without shards, below the array's path."""
        return f"c/{shard}/0"

    def object_key(self, shard: int) -> str:
        """What messages call the object that holds a shard."""
        return self.shard_key(shard) if self.sharded else "the archive"

    def to_zarr_json(self) -> dict[str, Any]:
        """The array's ``zarr.json``."""
        codecs = self.codec.to_zarr_json(self.dtype)
        if self.checksum:
            codecs.append(_CRC32C)
        if self.sharded:
            sharding = {
                "chunk_shape": [self.chunk_points, self.dim],
                "codecs": codecs,
                "index_codecs": [LITTLE_ENDIAN, _CRC32C],
                "index_location": "end",
            }
            codecs = [{"name": "sharding_indexed", "configuration": sharding}]
        # Equal names have equal lengths.
        names = {"dimension_names": [f"{self.domain}_points", f"components_{self.dim}"]} if self.domain else {}
        attributes: dict[str, Any] = {"units": self.units} if self.units else {}
        if self.max_error is not None:
            attributes["max_error"] = self.max_error
        return {
            "shape": [self.n_points, self.dim],
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.shard_points, self.dim]}},
            "chunk_key_encoding": _KEY_ENCODING,
            "fill_value": 0.0,
            "codecs": codecs,
            "attributes": attributes,
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        } | names

    @classmethod
    def from_zarr_json(cls, metadata: Mapping[str, Any]) -> ArrayLayout:
        """Read an array's ``zarr.json``; raises StoreError unless it is a layout that this library writes."""
        try:
            n_points, dim = metadata["shape"]
            shard_points, shard_dim = metadata["chunk_grid"]["configuration"]["chunk_shape"]
            dtype, fill_value = metadata["data_type"], metadata["fill_value"]
            key_encoding = metadata["chunk_key_encoding"]
            (chunk_points, chunk_dim), codecs, sharded = _chunks_of(metadata)
            max_error = expect(dict, metadata.get("attributes", {}), "attributes").get("max_error")
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"array metadata is incomplete or not sharded: {error!r}") from error
        if not (
            key_encoding == _KEY_ENCODING
            and dtype in VALUE_DTYPES
            and dim == shard_dim == chunk_dim
            and all(type(count) is int and count > 0 for count in (n_points, dim, chunk_points, shard_points))
            and shard_points % chunk_points == 0
            and fill_value == 0
            and not metadata.get("storage_transformers")
            and (max_error is None or (type(max_error) is float and 0 <= max_error < math.inf))
        ):
            raise StoreError("this library does not write such an array layout; read the array with zarr-python")
        checksum = bool(codecs) and codecs[-1] == _CRC32C
        codec = Codec.from_zarr_json(codecs[:-1] if checksum else codecs)
        if codec.scale is not None and dtype != BOUNDED_DTYPE:
            raise StoreError(f"an array of {dtype} has scaled values; read the array with zarr-python")
        grid = n_points, dim, chunk_points, shard_points
        layout = cls(*grid, dtype, codec, checksum, sharded=sharded, max_error=max_error)
        if layout.excess:
            raise StoreError(f"array of {layout.excess} exceeds the limits of a store")
        return layout


def _chunks_of(metadata: Mapping[str, Any]) -> tuple[list[int], list[Any], bool]:
    """Shape and codecs of an array's chunks, and whether they lie in shards; raises ValueError and LookupError."""
    codecs = expect(list, metadata["codecs"], "codecs")
    if len(codecs) > 1:
        if codecs[-1] != _CRC32C:
            raise ValueError("its chunks have no checksums")
        return metadata["chunk_grid"]["configuration"]["chunk_shape"], codecs, False
    (codec,) = codecs
    sharding = expect(dict, codec["configuration"], "configuration")
    index_codecs = [each["name"] for each in sharding["index_codecs"]]
    if (codec["name"], sharding.get("index_location", "end")) != ("sharding_indexed", "end"):
        raise ValueError(f"codec {codec['name']!r:.40}")
    if index_codecs != ["bytes", "crc32c"]:
        raise ValueError(f"codecs of the shard index {index_codecs!r:.80}")
    return sharding["chunk_shape"], expect(list, sharding["codecs"], "codecs of a shard"), True


def group_zarr_json(attributes: Mapping[str, Any], arrays: Mapping[str, ArrayLayout]) -> dict[str, Any]:
    """A sample group's ``zarr.json``, with the metadata of its arrays, by name ("surface/position"), inlined."""
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
    match group:
        case {"consolidated_metadata": {"metadata": dict(below)}}:
            pass
        case _:
            raise StoreError("group metadata is damaged: it lists no arrays")
    arrays = {}
    for name, metadata in below.items():
        if not isinstance(metadata, dict) or "node_type" not in metadata:
            raise StoreError(f"group metadata is damaged: {name!r:.100} has no node_type")
        if metadata["node_type"] != "array":
            continue
        try:
            arrays[check_relative_path(name)] = ArrayLayout.from_zarr_json(metadata)
        except SourceError as error:
            raise StoreError(f"group metadata is damaged: {error}") from error
    return arrays
