"""Compressors of chunks: their names, their levels, and their entries in Zarr v3 metadata."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from zarr_core._util.numcodecs import Blosc, Zstd, blosc
from zarr_core.errors import SourceError, StoreError

_BLOSC_HEADER = struct.Struct("<4xI4xI")  # decoded size, frame size
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_DEFAULT_LEVELS = {"blosc-lz4": 5, "blosc-zstd": 3, "zstd": 3, "none": 0}
_MAX_LEVELS = {"blosc-lz4": 9, "blosc-zstd": 9, "zstd": 22, "none": 0}
CODECS = tuple(_DEFAULT_LEVELS)
# Points in random order hardly compress: lz4 stores 5 % less, and a draw from a local disk is then several times slower
# (docs/format.md). Training reads more often than it stores.
DEFAULT_CODEC = "none"
# One thread per worker: workers run side by side, and their output must not depend on the number of cores.
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

    def decoded_bytes(self, data: bytes | np.ndarray, stored: int) -> int:
        """Decoded size according to the header of a frame of ``stored`` bytes; raises ValueError if it is truncated.

        Args:
            data: the frame, or its first 18 bytes.
            stored: length of the whole frame.
        """
        if self._is_blosc:
            if len(data) < _BLOSC_HEADER.size:
                raise ValueError("the compressed bytes are truncated")
            header: Any = data
            decoded, frame = _BLOSC_HEADER.unpack_from(header)
            if frame != stored:  # the decoder would trust it and read beyond the end
                raise ValueError(f"a frame of {frame} bytes in {stored}")
            return int(decoded)
        return stored if self._compressor is None else _zstd_content_size(bytes(data[:18]))

    def decode(self, data: bytes | np.ndarray, out: np.ndarray) -> None:
        """Decompress into a C-contiguous array; raises RuntimeError or ValueError if that fails."""
        # Decoders silently fill part of a buffer, and a damaged frame may claim any size.
        size = self.decoded_bytes(data, len(data))
        if size != out.nbytes:
            raise ValueError(f"decodes to {size} bytes where {out.nbytes} belong")
        if self._is_blosc:
            blosc.decompress(data, out)  # Blosc.decode without its checks of the buffers
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
        """Read a codec chain; raises StoreError for one that this library does not write."""
        match entries:
            case []:
                return _codec("none", 0)
            case [{"name": "zstd", "configuration": {"level": int(level)}}]:
                return _codec("zstd", level)
            case [{"name": "blosc", "configuration": {"cname": ("lz4" | "zstd") as cname, "clevel": int(level)}}]:
                return _codec(f"blosc-{cname}", level)
        raise StoreError(f"this library does not write the compressor {entries}; read the array with zarr-python")


def _zstd_content_size(header: bytes) -> int:
    """Content size of a Zstandard frame (RFC 8878, 3.1.1.1), which every Zarr writer records; raises ValueError."""
    flags = header[4] if len(header) > 4 else 0
    single_segment = flags >> 5 & 1
    at = 5 + (not single_segment) + (0, 1, 2, 4)[flags & 3]
    size = (single_segment, 2, 4, 8)[flags >> 6]
    if not header.startswith(_ZSTD_MAGIC) or size == 0 or len(header) < at + size:
        raise ValueError("not a Zstandard frame with a content size")
    return int.from_bytes(header[at : at + size], "little") + (256 if size == 2 else 0)


@lru_cache(64)
def _codec(name: str, level: int) -> Codec:
    """Equal codecs share one object, because readers keep thousands of layouts."""
    return Codec(name, level)
