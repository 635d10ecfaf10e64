"""How arrays become bytes: Zarr v3 metadata, codecs, chunks and shards.

An array of shape (n_points, dim) is cut along its points into chunks; a shard is one object that holds consecutive
chunks, each compressed and followed by its crc32c, and ends with the index of their byte ranges (``sharding_indexed``
of the Zarr v3 specification). Everything here is plain Zarr: any Zarr v3 reader opens the result.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import google_crc32c
import numpy as np
from numcodecs import Blosc, Zstd, blosc

from zarr_core.errors import CorruptChunkError, SourceError, StoreError
from zarr_core.format.names import check_relative_path

VALUE_DTYPES = ("float16", "float32", "float64")
COORDS_DTYPE = "float32"

# More chunks than this in one array are no store but an attack on the memory of who opens it.
MAX_CHUNKS = 1 << 22
MAX_POINTS = 10**12

CHECKSUM_BYTES = 4
_BLOSC_HEADER = struct.Struct("<4xI4xI")  # bytes that the frame decodes to, and bytes of the frame
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ABSENT = np.uint64(2**64 - 1)  # what the shard index holds for a chunk that was never written
_DEFAULT_LEVELS = {"blosc-lz4": 5, "blosc-zstd": 3, "zstd": 3, "none": 0}
_MAX_LEVELS = {"blosc-lz4": 9, "blosc-zstd": 9, "zstd": 22, "none": 0}
CODECS = tuple(_DEFAULT_LEVELS)
# One thread a worker: several workers convert side by side, and a worker must not depend on the cores of its machine.
blosc.use_threads = False


@dataclass(frozen=True)
class Codec:
    """A compressor by name: "blosc-lz4", "blosc-zstd" (both with byte shuffle), "zstd" or "none", and its level."""

    name: str
    level: int

    @classmethod
    def parse(cls, text: str) -> Codec:
        """Read "name" or "name:level"; raises SourceError."""
        name, _, level = text.partition(":")
        if name not in _DEFAULT_LEVELS or (level and not level.isdecimal()):
            raise SourceError(f"codec {text!r}: use one of {', '.join(_DEFAULT_LEVELS)}, with or without :level")
        codec = cls(name, int(level) if level else _DEFAULT_LEVELS[name])
        if codec.level > _MAX_LEVELS[name]:
            raise SourceError(f"codec {text!r}: the highest level of {name} is {_MAX_LEVELS[name]}")
        return codec

    def __str__(self) -> str:
        return self.name if self.name == "none" else f"{self.name}:{self.level}"

    @cached_property
    def _is_blosc(self) -> bool:
        return self.name.startswith("blosc")

    @cached_property
    def _compressor(self) -> Any:
        match self.name:
            case "none":
                return None
            case "zstd":
                return Zstd(level=self.level)
            case name:
                return Blosc(cname=name.removeprefix("blosc-"), clevel=self.level, shuffle=Blosc.SHUFFLE)

    def encode(self, chunk: np.ndarray) -> bytes:
        """Compressed bytes of a C-contiguous array."""
        return chunk.tobytes() if self._compressor is None else bytes(self._compressor.encode(chunk))

    def decoded_bytes(self, data: bytes | np.ndarray) -> int:
        """How many bytes the data decode to, as their own header says; raises ValueError where they are cut off."""
        if self._is_blosc:
            if len(data) < _BLOSC_HEADER.size:
                raise ValueError("the compressed bytes are cut off")
            header: Any = data
            decoded, frame = _BLOSC_HEADER.unpack_from(header)
            if frame != len(data):  # the decoder would believe it, and read on behind the end
                raise ValueError(f"a frame of {frame} bytes in {len(data)}")
            return int(decoded)
        return len(data) if self._compressor is None else _zstd_content_size(bytes(data[:18]))

    def decode(self, data: bytes | np.ndarray, out: np.ndarray) -> None:
        """Decompress straight into a C-contiguous array; raises RuntimeError or ValueError where it cannot."""
        # Decoders fill a part of a buffer silently, and a frame may claim any size.
        if self.decoded_bytes(data) != out.nbytes:
            raise ValueError(f"decodes to {self.decoded_bytes(data)} bytes where {out.nbytes} belong")
        if self._is_blosc:
            blosc.decompress(data, out)  # what Blosc.decode ends up with, less a look at each buffer
        elif self._compressor is not None:
            self._compressor.decode(data, out)
        else:
            out.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)

    def to_zarr_json(self, itemsize: int) -> list[dict[str, Any]]:
        """Entries for the codec chain of an array's metadata."""
        match self.name:
            case "none":
                return []
            case "zstd":
                return [{"name": "zstd", "configuration": {"level": self.level, "checksum": False}}]
            case name:
                configuration = {
                    "typesize": itemsize,
                    "cname": name.removeprefix("blosc-"),
                    "clevel": self.level,
                    "shuffle": "shuffle",
                    "blocksize": 0,
                }
                return [{"name": "blosc", "configuration": configuration}]

    @classmethod
    def from_zarr_json(cls, entries: list[Mapping[str, Any]]) -> Codec:
        """The codec that wrote such a chain; raises StoreError for chains that this library does not write."""
        match entries:
            case []:
                return _codec("none", 0)
            case [{"name": "zstd", "configuration": {"level": int(level)}}]:
                return _codec("zstd", level)
            case [{"name": "blosc", "configuration": {"cname": ("lz4" | "zstd") as cname, "clevel": int(level)}}]:
                return _codec(f"blosc-{cname}", level)
        raise StoreError(f"compressor {entries} is none that this library writes; read the array with zarr-python")


def _zstd_content_size(header: bytes) -> int:
    """Content size of a Zstandard frame (RFC 8878, 3.1.1.1), which every Zarr writer states; raises ValueError."""
    flags = header[4] if len(header) > 4 else 0
    single_segment = flags >> 5 & 1
    at = 5 + (not single_segment) + (0, 1, 2, 4)[flags & 3]
    size = (single_segment, 2, 4, 8)[flags >> 6]
    if not header.startswith(_ZSTD_MAGIC) or size == 0 or len(header) < at + size:
        raise ValueError("no Zstandard frame that says its size")
    return int.from_bytes(header[at : at + size], "little") + (256 if size == 2 else 0)


@lru_cache(64)
def _codec(name: str, level: int) -> Codec:
    """One object for equal codecs: readers keep thousands of layouts."""
    return Codec(name, level)


# Measured on shuffled RANS fields, one core (`python -m benchmarks.codecs`, table in docs/format.md): lz4 decodes four
# times as fast as zstd, zstd stores a tenth less. Training reads more often than it stores.
DEFAULT_CODEC = "blosc-lz4"


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


def encode_chunk(layout: ArrayLayout, points: np.ndarray) -> bytes:
    """Compressed bytes, without checksum, of up to ``chunk_points`` rows of the stored dtype, padded with zeros."""
    if len(points) < layout.chunk_points:
        padded = np.zeros((layout.chunk_points, layout.dim), layout.dtype)
        padded[: len(points)] = points
        points = padded
    return layout.codec.encode(np.ascontiguousarray(points))


def encode_shard(
    layout: ArrayLayout, chunks: Iterable[np.ndarray | None], lengths: list[int] | None = None
) -> Iterator[bytes]:
    """One shard object, piece by piece, from the rows of its chunks in order.

    Args:
        layout: of the array.
        chunks: rows of each chunk; None for one that is not stored, which readers see as the fill value.
        lengths: takes up the stored bytes of each chunk, as they become known.
    """
    index = np.full((layout.chunks_per_shard, 2), _ABSENT, "<u8")
    offset = 0
    for number, points in enumerate(chunks):
        if points is None:
            if lengths is not None:
                lengths.append(0)
            continue
        data = encode_chunk(layout, points)
        length = len(data) + (CHECKSUM_BYTES if layout.checksum else 0)
        index[number] = offset, length
        offset += length
        if lengths is not None:
            lengths.append(length)
        yield data
        if layout.checksum:
            yield _crc32c(data)
    packed = index.tobytes()
    yield packed + _crc32c(packed)


def decode_shard_index(layout: ArrayLayout, tail: bytes) -> np.ndarray:
    """Byte ranges of a shard's chunks from the last ``index_bytes`` of the object.

    Returns:
        (chunks_per_shard, 2) uint64: offset and length; both 2**64 - 1 for a chunk that is not there.

    Raises:
        CorruptChunkError: the index is cut off or its checksum does not match.
    """
    packed, checksum = tail[:-CHECKSUM_BYTES], tail[-CHECKSUM_BYTES:]
    if len(tail) != layout.index_bytes or _crc32c(packed) != checksum:
        raise CorruptChunkError("shard index: checksum mismatch")
    return np.frombuffer(packed, "<u8").reshape(-1, 2)


def decode_chunk(layout: ArrayLayout, data: bytes | np.ndarray) -> np.ndarray:
    """Rows of one chunk, (chunk_points, dim) in the stored dtype, padding included.

    Raises:
        CorruptChunkError: the checksum does not match or the bytes do not decode.
    """
    try:
        points = np.empty((layout.chunk_points, layout.dim), np.dtype(layout.dtype).newbyteorder("<"))
    except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
        raise CorruptChunkError(f"{layout.chunk_points} points of a chunk do not fit in memory") from error
    decode_into(layout, data, points)
    return points


def decode_into(layout: ArrayLayout, data: bytes | np.ndarray, out: np.ndarray) -> None:
    """Decode one chunk into (chunk_points, dim) rows of the stored dtype, C-contiguous.

    Args:
        layout: of the array.
        data: stored bytes of the chunk, uint8 where they are an array.
        out: where the rows go; undefined after an error.

    Raises:
        CorruptChunkError: the checksum does not match or the bytes do not decode.
    """
    if layout.checksum:
        checksum = int.from_bytes(bytes(data[-CHECKSUM_BYTES:]), "little")
        data = data[:-CHECKSUM_BYTES]
        if google_crc32c.value(data) != checksum:
            raise CorruptChunkError("checksum mismatch")
    try:
        layout.codec.decode(data, out)
    except (RuntimeError, ValueError) as error:
        raise CorruptChunkError(f"cannot be decoded: {error}") from error


def check_chunk(layout: ArrayLayout, data: bytes) -> None:
    """Raise CorruptChunkError unless the bytes are those that were written: by checksum, or by decoding without one."""
    if not layout.checksum:
        decode_chunk(layout, data)
    elif _crc32c(data[:-CHECKSUM_BYTES]) != data[-CHECKSUM_BYTES:]:
        raise CorruptChunkError("checksum mismatch")


def is_intact(payload: np.ndarray, checksum: np.ndarray) -> bool:
    """Whether a chunk that is stored without a codec is what was written: its bytes, and the four behind them."""
    return bool(google_crc32c.value(payload) == int.from_bytes(checksum.tobytes(), "little"))


def _crc32c(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(CHECKSUM_BYTES, "little")
