"""Names and levels of codecs."""

from __future__ import annotations

import re

import pytest

from zarr_core.errors import SourceError
from zarr_core.format.codecs import _LEVELS, Codec
from zarr_core.points.store.settings import ConversionSettings


@pytest.mark.parametrize("text", ["", "gzip", "zstd:x", "zstd:23", "blosc-lz4:10", "zstd:-1", "none:1"])
def test_a_codec_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="codec"):
        Codec.parse(text)


def test_the_help_of_conversions_names_every_codec() -> None:
    (described,) = re.findall(r"codec: (.*?)\n +shuffle_seed:", ConversionSettings.__doc__ or "", re.DOTALL)
    assert [name for name in _LEVELS if name not in described] == []
