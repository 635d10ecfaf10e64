"""Codecs of chunks: their names, their levels, and their entries in Zarr v3 metadata.

A field with an error bound is float32 in memory and in the metadata of its array, and integers in its chunks:
``value = integer / scale``. They are int16 if they fit, which is decoded in half the time, else int32. The scale
belongs to the codecs (``numcodecs.fixedscaleoffset``), so that zarr-python and what is built on it decode the values by
themselves, and no reader takes the integers for values.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from zarr_core._util.cached import cached_property
from zarr_core._util.extras import extra
from zarr_core._util.numcodecs import Blosc, Zstd, blosc
from zarr_core.errors import SourceError, StoreError

_BLOSC_HEADER = struct.Struct("<4xI4xI")  # decoded size, frame size
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# The default and the highest level of each codec.
_LEVELS = {
    "blosc-lz4": (5, 9),
    "blosc-zstd": (3, 9),
    "zstd": (3, 22),
    "none": (0, 0),
    "bitshuffle-lz4": (5, 9),
    "bitshuffle-zstd": (3, 9),
    "pcodec": (8, 12),
}
CODECS = tuple(_LEVELS)
# Points in random order hardly compress: lz4 stores 5 % less, and a draw from a local disk is then several times slower
# (docs/format.md). Training reads more often than it stores.
DEFAULT_CODEC = "none"
#: Codec of fields with an error bound where the store has none: integers are to be compressed.
BOUNDED_CODEC = "pcodec"
#: Dtypes of the integers of a field with an error bound, the shortest first.
INTEGERS = ("<i2", "<i4")
#: The codec of numbers as bytes.
LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}
# Options of numcodecs' codec. Neighbouring points are not similar, so that their differences are no shorter.
_PCODEC_OPTIONS = {"mode_spec": "classic", "delta_spec": "none"}
# One thread per worker: workers run side by side, and their output must not depend on the number of cores.
blosc.use_threads = False


@dataclass(frozen=True)
class Codec:
    """How the values of a chunk become bytes.

    Attributes:
        name: "blosc-lz4", "blosc-zstd" (with byte shuffle), "bitshuffle-lz4", "bitshuffle-zstd" (Blosc with bit
            shuffle), "pcodec", "zstd" or "none".
        level: of the compressor.
        scale: of float32 values that are stored as integers, values times the scale; None for values as they are. The
            values must be multiples of 1 / scale, as :mod:`zarr_core.format.bounds` makes them.
        integers: dtype of the integers, "<i2" or "<i4".
    """

    name: str
    level: int
    scale: float | None = None
    integers: str = "<i4"

    @classmethod
    def parse(cls, text: str) -> Codec:
        """Read "name" or "name:level"; raises SourceError."""
        name, _, level = text.partition(":")
        if name not in _LEVELS or (level and not level.isdecimal()):
            raise SourceError(f"codec {text!r}: use one of {', '.join(_LEVELS)}, with or without :level")
        default, highest = _LEVELS[name]
        codec = cls(name, int(level) if level else default)
        if codec.level > highest:
            raise SourceError(f"codec {text!r}: the highest level of {name} is {highest}")
        return codec

    def __str__(self) -> str:
        return self.name if self.name == "none" else f"{self.name}:{self.level}"

    @cached_property
    def _is_blosc(self) -> bool:
        return self.name.startswith(("blosc", "bitshuffle"))

    @cached_property
    def _compressor(self) -> Any:
        if self.name == "zstd":
            return Zstd(level=self.level)
        method, _, cname = self.name.partition("-")
        if not cname:
            return None
        return Blosc(cname, self.level, Blosc.BITSHUFFLE if method == "bitshuffle" else Blosc.SHUFFLE)

    def encode(self, chunk: np.ndarray) -> bytes:
        """Compressed bytes of a C-contiguous array."""
        if self.scale is not None:
            chunk = np.rint(chunk * np.float64(self.scale)).astype(self.integers)
        if self.name == "pcodec":
            return compress_pcodec(chunk, self.level)
        return chunk.tobytes() if self._compressor is None else bytes(self._compressor.encode(chunk))

    def decoded_bytes(self, data: bytes | np.ndarray, stored: int) -> int:
        """Decoded size according to the first 18 bytes of a frame of ``stored`` bytes; raises ValueError."""
        if self._is_blosc:
            if len(data) < _BLOSC_HEADER.size:
                raise ValueError("the compressed bytes are truncated")
            header: Any = data
            decoded, frame = _BLOSC_HEADER.unpack_from(header)
            if frame != stored:  # the decoder would trust it and read beyond the end
                raise ValueError(f"a frame of {frame} bytes in {stored}")
            return int(decoded)
        if self.name == "zstd":
            return _zstd_content_size(bytes(data[:18]))
        return stored

    def decode(self, data: bytes | np.ndarray, out: np.ndarray) -> None:
        """Decompress into a C-contiguous array; raises RuntimeError or ValueError if that fails."""
        if self.scale is None:
            self._decompress(data, out)
            return
        values = out.reshape(-1)
        # int32 numbers are converted in place; NumPy would copy int16 ones first, which overlap with other values.
        integers = values.view("<i4") if self.integers == "<i4" else np.empty(values.shape, self.integers)
        self._decompress(data, integers)
        # In two steps: a division that also casts takes longer than both, by way of NumPy's buffer.
        np.copyto(values, integers, casting="unsafe")
        np.divide(values, np.float32(self.scale), out=values)

    def _decompress(self, data: bytes | np.ndarray, out: np.ndarray) -> None:
        if self.name == "pcodec":
            decompress_pcodec(data, out)
            return
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

    def to_zarr_json(self, dtype: str) -> list[dict[str, Any]]:
        """The codecs of the metadata of an array of this dtype, without its checksum."""
        scaling = []
        if self.scale is not None:
            configuration = {"offset": 0, "scale": self.scale, "dtype": "<f4", "astype": self.integers}
            scaling = [{"name": "numcodecs.fixedscaleoffset", "configuration": configuration}]
        if self.name == "pcodec":
            return [*scaling, {"name": "numcodecs.pcodec", "configuration": {"level": self.level} | _PCODEC_OPTIONS}]
        chain = [*scaling, LITTLE_ENDIAN]
        if self.name == "zstd":
            chain.append({"name": "zstd", "configuration": {"level": self.level, "checksum": False}})
        elif self._is_blosc:
            method, _, cname = self.name.partition("-")
            configuration = {
                "typesize": np.dtype(dtype if self.scale is None else self.integers).itemsize,
                "cname": cname,
                "clevel": self.level,
                "shuffle": "bitshuffle" if method == "bitshuffle" else "shuffle",
                "blocksize": 0,
            }
            chain.append({"name": "blosc", "configuration": configuration})
        return chain

    @classmethod
    def from_zarr_json(cls, entries: Sequence[Mapping[str, Any]]) -> Codec:
        """Read codecs without a checksum; raises StoreError for those that this library does not write."""
        scaling: tuple[float, str] | tuple[()] = ()
        rest: Sequence[Mapping[str, Any]] = entries
        match entries:
            case [
                {"name": "numcodecs.fixedscaleoffset", "configuration": {"scale": float(scale), "astype": astype}},
                *following,
            ] if astype in INTEGERS:
                scaling, rest = (scale, astype), following
        name, level = "", 0
        match rest:
            case [{"name": "numcodecs.pcodec", "configuration": {"level": int(level)}}]:
                name = "pcodec"
            case [{"name": "bytes"}]:
                name = "none"
            case [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": int(level)}}]:
                name = "zstd"
            case [
                {"name": "bytes"},
                {"name": "blosc", "configuration": {"cname": "lz4" | "zstd" as cname, "clevel": int(level)} as blosc_},
            ]:
                method = "bitshuffle" if blosc_.get("shuffle") == "bitshuffle" else "blosc"
                name = f"{method}-{cname}"
        found = _codec(name, level, *scaling) if name else None
        if found is None or not found._describes(entries):
            raise StoreError(f"this library does not write the codecs {entries}; read the array with zarr-python")
        return found

    def _describes(self, entries: Sequence[Mapping[str, Any]]) -> bool:
        """Whether codecs that are not compressors are those that :meth:`to_zarr_json` writes."""
        if self.scale is not None and not 0 < self.scale < math.inf:
            return False
        written = self.to_zarr_json("float32")
        plain = ("bytes", "numcodecs.fixedscaleoffset", "numcodecs.pcodec")
        return all(ours == theirs for ours, theirs in zip(written, entries, strict=True) if ours["name"] in plain)


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
def _codec(name: str, level: int, scale: float | None = None, integers: str = "<i4") -> Codec:
    """Equal codecs share one object, because readers keep thousands of layouts."""
    return Codec(name, level, scale, integers)


def compress_pcodec(values: np.ndarray, level: int) -> bytes:
    """A frame of the values of a C-contiguous array, as numcodecs makes it; raises StoreError without the package."""
    standalone = _pcodec()
    with extra("pcodec", "the codec pcodec needs a version of its package that has ChunkConfig", StoreError):
        from pcodec import ChunkConfig, DeltaSpec, ModeSpec

    config = ChunkConfig(compression_level=level, mode_spec=ModeSpec.classic(), delta_spec=DeltaSpec.none())
    frame: bytes = standalone.simple_compress(values.reshape(-1), config)
    return frame


def decompress_pcodec(data: bytes | np.ndarray, out: np.ndarray) -> None:
    """Decode a frame into a C-contiguous array; raises StoreError without the package.

    numcodecs would not tell whether a frame has as many values as are wanted: ValueError, as for a damaged one.
    """
    standalone = _pcodec()
    try:
        progress = standalone.simple_decompress_into(bytes(data), out.reshape(-1))
    except (RuntimeError, TypeError) as error:
        raise ValueError(str(error)) from error
    if progress.n_processed != out.size or not progress.finished:
        raise ValueError(f"its frame does not end after {out.size} values")


@cache  # importing again takes 4 microseconds, and decoding a chunk of 4,096 values 8
def _pcodec() -> ModuleType:
    with extra("pcodec", "the codec pcodec needs a package", StoreError):
        from pcodec import standalone
    module: ModuleType = standalone
    return module
