"""Zarr metadata of arrays and groups: equal to zarr-python's; unsupported metadata raises one kind of error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import zarr
import zarr.codecs
import zarr.storage
from hypothesis import given
from zarr.codecs.numcodecs import PCodec

from tests.helpers.examples import LAYOUTS
from zarr_core.errors import StoreError
from zarr_core.format.array_metadata import ArrayLayout, group_arrays, group_zarr_json
from zarr_core.format.codecs import CODECS, Codec


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("checksum", [True, False])
def test_the_metadata_equals_that_of_zarr_python(codec: str, checksum: bool) -> None:
    layout = ArrayLayout(1000, 3, 256, 1024, "float16", Codec.parse(codec), checksum)
    compressor = {
        "blosc-lz4": [zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")],
        "blosc-zstd": [zarr.codecs.BloscCodec(cname="zstd", clevel=3, shuffle="shuffle")],
        "zstd": [zarr.codecs.ZstdCodec(level=3)],
        "none": [],
        "bitshuffle-lz4": [zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle")],
        "bitshuffle-zstd": [zarr.codecs.BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle")],
        "pcodec": [],
    }[codec]
    pcodec = {"serializer": PCodec(level=8, mode_spec="classic", delta_spec="none")} if codec == "pcodec" else {}
    array = zarr.create_array(
        zarr.storage.MemoryStore(),
        shape=(1000, 3),
        chunks=(256, 3),
        shards=(1024, 3),
        dtype="float16",
        compressors=[*compressor, *([zarr.codecs.Crc32cCodec()] if checksum else [])],
        fill_value=0,
        zarr_format=3,
        **pcodec,
    )
    assert layout.to_zarr_json() == json.loads(json.dumps(array.metadata.to_dict()))


@given(layout=LAYOUTS)
def test_a_layout_survives_its_metadata(layout: ArrayLayout) -> None:
    arrays = {"surface/field": layout}
    group = json.loads(json.dumps(group_zarr_json({}, arrays)))
    (read,) = group_arrays(group).values()
    levelled = Codec(layout.codec.name, 0) if layout.codec.name == "none" else layout.codec
    assert (read, read.codec) == (layout, levelled)


@pytest.mark.parametrize(
    "damage",
    [
        {"codecs": []},
        {"shape": [10]},
        {"data_type": "int32"},
        {"shape": [0, 3]},
        {"chunk_key_encoding": {"name": "v2"}},
        {"shape": [True, 3]},
        {"shape": "10"},
        {"fill_value": 1},
        {"fill_value": [0]},
        {"storage_transformers": [{}]},
    ],
)
def test_layouts_that_this_library_does_not_write_are_refused(damage: dict) -> None:
    metadata = ArrayLayout(10, 3, 4, 12, "float32", Codec.parse("zstd")).to_zarr_json()
    with pytest.raises(StoreError):
        ArrayLayout.from_zarr_json(metadata | damage)


VALUES = [None, True, 0, -1, 1.5, 10**30, "", "x", [], [1], {}, {"name": "x"}, [{}], [[]]]


def changed(document: Any) -> Iterator[Any]:
    """The document with a value anywhere in it replaced or removed."""
    places: list[Any] = [document]
    while places:
        place = places.pop()
        for key in list(place) if isinstance(place, dict) else range(len(place)):
            kept = place[key]
            for value in VALUES:
                place[key] = value
                yield document
            if isinstance(place, dict):
                del place[key]
                yield document
            place[key] = kept
            if isinstance(kept, dict | list):
                places.append(kept)


@pytest.mark.parametrize(
    "layout",
    [
        ArrayLayout(10, 3, 4, 12, "float32", Codec.parse("blosc-lz4"), domain="surface", units="m"),
        ArrayLayout(10, 3, 4, 12, "float32", Codec("pcodec", 8, 100.0, "<i4"), max_error=0.01),
        ArrayLayout(10, 3, 4, 12, "float16", Codec.parse("zstd"), sharded=False),
    ],
)
def test_any_change_of_a_group_is_refused_or_has_no_effect(layout: ArrayLayout) -> None:
    count = 0
    for document in changed(json.loads(json.dumps(group_zarr_json({}, {"surface/field": layout})))):
        count += 1
        try:
            arrays = group_arrays(document)
        except StoreError:
            continue
        assert all(isinstance(found, ArrayLayout) for found in arrays.values())
    assert count > 500
