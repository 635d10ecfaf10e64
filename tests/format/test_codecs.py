"""Names and levels of codecs. Frames of pcodec: only those that hold exactly the values of a chunk are decoded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarr_core import ZarrChunkReader, write_sample
from zarr_core.errors import CorruptChunkError, SourceError
from zarr_core.format import codecs
from zarr_core.format.codecs import _LEVELS, Codec
from zarr_core.points.store.settings import ConversionSettings


@pytest.mark.parametrize("text", ["", "gzip", "zstd:x", "zstd:23", "blosc-lz4:10", "zstd:-1", "none:1"])
def test_a_codec_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="codec"):
        Codec.parse(text)


def test_the_help_of_conversions_names_every_codec() -> None:
    (described,) = re.findall(r"codec: (.*?)\n +shuffle_seed:", ConversionSettings.__doc__ or "", re.DOTALL)
    assert [name for name in _LEVELS if name not in described] == []


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_values_survive(dtype: str) -> None:
    values = np.random.default_rng(0).normal(0, 100, (50, 3)).astype(dtype)
    found = np.empty_like(values)
    codecs.decompress_pcodec(codecs.compress_pcodec(values, 8), found)
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("count", [1, 49, 51, 100_000])
def test_another_number_of_values_is_refused(count: int) -> None:
    frame = codecs.compress_pcodec(np.arange(count, dtype="int32"), 8)
    with pytest.raises(ValueError, match="its frame does not end after 50 values"):
        codecs.decompress_pcodec(frame, np.empty(50, "int32"))


def test_damaged_frames_are_refused() -> None:
    frame = codecs.compress_pcodec(np.arange(50, dtype="int32"), 8)
    for damaged in (b"", b"x", frame[:-3], frame[3:], b"\0" * len(frame)):
        with pytest.raises(ValueError, match="."):
            codecs.decompress_pcodec(damaged, np.empty(50, "int32"))
    with pytest.raises(ValueError, match="."):
        codecs.decompress_pcodec(frame, np.empty(50, "float64"))


@pytest.mark.parametrize("engine", ["direct", "zarr"])
@pytest.mark.parametrize("bounds", [{}, {"surface_pressure": 0.1}])
def test_a_chunk_that_claims_more_values_than_it_has_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Any, bounds: dict[str, Any]
) -> None:
    """A few bytes of pcodec can hold terabytes of zeros."""
    compress = codecs.compress_pcodec
    monkeypatch.setattr(codecs, "compress_pcodec", lambda values, level: compress(np.zeros(10**6, values.dtype), level))
    arrays = {"surface_position": np.ones((20, 3), "f4"), "surface_pressure": np.arange(20.0)}
    write_sample(tmp_path, "a", arrays, codec="pcodec", max_errors=bounds)
    with pytest.raises(CorruptChunkError, match="a, surface_position: points 0 to 20 cannot be read"):
        ZarrChunkReader(tmp_path, engine=engine).read_sample("a")
