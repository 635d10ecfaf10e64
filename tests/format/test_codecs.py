"""Names and levels of codecs."""

from __future__ import annotations

import pytest

from zarr_core.errors import SourceError
from zarr_core.format.codecs import Codec


@pytest.mark.parametrize("text", ["", "gzip", "zstd:x", "zstd:23", "blosc-lz4:10", "zstd:-1", "none:1"])
def test_a_codec_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="codec"):
        Codec.parse(text)
