"""Staging: whole and partial copies, what is refused, and the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

import zarr_core.points.stage.store
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND, write_source
from tests.helpers.stores import assert_reads_equal, flip, objects, shards
from zarr_core.datasets import build_dataset
from zarr_core.errors import StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.info import main as info
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.stage.copy import StoreCopy
from zarr_core.points.stage.store import stage_store
from zarr_core.points.statistics import calculate_store_statistics, record_training_statistics
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.stage import main
from zarr_core.storage import Storage
from zarr_core.stores.summary import store_info

FIELDS = ["surface_position", "surface_pressure"]


def test_a_whole_copy_is_the_same_store(source: Path, tmp_path: Path, pristine: Path) -> None:
    report = stage_store(source, tmp_path / "copy", workers=2)
    assert report.ok
    assert_reads_equal(tmp_path / "copy", source, ["run_1", "run_2", "run_3"])
    found, expected = objects(tmp_path / "copy"), objects(source)
    assert {name for name in expected.keys() ^ found.keys() if not name.startswith("generations/")} == set()
    assert all(found[name] == data for name, data in expected.items() if "manifest" not in name and "gen" not in name)
    manifest = load_manifest(str(tmp_path / "copy"))
    assert manifest.origin == {"store": Storage(source).identity, "generation": load_manifest(str(source)).generation}
    assert manifest.splits == load_manifest(str(source)).splits
    assert verify_store(str(tmp_path / "copy"), source=str(pristine / "source")).ok


def test_staging_again_copies_nothing_and_commits_nothing(source: Path, tmp_path: Path) -> None:
    first = stage_store(source, tmp_path / "copy")
    before = {name: (tmp_path / "copy" / name).stat().st_mtime_ns for name in objects(tmp_path / "copy")}
    for check in (False, True):
        again = stage_store(source, tmp_path / "copy", check=check)
        assert (again.copied, again.kept) == (0, first.copied)
        assert again.manifest.generation == first.manifest.generation == 1
    after = {name: (tmp_path / "copy" / name).stat().st_mtime_ns for name in objects(tmp_path / "copy")}
    rewritten = {name for name in after if after[name] != before[name]}
    assert rewritten <= {name for name in after if name.startswith("stat") or name.endswith(".txt")}


def test_a_part_is_a_store_of_its_own(source: Path, tmp_path: Path, pristine: Path) -> None:
    whole = stage_store(source, tmp_path / "whole")
    report = stage_store(source, tmp_path / "part", fields=FIELDS, sample_ids=["run_3", "run_1"], split="train")
    assert 0 < report.copied < whole.copied / 4
    assert_reads_equal(tmp_path / "part", source, ["run_1", "run_3"], FIELDS)
    assert verify_store(str(tmp_path / "part"), source=str(pristine / "source")).ok
    of_part = {entry.relpath for entry in report.manifest.samples.values()}
    assert not of_part & {entry.relpath for entry in whole.manifest.samples.values()}
    statistics = calculate_store_statistics(str(tmp_path / "part"))
    expected = calculate_store_statistics(str(source), sample_ids=["run_1", "run_3"])
    assert all(statistics[key] == expected[key] for key in statistics if key.startswith("surface_pressure"))
    again = stage_store(source, tmp_path / "part", fields=FIELDS, sample_ids=["run_3", "run_1"])
    assert (again.copied, again.manifest.generation) == (0, 1)


def test_parts_add_up_and_retired_samples_are_dropped(source: Path, tmp_path: Path) -> None:
    stage_store(source, tmp_path / "copy", sample_ids=["run_1"])
    stage_store(source, tmp_path / "copy", sample_ids=["run_2"])
    assert_reads_equal(tmp_path / "copy", source, ["run_1", "run_2"])
    manifest = load_manifest(str(source))
    old = manifest.samples["run_1"].fingerprint
    text = (source / "manifest.json").read_text()
    (source / "manifest.json").write_text(text.replace(old, "0" * 16))  # run_1 was converted again
    report = stage_store(source, tmp_path / "copy", sample_ids=["run_3"])
    assert list(report.manifest.samples) == ["run_2", "run_3"]


def test_an_earlier_generation_can_be_staged(tmp_path: Path) -> None:
    pt, store = write_source(tmp_path / "pt"), tmp_path / "store"
    convert(KIND, store, source_url=str(pt), chunk_points=16)
    shutil.copytree(store, tmp_path / "as_it_was")
    shutil.rmtree(pt)
    convert(KIND, store, source_url=str(write_source(pt, seed=1)), chunk_points=16)
    report = stage_store(store, tmp_path / "copy", generation=1)
    assert report.manifest.origin["generation"] == 1
    assert_reads_equal(tmp_path / "copy", tmp_path / "as_it_was", ["run_1", "run_2", "run_3"])
    latest = stage_store(store, tmp_path / "copy")
    assert latest.manifest.generation == 2
    assert_reads_equal(tmp_path / "copy", store, ["run_1", "run_2", "run_3"])


@pytest.mark.slow
def test_between_object_stores_and_disks(pristine: Path, tmp_path: Path, s3_root: str) -> None:
    to_s3 = stage_store(pristine / "store", s3_root)
    from_s3 = stage_store(s3_root, tmp_path / "copy", split="train")
    assert to_s3.copied == from_s3.copied
    assert_reads_equal(tmp_path / "copy", pristine / "store", ["run_1", "run_2", "run_3"])
    assert verify_store(s3_root).ok
    assert stage_store(s3_root, tmp_path / "copy").copied == 0
    assert stage_store(pristine / "store", s3_root, check=True).copied == 0


def test_a_bucket_that_does_not_exist_is_named(source: Path, s3_root: str) -> None:
    with pytest.raises(StoreError, match="//missing-.*: the bucket does not exist; create it, or correct the name"):
        stage_store(source, s3_root.replace("//bucket-", "//missing-"))


def test_a_copy_without_any_sample_is_not_committed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zarr_core.points.stage.store, "_COMMIT_SECONDS", 0.0)
    for shard in shards(source):
        shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(StoreError, match="none of 3 samples could be copied, so .* is not a store yet"):
        stage_store(source, tmp_path / "copy")
    assert not (tmp_path / "copy" / "manifest.json").exists()


def test_what_was_converted_into_a_copy_is_named_when_it_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, store, copy = write_source(tmp_path / "files"), tmp_path / "store", tmp_path / "copy"
    convert(KIND, store, root=files, sample_ids=["run_1", "run_2"])
    assert stage_store(store, copy).left == []
    (note,) = [note for note in convert(KIND, copy, root=files).notes if "copy" in note]
    removes = "staging it again removes what it has not: convert into that store"
    assert note == f"this store is a copy of file://{store}, and {removes} (run_3)"
    assert not [note for note in convert(KIND, copy, root=files).notes if "copy" in note], "it said so once"
    assert main([str(copy), "--source", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left"] == ["run_3"]
    convert(KIND, copy, root=files)
    assert main([str(copy), "--source", str(store)]) == 0
    assert "never had, and the copy names no more; their bytes stay until gc (1): run_3" in capsys.readouterr().out
    assert stage_store(store, copy).left == []


def test_a_lost_store_is_restored_from_its_copy(tmp_path: Path) -> None:
    files, store, copy = write_source(tmp_path / "files"), tmp_path / "store", tmp_path / "copy"
    convert(KIND, store, root=files, sample_ids=["run_1", "run_2"])
    stage_store(store, copy)
    with pytest.raises(StoreError, match="holds a store that is not a copy of"):
        stage_store(copy, store)
    shutil.rmtree(store)
    stage_store(copy, store, sample_ids=["run_1"])
    stage_store(copy, store)  # as after an interruption
    assert load_manifest(store).origin == store_info(store).origin == {}
    assert not [note for note in convert(KIND, store, root=files).notes if "copy" in note]
    assert stage_store(store, copy).ok
    assert_reads_equal(copy, store, ["run_1", "run_2", "run_3"])
    assert stage_store(store, store, layout="packed").ok
    with pytest.raises(StoreError, match="holds a store that is not a copy of"):
        stage_store(copy, store)


def test_a_store_is_the_same_by_way_of_links(source: Path, tmp_path: Path) -> None:
    link, copy = tmp_path / "link", tmp_path / "copy"
    link.symlink_to(source)
    stage_store(source, copy)
    for same in (link, f"{tmp_path}//source_store", f"{tmp_path}/./source_store"):
        assert stage_store(same, copy).copied == 0
        with pytest.raises(StoreError, match="onto itself"):
            stage_store(same, source)
    assert stage_store(link, source, layout="packed").ok
    assert {entry.layout for entry in load_manifest(source).samples.values()} == {"packed"}


def test_split_lists_that_the_source_no_longer_has_leave_the_copy(tmp_path: Path) -> None:
    files, store, copy = write_source(tmp_path / "files", kind="drivaernet"), tmp_path / "store", tmp_path / "copy"
    lists = {"train_design_ids.txt": "run_1\nrun_2\n", "val_design_ids.txt": "run_3\n", "blacklist.txt": "run_3\n"}
    for name, text in lists.items():
        (files / name).write_text(text)
    convert("drivaernet", store, root=files)
    stage_store(store, copy)
    assert lists.keys() <= objects(copy).keys()
    for name in ("val_design_ids.txt", "blacklist.txt"):
        (files / name).unlink()
    convert("drivaernet", store, root=files)
    stage_store(store, copy)
    assert lists.keys() & objects(copy).keys() == lists.keys() & objects(store).keys() == {"train_design_ids.txt"}


def test_a_copy_on_its_way_to_other_fields_names_no_sample_without_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_store(source, tmp_path / "copy", fields=FIELDS)
    flip(source / load_manifest(str(source)).samples["run_2"].relpath / "surface/pressure/c/0/0")
    assert [sample.sample_id for sample in stage_store(source, tmp_path / "copy").failed] == ["run_2"]
    assert ZarrChunkReader(tmp_path / "copy").sample_ids == ["run_1", "run_3"]
    assert verify_store(str(tmp_path / "copy")).ok


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fields": ["surface_presure"]}, UnknownFieldError, "no field 'surface_presure'; fields are surface_"),
        ({"sample_ids": ["run_9"]}, UnknownFieldError, "no sample 'run_9'"),
        ({"split": "tran"}, UnknownFieldError, "no split 'tran'"),
        ({"sample_ids": []}, ZarrCoreError, "none of the requested samples"),
        ({"generation": 7}, StoreError, "no generation 7"),
        ({"workers": 0}, ZarrCoreError, "workers"),
    ],
)
def test_invalid_selections_are_refused(
    source: Path, tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        stage_store(source, tmp_path / "copy", **options)
    assert not (tmp_path / "copy").exists()


def test_invalid_destinations_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="onto itself"):
        stage_store(source, f"{source}/")
    shutil.copytree(source, tmp_path / "other")
    with pytest.raises(StoreError, match="not a copy of"):
        stage_store(source, tmp_path / "other")
    with pytest.raises(StoreError, match="holds no manifest"):
        stage_store(tmp_path / "nothing", tmp_path / "copy")
    stage_store(source, tmp_path / "copy", sample_ids=["run_1"])
    with pytest.raises(StoreError, match="1 more samples, with the fields"):
        stage_store(source, tmp_path / "copy", sample_ids=["run_2"], fields=FIELDS)
    with FileLock(tmp_path / "copy" / ".stage.lock"), pytest.raises(StoreError, match="another process is staging"):
        stage_store(source, tmp_path / "copy")
    assert_reads_equal(tmp_path / "copy", source, ["run_1"])
    stage_store(source, tmp_path / "copy", sample_ids=["run_1"], fields=FIELDS)
    assert_reads_equal(tmp_path / "copy", source, ["run_1"], FIELDS)


def test_a_copy_of_another_programs_store_has_its_statistics(tmp_path: Path) -> None:
    store = write_published_store(tmp_path / "store", make_samples(1), 16, splits={"train": ["run_1"]})
    (store / "stats.yaml").write_text("surface_pressure_mean: 1.5\nsurface_pressure_std: 2.0\n")
    stage_store(store, tmp_path / "copy")
    assert (tmp_path / "copy/statistics/00000001/train.yaml").read_bytes() == (store / "stats.yaml").read_bytes()
    config = {"kind": "point", "split": "train", "normalizers": {"surface_pressure": "mean_std"}}
    made = [build_dataset(config | {"root": str(root)}).normalizers for root in (store, tmp_path / "copy")]
    assert made[0] == made[1]


def test_the_command_line(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = str(tmp_path / "copy")
    assert main([str(source), copy, "--split", "train", "--fields", *FIELDS, "--samples", "run_1", "run_2"]) == 0
    printed = capsys.readouterr()
    assert "2 samples staged" in printed.out
    assert "0 failed" in printed.out
    assert "2/2" in printed.err
    assert_reads_equal(copy, source, ["run_1", "run_2"], FIELDS)
    assert main([str(source), copy, "--split", "nonsense"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    flip(source / load_manifest(str(source)).samples["run_3"].relpath / "surface/pressure/c/0/0")
    assert main([str(source), copy, "--fields", *FIELDS]) == 1
    assert "failed: run_3: samples/run_3/" in capsys.readouterr().out


def test_a_thin_copy_by_the_command_line(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = str(tmp_path / "copy")
    assert main([copy, "--source", str(source), "--points", "volume=20", "--layout", "packed"]) == 0
    said = "points: volume=20 of each sample, in whole chunks; the statistics are those of all points"
    assert said in capsys.readouterr().out.splitlines()
    assert info([copy]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("copy of") and line.endswith("points volume=20") for line in lines)
    assert any(
        "of all points of the source, of which this copy has volume=20, in whole chunks" in line for line in lines
    )
    assert any("volume: 32 to 32 per sample" in line for line in lines)
    assert main([copy, "--source", str(source), "--points", "wake=20"]) == 1
    assert "no domain 'wake'; domains are surface, volume" in capsys.readouterr().err
    assert main([copy, "--source", str(source), "--layout", "zip"]) == 2
    assert "--layout" in capsys.readouterr().err


def test_the_statistics_beside_the_manifest_are_those_of_the_last_commit(
    source: Path, tmp_path: Path, pristine: Path, memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later generation is staged to the same bucket while the statistics of an earlier one are about to be copied."""
    earlier = load_manifest(source).generation
    shutil.copytree(pristine / "source", tmp_path / "files")
    shutil.rmtree(tmp_path / "files/run_1")
    write_source(tmp_path / "files", ("run_1",), seed=9)
    record_training_statistics(str(source), convert(KIND, source, root=tmp_path / "files").manifest)
    copy_statistics = StoreCopy.copy_statistics

    def overtaken(self: StoreCopy, generation: int) -> None:
        monkeypatch.undo()
        stage_store(source, memory_root)
        copy_statistics(self, generation)

    monkeypatch.setattr(StoreCopy, "copy_statistics", overtaken)
    stage_store(source, memory_root, generation=earlier)
    copy, manifest = Storage(memory_root), load_manifest(memory_root)
    assert (manifest.generation, manifest.origin["generation"]) == (2, earlier + 1)
    for name in ("stats.yaml", "stats.json"):
        assert copy.read(name) == (source / name).read_bytes()
    assert copy.read("statistics/00000001/train.yaml") != copy.read("stats.yaml")
