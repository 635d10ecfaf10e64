"""Format stability: stores of earlier versions stay readable, and equal input gives equal bytes.

If a test here fails, the format number must change, not the expected values.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.golden.make import make
from tests.helpers.stores import group_place, make_store, objects
from zarr_core import stage_store, write_sample
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.codecs import CODECS, Codec
from zarr_core.format.shards import encode_shard
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.group import recorded_moments
from zarr_core.points.store.head import load_manifest
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.points.verify.store import verify_store

GOLDEN = Path(__file__).parent


# Stores whose groups declare their convention. The manifest of the last one records the size of its archive.
DECLARED = ["declared/directory", "declared/packed", "sized/packed"]


@pytest.mark.parametrize("store", [*CODECS, *(f"packed/{codec}" for codec in CODECS), *DECLARED])
def test_stores_of_earlier_versions_are_read(store: str) -> None:
    """Values equal those that ``golden/make.py`` wrote."""
    reader = ZarrChunkReader(GOLDEN / store)
    sample = reader.read_sample("a")
    order = shuffle_permutation(0, "a", "surface", 41)
    assert np.array_equal(sample["surface_position"], (np.arange(123.0).reshape(41, 3) / 8)[order])
    lowest = -10 if store in DECLARED else -20
    assert np.array_equal(sample["surface_pressure"], (np.arange(41.0) + lowest)[order][:, None])
    assert (sample["surface_position"].dtype, sample["surface_pressure"].dtype) == ("float32", "float16")
    attributes = reader.read_attributes("a")
    assert attributes["parameters"] == {"speed": 30.5}
    moments = recorded_moments(attributes)["surface_pressure"]
    assert (moments.count, moments.mean[0], moments.min[0], moments.max[0]) == (41, lowest + 20, lowest, lowest + 40)
    assert load_manifest(GOLDEN / store).split_ids("train") == ["a"]
    assert verify_store(GOLDEN / store).ok


@pytest.mark.parametrize("layout", ["directory", "packed"])
@pytest.mark.parametrize(("name", "integers"), [("bounded", "<i4"), ("bounded_int16", "<i2")])
def test_stores_with_error_bounds_are_read(name: str, integers: str, layout: str) -> None:
    store = GOLDEN / name / layout
    assert f'"astype":"{integers}"'.encode() in b"".join(groups(store).values())
    sample = ZarrChunkReader(store).read_sample("a")
    order = shuffle_permutation(0, "a", "surface", 41)
    errors = sample["surface_position"] - (np.arange(123.0).reshape(41, 3) / 8)[order]
    assert 0 < np.abs(errors).max() <= 0.01
    assert 0 < np.abs(sample["surface_pressure"][:, 0] - (np.arange(41.0) - 20)[order]).max() <= 0.1184
    digest = hashlib.sha256(b"".join(sample[name].tobytes() for name in sorted(sample))).hexdigest()[:16]
    assert digest == "6d756ad80fc05dec"
    assert verify_store(str(store)).ok


def test_the_order_of_points_never_changes() -> None:
    assert shuffle_permutation(0, "run_1", "surface", 10).tolist() == [9, 6, 4, 3, 0, 1, 7, 2, 8, 5]
    assert hashlib.sha256(shuffle_permutation(7, "a/b", "volume", 100_000)).hexdigest()[:16] == "1f9a4921a591b47f"


def test_uncompressed_bytes_never_change() -> None:
    """Compressed bytes may change with the compressor's version, but decode to the same values."""
    layout = ArrayLayout(41, 3, 8, 16, "float16", Codec.parse("none"))
    points = np.arange(123).reshape(41, 3).astype("float16")
    shard = b"".join(encode_shard(layout, [points[:8], points[8:12]]))
    assert hashlib.sha256(shard).hexdigest()[:16] == "93f9775cafccbdc3"


@pytest.mark.parametrize("name", ["declared/directory", "sized/packed"])
def test_the_bytes_of_a_store_never_change(tmp_path: Path, name: str) -> None:
    layout = name.rpartition("/")[2]
    make(tmp_path / "store", codec="none", layout=layout)
    assert objects(tmp_path / "store") == objects(GOLDEN / name)
    assert groups(tmp_path / "store") == groups(GOLDEN / "declared" / layout)


def groups(store: Path) -> dict[str, bytes]:
    """The objects of a store's samples."""
    return {name: data for name, data in objects(store).items() if name.startswith("samples/")}


def declares(store: Path, sample_id: str) -> bool:
    """Whether the group of a sample declares conventions."""
    place, path = group_place(str(store), load_manifest(store).samples[sample_id].relpath)
    return "zarr_conventions" in zarr.open_group(make_store(place), path=path, mode="r", zarr_format=3).attrs


@pytest.mark.parametrize("name", ["zstd", "packed/none", "bounded/directory", "bounded/packed"])
def test_stores_of_earlier_versions_are_extended(tmp_path: Path, name: str) -> None:
    store = tmp_path / "store"
    shutil.copytree(GOLDEN / name, store)
    arrays = {"surface_position": np.random.rand(30, 3), "surface_pressure": np.random.rand(30)}
    settings = {"chunk_points": 8, "shard_points": 16} if name == "zstd" else {}  # which that version did not record
    write_sample(store, "b", arrays, split="train", parameters={"speed": 20.0}, **settings)
    assert [declares(store, sample_id) for sample_id in "ab"] == [False, True]
    assert groups(store).items() >= groups(GOLDEN / name).items()
    assert verify_store(str(store), deep=True).ok
    for options in (
        {},
        {"layout": "packed"},
        {"layout": "directory"},
        {"points": "50%"},
        {"fields": ["surface_position"]},
    ):
        copy = tmp_path / "copy"
        stage_store(store, copy, **options)
        assert [declares(copy, sample_id) for sample_id in "ab"] == [False, True]
        assert verify_store(str(copy)).ok
        before = objects(copy)
        stage_store(store, copy, **options)
        assert objects(copy) == before
        shutil.rmtree(copy)


def test_the_path_of_a_group_never_changes(tmp_path: Path) -> None:
    """An unfinished conversion of an earlier version is found by a later one."""
    settings = ConversionSettings(4096, field_dtypes={"volume_sdf": "float32"}, codec="blosc-lz4")
    writer = GroupWriter(tmp_path, settings)
    assert writer.relpath("run_1", "0123456789abcdef") == "samples/run_1/bce26e1584a84e86"
