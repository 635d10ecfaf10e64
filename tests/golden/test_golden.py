"""Format stability: stores of earlier versions stay readable, and equal input gives equal bytes.

If a test here fails, the format number must change, not the expected values.
"""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path

import numpy as np
import pytest

from tests.golden.make import make
from tests.helpers.stores import objects
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.codecs import CODECS, Codec
from zarr_core.format.moments import FieldMoments
from zarr_core.format.packed import parse_head
from zarr_core.format.shards import encode_shard
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.head import load_manifest
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.points.verify.store import verify_store

GOLDEN = Path(__file__).parent


@pytest.mark.parametrize("store", [*CODECS, *(f"packed/{codec}" for codec in CODECS)])
def test_stores_of_earlier_versions_are_read(store: str) -> None:
    """Values equal those that ``golden/make.py`` wrote."""
    reader = ZarrChunkReader(GOLDEN / store)
    sample = reader.read_sample("a")
    order = shuffle_permutation(0, "a", "surface", 41)
    assert np.array_equal(sample["surface_position"], (np.arange(123.0).reshape(41, 3) / 8)[order])
    assert np.array_equal(sample["surface_pressure"], (np.arange(41.0) - 20)[order][:, None])
    assert (sample["surface_position"].dtype, sample["surface_pressure"].dtype) == ("float32", "float16")
    attributes = reader.read_attributes("a")
    assert attributes["parameters"] == {"speed": 30.5}
    moments = FieldMoments.from_json(attributes["moments"]["surface_pressure"])
    assert (moments.count, moments.mean[0], moments.min[0], moments.max[0]) == (41, 0, -20, 20)
    assert load_manifest(GOLDEN / store).split_ids("train") == ["a"]
    assert verify_store(GOLDEN / store).ok


@pytest.mark.parametrize("layout", ["directory", "packed"])
def test_stores_with_error_bounds_are_read(layout: str) -> None:
    store = GOLDEN / "bounded" / layout
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


def test_the_bytes_of_a_packed_store_never_change(tmp_path: Path) -> None:
    make(tmp_path / "store", codec="none", layout="packed")
    assert _without_residue(tmp_path / "store") == _without_residue(GOLDEN / "packed" / "none")


def _without_residue(store: Path) -> dict[str, object]:
    """Objects of a packed store; archives without the mean that is 0 but for rounding, as the processor does it."""
    found: dict[str, object] = dict(objects(store))
    for archive in store.rglob("*.zip"):
        packed = parse_head(archive.read_bytes())
        document = copy.deepcopy(dict(packed.document))
        (residue,) = document["attributes"]["zarr_core"]["moments"]["surface_pressure"].pop("log_mean")
        assert abs(residue) < 1e-15
        body = archive.read_bytes()[packed.head :]
        central = body.index(b"PK\1\2")
        # The first entry of the central directory has the checksum of the document.
        found[str(archive.relative_to(store))] = document, body[: central + 16], body[central + 20 :]
    return found


def test_the_path_of_a_group_never_changes(tmp_path: Path) -> None:
    """An unfinished conversion of an earlier version is found by a later one."""
    settings = ConversionSettings(4096, field_dtypes={"volume_sdf": "float32"}, codec="blosc-lz4")
    writer = GroupWriter(tmp_path, settings)
    assert writer.relpath("run_1", "0123456789abcdef") == "samples/run_1/bce26e1584a84e86"
