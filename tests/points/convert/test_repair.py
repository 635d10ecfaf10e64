"""Repair of a group that exists: by force, after a crash, and where the source has other content in its files."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.small_source import load_field, write_source
from tests.helpers.stores import (
    assert_reads_equal,
    damage,
    flip,
    objects,
    replace_unnoticed,
    stored_values,
)
from zarr_core import ZarrChunkReader, ZarrPointDataset, ZarrPointDatasetConfig
from zarr_core.convert import convert, iter_convert, publish
from zarr_core.errors import ZarrCoreError
from zarr_core.points.convert.conversion import convert_each, run_conversion
from zarr_core.points.convert.request import ConversionRequest
from zarr_core.points.stage.store import stage_store
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.sources import SampleTree
from zarr_core.statistics import main as statistics
from zarr_core.storage import Storage
from zarr_core.versioning.tags import make_tag

SETTINGS = {"chunk_points": 32}


def test_a_half_lost_group_is_written_again(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    for _ in iter_convert("ahmedml", store, root=source, **SETTINGS):
        pass
    (shard,) = (store / "samples" / "run_1").glob("*/volume/velocity/c/0/0")
    whole = shard.read_bytes()
    shard.write_bytes(b"")  # what a power cut leaves of a file that was never synced
    convert("ahmedml", store, root=source, **SETTINGS)
    assert shard.read_bytes() == whole


def test_force_repairs_what_differs_and_touches_nothing_else(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, **SETTINGS)
    whole, times = objects(store), {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}
    shard = damage(store, "run_2")
    assert not verify_store(str(store)).ok
    assert {o.status for o in convert("ahmedml", store, root=source, **SETTINGS).results} == {"up to date"}
    report = convert("ahmedml", store, root=source, force=True, sample_ids=["run_2"])
    assert [(o.sample_id, o.status) for o in report.results] == [("run_2", "converted")]
    assert verify_store(str(store), source=str(source)).ok
    assert objects(store) == whole, "no new generation either"
    changed = {path for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert {path for path in changed if path.suffix != ".lock"} == {shard}


@pytest.mark.parametrize(("layout", "other"), [("directory", "packed"), ("packed", "directory")])
def test_force_gives_a_copy_with_another_layout_that_of_its_settings(
    tmp_path: Path, source: Path, layout: Any, other: Any
) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    convert("ahmedml", store, root=source, layout=layout, **SETTINGS)
    stage_store(store, copy, layout=other)
    report = convert("ahmedml", copy, root=source, force=True, sample_ids=["run_2"])
    assert report.ok
    assert report.manifest.samples["run_2"] == load_manifest(store).samples["run_2"]
    assert verify_store(str(copy), source=str(source)).ok


def test_force_makes_a_thin_copy_whole(tmp_path: Path, source: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    convert("ahmedml", store, root=source, **SETTINGS)
    stage_store(store, copy, points="20%")
    (note,) = convert("ahmedml", copy, root=source).notes[-1:]
    assert note.endswith("only 20% of the samples that were up to date; --force converts them whole")
    how = verify_store(str(copy), source=str(source)).how
    assert how == "row by row; of each sample the points that were copied (20%, in whole chunks)"
    for sample_id in ("run_1", "run_2", "run_3"):
        assert load_manifest(copy).origin["points"] == "20%"
        report = convert("ahmedml", copy, root=source, force=True, sample_ids=[sample_id])
        assert "other content" not in " ".join(report.notes)
    assert report.manifest.samples == load_manifest(store).samples
    assert "points" not in report.manifest.origin
    assert "thin copy" not in " ".join(report.notes)
    assert_reads_equal(copy, store, ["run_1", "run_2", "run_3"])


def test_force_converts_again_a_group_that_no_manifest_names(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    assert len(list(iter_convert("ahmedml", store, root=source, **SETTINGS))) == 3
    shard = next(store.glob("samples/run_1/*/surface/pressure/c/0/0"))
    whole = shard.read_bytes()
    flip(shard)
    with ThreadPoolExecutor(1) as executor:
        assert convert("ahmedml", store, root=source, force=True, executor=executor, **SETTINGS).ok
    assert shard.read_bytes() == whole


def raise_pressure(source: Path, sample_id: str, by: float = 1.0) -> np.ndarray:
    """Change the pressure of a sample under the same size and time; returns what a store should hold, in any order."""
    values = load_field(source, sample_id, "surface_pressure") + by
    replace_unnoticed(source / sample_id / "surface_pressure.pt", torch.from_numpy(values[:, 0].copy()))
    return np.sort(values[:, 0].astype(np.float16))


def kept(before: dict[str, bytes], after: dict[str, bytes]) -> bool:
    """Whether everything below the folders of a store is as it was."""
    return all(after.get(name) == data for name, data in before.items() if "/" in name)


@pytest.mark.parametrize("other", [{"chunk_points": 48}, {"layout": "packed"}])
@pytest.mark.parametrize("publishes", [False, True])
def test_the_way_back_to_earlier_settings_keeps_the_content_that_force_found(
    tmp_path: Path, source: Path, other: dict[str, Any], publishes: bool
) -> None:
    """The group of the earlier settings holds what the files were before they were replaced under the same version."""
    store, earlier = tmp_path / "store", SETTINGS | {"layout": "directory"}
    convert("ahmedml", store, root=source, **earlier)
    expected = raise_pressure(source, "run_2")
    found = convert("ahmedml", store, root=source, force=True, sample_ids=["run_2"]).manifest.samples["run_2"]
    for settings in (other, earlier, other, earlier):
        convert("ahmedml", store, root=source, reconvert=True, sample_ids=["run_1"], **settings)
        if publishes:  # as the platform does
            publish("ahmedml", store, root=source)
            results = list(iter_convert("ahmedml", store, root=source))
            assert {result.status for result in results} <= {"converted", "up to date"}
        report = convert("ahmedml", store, root=source)
        manifest = report.manifest
        assert "other content" not in " ".join(report.notes), "they changed once"
        np.testing.assert_array_equal(np.sort(stored_values(store, "run_2", "surface/pressure")[:, 0]), expected)
        assert {entry.settings for entry in manifest.samples.values()} == {manifest.conversion.current}
    assert manifest.samples["run_2"] == found
    assert verify_store(str(store), deep=True).ok


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*are absent and skipped")
def test_another_content_under_the_same_version_is_another_group(tmp_path: Path, source: Path) -> None:
    store, url = tmp_path / "store", str(tmp_path / "store")
    convert("ahmedml", store, root=source, **SETTINGS)
    assert statistics([url, "--quiet"]) == 0
    make_tag(Storage(url), HEAD, "paper")
    stage_store(url, tmp_path / "copy")
    before, pinned = objects(store), stored_values(store, "run_2", "surface/pressure")
    config = {"root": url, "split": "train", "fields": ("surface_position", "surface_pressure")}
    fingerprint = ZarrPointDataset(ZarrPointDatasetConfig(**config)).fingerprint
    expected = raise_pressure(source, "run_2")

    report = convert("ahmedml", store, root=source, force=True)
    assert report.manifest.generation == 2
    assert kept(before, objects(store))
    assert "other content under the same sizes and times, or whose record was damaged (1): run_2" in " ".join(
        report.notes
    )
    assert [change.names for change in HEAD.changes(load_manifest(url, "paper"), report.manifest)] == [("run_2",)]
    np.testing.assert_array_equal(np.sort(stored_values(store, "run_2", "surface/pressure")[:, 0]), expected)
    old = ZarrChunkReader(url, generation="paper").read_sample("run_2", fields=["surface_pressure"])
    np.testing.assert_array_equal(old["surface_pressure"], pinned)
    assert ZarrPointDataset(ZarrPointDatasetConfig(**config)).fingerprint != fingerprint
    tagged = ZarrPointDataset(ZarrPointDatasetConfig(**config, generation="paper"))
    assert tagged.fingerprint == fingerprint
    normalizing = ZarrPointDatasetConfig(**config, normalizers={"surface_pressure": "mean_std"})
    with pytest.raises(ZarrCoreError, match="no statistics/00000002/train"):  # those of generation 1 are of others
        ZarrPointDataset(normalizing)
    assert verify_store(url, source=str(source), deep=False).ok
    assert verify_store(url, deep=True).ok

    for fields in (None, ["surface_position", "surface_pressure"]):
        copy = tmp_path / ("copy" if fields is None else "part")
        stage_store(url, copy, fields=fields)
        assert_reads_equal(copy, url, ["run_1", "run_2", "run_3"], fields)

    for force in (True, False):  # nothing more to do
        again = convert("ahmedml", store, root=source, force=force)
        assert again.manifest.generation == 2
        assert not again.notes or "other content" not in " ".join(again.notes)
    flip(store / report.manifest.samples["run_2"].relpath / "surface/pressure/c/0/0")
    flip(store / report.manifest.samples["run_2"].relpath / "volume/pressure/c/0/0")
    assert convert("ahmedml", store, root=source, force=True).manifest.generation == 2
    assert verify_store(url, deep=True).ok


def test_another_content_that_is_committed_alone_keeps_all_splits(tmp_path: Path) -> None:
    """The source was listed in part, and the splits of a commit are those of all its samples."""
    ids = ("param0/a", "param1/a", "param2/b")
    source = write_source(tmp_path / "source", ids, kind="shapenet_car")
    request = ConversionRequest("shapenet_car", tmp_path / "store", source_url=str(source))
    before = run_conversion(request).manifest
    assert before.splits == {"train": ["param1/a", "param2/b"], "test": ["param0/a"]}
    path = source / "param1/a/surface_pressure.pt"
    replace_unnoticed(path, torch.load(path) + 1)
    found = SampleTree("shapenet_car", source).find(["param1/a"])
    (result,) = convert_each(replace(request, sample_ids=["param1/a"], force=True), found=found)
    assert result.status == "converted"
    after = load_manifest(tmp_path / "store")
    assert (after.generation, after.splits) == (2, before.splits)
    assert after.samples["param1/a"].relpath != before.samples["param1/a"].relpath


def test_a_copy_keeps_no_sample_of_another_content(tmp_path: Path, source: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    convert("ahmedml", store, root=source, **SETTINGS)
    stage_store(store, copy)
    raise_pressure(source, "run_2")
    convert("ahmedml", store, root=source, force=True)
    stage_store(store, copy, sample_ids=["run_1"])
    assert list(load_manifest(copy).samples) == ["run_1", "run_3"]


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["chunk", "shard", "record", "record and shard", "everything"])
@pytest.mark.parametrize("by", [0.0, 1.0])
def test_a_repair_needs_the_same_content(tmp_path: Path, source: Path, lost: str, by: float) -> None:
    """What is left of the group, or its record, tells what its content was."""
    store, url = tmp_path / "store", str(tmp_path / "store")
    convert("ahmedml", store, root=source, codec="none", values_dtype="float32", **SETTINGS)
    whole = objects(store)
    group = store / load_manifest(url).samples["run_2"].relpath
    expected = raise_pressure(source, "run_2", by)
    match lost:
        case "chunk":
            flip(group / "surface/pressure/c/0/0")
        case "shard":
            (group / "surface/pressure/c/0/0").unlink()
        case "record":
            os.truncate(group / "zarr.json", 100)
        case "record and shard":
            os.truncate(group / "zarr.json", 100)
            (group / "surface/pressure/c/0/0").unlink()
        case "everything":
            shutil.rmtree(group)
    damaged = objects(store)
    manifest = convert("ahmedml", store, root=source, force=True).manifest
    read = ZarrChunkReader(url).read_sample("run_2", fields=["surface_pressure"])["surface_pressure"]
    np.testing.assert_array_equal(np.sort(read[:, 0].astype(np.float16)), expected)
    if lost == "everything" or (by == 0.0 and lost != "record and shard"):
        assert manifest.generation == 1
        assert by or objects(store) == whole
    else:
        assert manifest.generation == 2
        assert kept(damaged, objects(store)), "the earlier generation stays damaged, but is not another one"
    assert verify_store(url, source=str(source)).ok


@pytest.mark.parametrize("recorded", [True, False])
def test_values_that_changed_places_are_another_content(tmp_path: Path, source: Path, recorded: bool) -> None:
    """Their moments and sizes are the same, so only the chunks tell."""
    store, path = tmp_path / "store", source / "run_2" / "surface_pressure.pt"
    convert("ahmedml", store, root=source, codec="none", values_dtype="float32", **SETTINGS)
    values = torch.load(path, weights_only=True)
    replace_unnoticed(path, values.flip(0).clone())
    if not recorded:
        (store / load_manifest(store).samples["run_2"].relpath / "zarr.json").unlink()
    before = objects(store)
    assert convert("ahmedml", store, root=source, force=True).manifest.generation == 2
    assert kept(before, objects(store))
    assert verify_store(str(store), source=str(source)).ok


def test_a_refusal_of_another_content_keeps_the_sample_until_it_is_retried(tmp_path: Path, source: Path) -> None:
    store, path = tmp_path / "store", source / "run_2" / "surface_pressure.pt"
    convert("ahmedml", store, root=source, **SETTINGS)
    good = torch.load(path, weights_only=True)
    relpath = load_manifest(store).samples["run_2"].relpath
    for flags in ({"force": True}, {}, {"retry_quarantined": True}):
        replace_unnoticed(path, torch.where(torch.arange(len(good)) == 3, torch.nan, good))
        report = convert("ahmedml", store, root=source, **flags)
        assert [result.sample_id for result in report.having("quarantined")] == ["run_2"]
        assert report.manifest.samples["run_2"].relpath == relpath
        assert list(report.manifest.quarantine) == ["run_2"]
    replace_unnoticed(path, good)
    report = convert("ahmedml", store, root=source, retry_quarantined=True)
    assert not report.manifest.quarantine
    assert report.manifest.samples["run_2"].relpath == relpath
    assert verify_store(str(store), deep=True).ok


def test_a_conversion_that_is_not_forced_does_not_overwrite_a_damaged_group_of_a_kept_generation(
    tmp_path: Path, source: Path
) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, **SETTINGS)
    shard = store / load_manifest(store).samples["run_2"].relpath / "volume/velocity/c/0/0"
    (source / "run_2").rename(tmp_path / "away")
    convert("ahmedml", store, root=source, retire_vanished=True)
    (tmp_path / "away").rename(source / "run_2")
    shard.unlink()
    before = objects(store)
    raise_pressure(source, "run_2")
    convert("ahmedml", store, root=source)
    assert kept(before, objects(store))
    assert verify_store(str(store), source=str(source)).ok


@pytest.mark.parametrize("committed", [True, False])
def test_forced_results_of_iter_convert_are_published(tmp_path: Path, source: Path, committed: bool) -> None:
    """As the platform converts; ``publish`` finds groups by the versions of the files."""
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, sample_ids=None if committed else ["run_1"], **SETTINGS)
    if not committed:
        list(iter_convert("ahmedml", store, root=source))
    before = objects(store)
    expected = raise_pressure(source, "run_2")
    list(iter_convert("ahmedml", store, root=source, force=True))
    publish("ahmedml", store, root=source)
    assert kept(before, objects(store))
    np.testing.assert_array_equal(np.sort(stored_values(store, "run_2", "surface/pressure")[:, 0]), expected)
