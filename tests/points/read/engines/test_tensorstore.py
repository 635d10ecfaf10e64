"""TensorStore as an engine: stores at the root of a bucket, and chunks that claim more bytes than their layout has."""

from __future__ import annotations

from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from tests.helpers.small_source import KIND, write_source
from zarr_core import as_tensorstore
from zarr_core.convert import convert
from zarr_core.errors import CorruptChunkError
from zarr_core.points.read.engines.tensorstore import FrameSizes
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage import Storage


@pytest.mark.parametrize("codec", ["blosc-lz4", "zstd", "none"])
def test_claimed_sizes_are_compared_with_the_layout(tmp_path: Path, codec: str) -> None:
    source = write_source(tmp_path / "source", ("run_1",))
    manifest = convert(KIND, tmp_path / "store", root=source, chunk_points=16, codec=codec).manifest
    read = ZarrChunkReader(tmp_path / "store").field_reads("run_1", {})["surface_pressure"]
    FrameSizes(Storage(tmp_path / "store")).check(read)
    if codec != "blosc-lz4":
        return
    shard = tmp_path / "store" / manifest.samples["run_1"].relpath / "surface/pressure/c/0/0"
    data = bytearray(shard.read_bytes())
    chunks = -(-70 // 16)
    start, length = (int(n) for n in np.frombuffer(data[-16 * chunks - 4 : -4], "<u8")[:2])
    data[start + 4 : start + 8] = (2**31 - 17).to_bytes(4, "little")  # the decoded size in the header of Blosc
    checksum = int(google_crc32c.value(bytes(data[start : start + length - 4])))
    data[start + length - 4 : start + length] = checksum.to_bytes(4, "little")
    shard.write_bytes(data)
    with pytest.raises(CorruptChunkError, match="chunk 0 decodes to 2147483631 bytes where 32 belong"):
        FrameSizes(Storage(tmp_path / "store")).check(read)


@pytest.mark.parametrize("layout", ["directory", "packed"])
def test_a_store_at_the_root_of_a_bucket(tmp_path: Path, s3_root: str, layout: str) -> None:
    pytest.importorskip("tensorstore", reason="needs the extra tensorstore")
    source = write_source(tmp_path / "source", ("run_1",))
    bucket = s3_root.rpartition("/")[0]
    convert(KIND, bucket, root=source, chunk_points=16, layout=layout)
    expected = ZarrChunkReader(bucket).read_sample("run_1")
    for name, values in ZarrChunkReader(bucket, engine="tensorstore").read_sample("run_1").items():
        np.testing.assert_array_equal(values, expected[name])
    array = as_tensorstore(bucket, "surface_pressure", "run_1")
    np.testing.assert_array_equal(array.read().result(), expected["surface_pressure"])
