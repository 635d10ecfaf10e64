"""Chunks and shards: readable by other Zarr readers; every damaged byte is detected."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import LAYOUTS, examples
from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import EMPTY_GROUP, ArrayLayout, group_zarr_json
from zarr_core.format.shards import MISSING_CHUNK, decode_chunk, decode_shard_index, encode_shard


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
@given(layout=LAYOUTS)
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
@given(layout=LAYOUTS.filter(lambda layout: layout.codec.name != "pcodec"))
def test_tensorstore_reads_what_was_encoded(tmp_path_factory: pytest.TempPathFactory, layout: ArrayLayout) -> None:
    tensorstore = pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    path = tmp_path_factory.mktemp("store")
    points = store(path, layout)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path / "surface" / "field")}}
    assert np.array_equal(tensorstore.open(spec).result().read().result(), points)


@settings(max_examples=examples(60))
@given(layout=LAYOUTS.filter(lambda layout: layout.checksum), data=st.data())
def test_every_flipped_byte_is_detected(layout: ArrayLayout, data: st.DataObject) -> None:
    shard = bytearray(shards(layout, rows(layout))[0])
    shard[data.draw(st.integers(0, len(shard) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptChunkError):
        decode_all(layout, bytes(shard))


def decode_all(layout: ArrayLayout, shard: bytes) -> None:
    for offset, length in decode_shard_index(layout, shard[-layout.index_bytes :]):
        if length != MISSING_CHUNK:
            decode_chunk(layout, shard[int(offset) : int(offset + length)])


@settings(max_examples=examples(30))
@given(layout=LAYOUTS, data=st.binary(max_size=300))
def test_garbage_is_never_returned_as_an_index(layout: ArrayLayout, data: bytes) -> None:
    with pytest.raises(CorruptChunkError):
        decode_shard_index(layout, data)
