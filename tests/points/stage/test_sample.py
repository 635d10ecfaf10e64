"""Copies of single samples: damage at the source, in flight and in the copy; stores of other programs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import write_source
from tests.helpers.stores import assert_reads_equal, flip, objects, shards
from zarr_core.convert import convert
from zarr_core.errors import StoreError
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.stage.store import stage_store
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.storage import Storage


@pytest.mark.parametrize("checksum", [False, True])
def test_stores_of_other_programs(tmp_path: Path, checksum: bool) -> None:
    root = write_published_store(tmp_path / "store", make_samples(), checksum=checksum)
    (root / "train_design_ids.txt").write_text("run_1\nrun_2\n")
    stage_store(root, tmp_path / "copy", split="train")
    assert_reads_equal(tmp_path / "copy", root, ["run_1", "run_2"])
    assert load_manifest(str(tmp_path / "copy")).split_ids("train") == ["run_1", "run_2"]
    stage_store(root, tmp_path / "part", fields=["volume_pressure"], sample_ids=["run_3"])
    assert_reads_equal(tmp_path / "part", root, ["run_3"], ["volume_pressure"])


def test_a_damaged_source_names_sample_and_chunk_and_stops_no_other(source: Path, tmp_path: Path) -> None:
    relpath = load_manifest(str(source)).samples["run_2"].relpath
    flip(source / relpath / "surface/pressure/c/1/0")
    report = stage_store(source, tmp_path / "copy")
    assert [sample.sample_id for sample in report.failed] == ["run_2"]
    assert "surface/pressure/c/1/0: chunk 4 (bytes 0 to " in report.failed[0].problem
    assert report.failed[0].problem.endswith("): checksum mismatch")
    assert_reads_equal(tmp_path / "copy", source, ["run_1", "run_3"])
    flip(source / relpath / "surface/pressure/c/1/0")
    report = stage_store(source, tmp_path / "copy")
    assert report.kept > 2 * report.copied > 0
    assert_reads_equal(tmp_path / "copy", source, ["run_1", "run_2", "run_3"])


@pytest.mark.parametrize("array", ["surface/pressure/c/0/0", "volume/position/c/2/0"])
@pytest.mark.parametrize("damage", ["cut", "gone", "index"])
def test_a_shard_that_is_not_whole_is_not_copied(source: Path, tmp_path: Path, array: str, damage: str) -> None:
    shard = source / load_manifest(str(source)).samples["run_1"].relpath / array
    match damage:
        case "cut":
            os.truncate(shard, 30)
        case "gone":
            shard.unlink()
        case "index":
            flip(shard, -6)
    (failed,) = stage_store(source, tmp_path / "copy").failed
    assert failed.sample_id == "run_1"
    assert array in failed.problem
    with pytest.raises(StoreError, match="none of 1 samples could be copied"):
        stage_store(source, tmp_path / "none", sample_ids=["run_1"])
    assert not (tmp_path / "none" / "manifest.json").exists()


def test_a_byte_that_flips_in_flight_is_fetched_again(
    source: Path, memory_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_store(source, memory_root)
    whole, flips = Storage.read, 1

    def read(self: Storage, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        nonlocal flips
        data = whole(self, name, start, stop)
        if flips and "/c/" in name:
            flips = 0
            data = bytes([data[0] ^ 1]) + data[1:]
        return data

    monkeypatch.setattr(Storage, "read", read)
    assert stage_store(memory_root, tmp_path / "copy").ok
    monkeypatch.undo()
    assert flips == 0
    assert_reads_equal(tmp_path / "copy", source, ["run_1", "run_2", "run_3"])


def test_a_copy_that_rots_is_repaired(source: Path, tmp_path: Path) -> None:
    stage_store(source, tmp_path / "copy")
    rotten, short = shards(tmp_path / "copy")[:2]
    flip(rotten)
    short.unlink()
    size = rotten.stat().st_size + (source / short.relative_to(tmp_path / "copy")).stat().st_size
    assert not verify_store(str(tmp_path / "copy")).ok
    assert stage_store(source, tmp_path / "copy", check=True).copied == size
    assert verify_store(str(tmp_path / "copy")).ok


def test_leftovers_of_a_killed_stage_are_checked_before_a_commit(source: Path, tmp_path: Path) -> None:
    stage_store(source, tmp_path / "copy")
    (tmp_path / "copy" / "manifest.json").unlink()
    shutil.rmtree(tmp_path / "copy" / "generations")
    rotten = shards(tmp_path / "copy")[3]
    flip(rotten)  # the right size, as a power cut leaves it
    (rotten.parent / f".0.{'1' * 32}.tmp").write_bytes(b"half")
    report = stage_store(source, tmp_path / "copy")
    assert report.copied == rotten.stat().st_size
    assert_reads_equal(tmp_path / "copy", source, ["run_1", "run_2", "run_3"])


def test_samples_rewritten_by_another_program_are_staged_beside_the_old_copy(tmp_path: Path) -> None:
    """Neither a reader of the copy nor its cache mixes the two."""
    root = write_published_store(tmp_path / "store", make_samples(), checksum=True)
    fields, options = ["volume_velocity"], {"cache_dir": str(tmp_path / "cache")}
    stage_store(root, tmp_path / "copy", fields=fields)
    first = ZarrChunkReader(tmp_path / "copy", **options)
    before = first.read_sample("run_1", fields=fields)["volume_velocity"]
    shutil.rmtree(root)
    write_published_store(root, make_samples(seed=1), checksum=True)
    assert stage_store(root, tmp_path / "copy", fields=fields, check=True).ok
    assert np.array_equal(first.read_sample("run_1", fields=fields)["volume_velocity"], before)
    after = ZarrChunkReader(tmp_path / "copy", **options).read_sample("run_1", fields=fields)["volume_velocity"]
    assert np.array_equal(after, ZarrChunkReader(root).read_sample("run_1", fields=fields)["volume_velocity"])
    assert not np.array_equal(after, before)
    assert stage_store(root, tmp_path / "copy", fields=fields).manifest.generation == 2


def test_a_group_whose_objects_were_replaced_is_copied_beside_the_old_copy(source: Path, tmp_path: Path) -> None:
    """As earlier versions of this library replaced them, with ``--force``."""
    stage_store(source, tmp_path / "copy")
    before = objects(tmp_path / "copy")
    relpath = load_manifest(str(source)).samples["run_1"].relpath
    write_source(tmp_path / "files", ("run_1",), seed=1)
    other = convert("ahmedml", tmp_path / "other", root=tmp_path / "files", chunk_points=16, shard_points=64)
    made = tmp_path / "other" / other.manifest.samples["run_1"].relpath
    document = json.loads((made / "zarr.json").read_text())
    document["attributes"]["zarr_core"]["fingerprint"] = load_manifest(str(source)).samples["run_1"].fingerprint
    (made / "zarr.json").write_text(json.dumps(document))
    shutil.rmtree(source / relpath)
    shutil.move(made, source / relpath)
    stage_store(source, tmp_path / "copy")
    assert_reads_equal(tmp_path / "copy", source, ["run_1", "run_2", "run_3"])
    after = objects(tmp_path / "copy")
    assert [name for name, data in before.items() if "/" in name and after[name] != data] == []
