"""Chunks and shards: plain Zarr for every reader, and every damaged byte noticed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from zarr_core.errors import CorruptChunkError, SourceError, StoreError
from zarr_core.format.array_metadata import EMPTY_GROUP, ArrayLayout, group_arrays, group_zarr_json
from zarr_core.format.codecs import CODECS, Codec
from zarr_core.format.shards import decode_chunk, decode_shard_index, encode_shard

layouts = st.builds(
    lambda n, dim, chunk, chunks, dtype, codec, checksum: ArrayLayout(
        n, dim, min(chunk, n), min(chunk, n) * chunks, dtype, Codec.parse(codec), checksum
    ),
    n=st.integers(1, 200),
    dim=st.sampled_from([1, 3]),
    chunk=st.integers(1, 60),
    chunks=st.integers(1, 5),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    codec=st.sampled_from(CODECS),
    checksum=st.booleans(),
)


def rows(layout: ArrayLayout) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(layout.n_points, layout.dim)).astype(layout.dtype)


def shards(layout: ArrayLayout, points: np.ndarray) -> list[bytes]:
    def chunks(start: int):
        for first in range(start, min(start + layout.shard_points, layout.n_points), layout.chunk_points):
            yield points[first : min(first + layout.chunk_points, layout.n_points)]

    return [b"".join(encode_shard(layout, chunks(shard * layout.shard_points))) for shard in range(layout.n_shards)]


def store(path, layout: ArrayLayout) -> np.ndarray:
    points = rows(layout)
    group = path / "surface" / "field"
    (path / "zarr.json").write_text(json.dumps(group_zarr_json({"a": 1}, {"surface/field": layout})))
    for number, shard in enumerate(shards(layout, points)):
        (group / "c" / str(number)).mkdir(parents=True)
        (group / layout.shard_key(number)).write_bytes(shard)
    (path / "surface" / "zarr.json").write_text(json.dumps(EMPTY_GROUP))
    (group / "zarr.json").write_text(json.dumps(layout.to_zarr_json()))
    return points


@settings(max_examples=examples(60))
@given(layout=layouts)
def test_zarr_python_reads_what_was_encoded(tmp_path_factory: pytest.TempPathFactory, layout: ArrayLayout) -> None:
    path = tmp_path_factory.mktemp("store")
    points = store(path, layout)
    group = zarr.open_group(path, mode="r", zarr_format=3)
    array = group["surface/field"]
    assert np.array_equal(array[:], points)
    assert array.dtype == points.dtype
    assert array.chunks == (layout.chunk_points, layout.dim)
    assert array.shards == (layout.shard_points, layout.dim)
    assert group.attrs["a"] == 1


@settings(max_examples=examples(15))
@given(layout=layouts)
def test_tensorstore_reads_what_was_encoded(tmp_path_factory: pytest.TempPathFactory, layout: ArrayLayout) -> None:
    tensorstore = pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    path = tmp_path_factory.mktemp("store")
    points = store(path, layout)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / "surface" / "field")}}
    assert np.array_equal(tensorstore.open(spec).result().read().result(), points)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("checksum", [True, False])
def test_the_metadata_is_what_zarr_python_would_write(codec: str, checksum: bool) -> None:
    layout = ArrayLayout(1000, 3, 256, 1024, "float16", Codec.parse(codec), checksum)
    compressor = {
        "blosc-lz4": [zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")],
        "blosc-zstd": [zarr.codecs.BloscCodec(cname="zstd", clevel=3, shuffle="shuffle")],
        "zstd": [zarr.codecs.ZstdCodec(level=3)],
        "none": [],
    }[codec]
    array = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=(1000, 3),
        chunks=(256, 3),
        shards=(1024, 3),
        dtype="float16",
        compressors=[*compressor, *([zarr.codecs.Crc32cCodec()] if checksum else [])],
        fill_value=0,
        zarr_format=3,
    )
    assert layout.to_zarr_json() == json.loads(json.dumps(array.metadata.to_dict()))


@given(layout=layouts)
def test_a_layout_survives_its_metadata(layout: ArrayLayout) -> None:
    arrays = {"surface/field": layout}
    group = json.loads(json.dumps(group_zarr_json({}, arrays)))
    (read,) = group_arrays(group).values()
    levelled = Codec(layout.codec.name, 0) if layout.codec.name == "none" else layout.codec
    assert (read, read.codec) == (layout, levelled)


@settings(max_examples=examples(60))
@given(layout=layouts.filter(lambda layout: layout.checksum), data=st.data())
def test_every_flipped_byte_is_noticed(layout: ArrayLayout, data: st.DataObject) -> None:
    shard = bytearray(shards(layout, rows(layout))[0])
    shard[data.draw(st.integers(0, len(shard) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptChunkError):
        decode_all(layout, bytes(shard))


def decode_all(layout: ArrayLayout, shard: bytes) -> None:
    for offset, length in decode_shard_index(layout, shard[-layout.index_bytes :]):
        if length != 2**64 - 1:
            decode_chunk(layout, shard[int(offset) : int(offset + length)])


@settings(max_examples=examples(30))
@given(layout=layouts, data=st.binary(max_size=300))
def test_garbage_is_never_returned_as_an_index(layout: ArrayLayout, data: bytes) -> None:
    with pytest.raises(CorruptChunkError):
        decode_shard_index(layout, data)


@pytest.mark.parametrize("text", ["", "gzip", "zstd:x", "zstd:23", "blosc-lz4:10", "zstd:-1", "none:1"])
def test_a_codec_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="codec"):
        Codec.parse(text)


@pytest.mark.parametrize(
    "damage",
    [
        {"codecs": []},
        {"shape": [10]},
        {"data_type": "int32"},
        {"shape": [0, 3]},
        {"chunk_key_encoding": {"name": "v2"}},
    ],
)
def test_layouts_that_are_not_ours_are_refused(damage: dict) -> None:
    metadata = ArrayLayout(10, 3, 4, 12, "float32", Codec.parse("zstd")).to_zarr_json()
    with pytest.raises(StoreError):
        ArrayLayout.from_zarr_json(metadata | damage)
