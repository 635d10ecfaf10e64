"""Verification of a store by itself: every kind of damage is reported with its location."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zarr_core.points.verify.store
from tests.helpers.small_source import KIND, load_field
from tests.helpers.stores import flip
from tests.points.verify.damaged import check, edit_json, group_of, messages, rewrite
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.points.verify.store import verify_store
from zarr_core.storage import Storage
from zarr_core.storage.backends import local
from zarr_core.verify import format_report, main
from zarr_core.versioning.tags import make_tag


@pytest.mark.parametrize("workers", [1, 2])
def test_all_equal(place: Path, workers: int) -> None:
    report = check(place, workers=workers)
    assert messages(report) == []
    assert report.ok
    assert (report.samples, report.arrays) == (3, 21)
    assert report.fields["surface_pressure"].points == 70 + 77 + 84
    assert format_report(report).splitlines()[-1].startswith("all equal: 3 samples, 21 arrays")


def test_without_a_source_the_store_is_checked_by_itself(place: Path) -> None:
    shutil.rmtree(place / "source")
    report = verify_store(str(place / "store"))
    assert report.ok
    assert "all sound" in format_report(report)


def test_flipped_byte_names_the_chunk_and_hides_nothing(place: Path) -> None:
    group = group_of(place, "run_1")
    # Chunk 5 is the second of the second shard (64 points of 16).
    layout = ArrayLayout.from_zarr_json(json.loads((group / "volume/velocity/zarr.json").read_text()))
    shard = group / "volume/velocity/c/1/0"
    index = np.frombuffer(shard.read_bytes()[-layout.index_bytes : -4], "<u8").reshape(-1, 2)
    flip(shard, int(index[1, 0]) + 3)
    flip(shard, int(index[3, 0]))
    flip(group / "surface/pressure/c/0/0", 0)
    expected = [
        "run_1, surface_pressure: chunk 0: checksum mismatch (surface/pressure/c/0/0)",
        "run_1, volume_velocity: chunk 5: checksum mismatch (volume/velocity/c/1/0)",
        "run_1, volume_velocity: chunk 7: checksum mismatch (volume/velocity/c/1/0)",
    ]
    assert messages(check(place)) == expected
    assert messages(verify_store(str(place / "store"))) == expected


@pytest.mark.slow
@pytest.mark.parametrize("at", range(0, 1500, 97))
def test_any_flipped_byte_of_a_shard_is_found(place: Path, at: int) -> None:
    shard = group_of(place, "run_2") / "volume/position/c/0/0"
    flip(shard, at % shard.stat().st_size)
    (problem,) = verify_store(str(place / "store")).problems
    assert (problem.sample_id, problem.field) == ("run_2", "volume_position")


def test_flipped_byte_in_a_shard_index(place: Path) -> None:
    flip(group_of(place, "run_1") / "surface/friction/c/0/0", -10)
    assert messages(check(place)) == [
        "run_1, surface_friction: shard 0: shard index: checksum mismatch (surface/friction/c/0/0)"
    ]


def test_swapped_rows_are_found_though_the_values_are_the_same(place: Path) -> None:
    def swap(rows: np.ndarray) -> np.ndarray:
        rows[[3, 40]] = rows[[40, 3]]
        return rows

    rewrite(place, "run_1", "surface/pressure", swap)
    stored = ZarrChunkReader(place / "store").read_sample("run_1", fields=["surface_pressure"])["surface_pressure"]
    source = load_field(place / "source", "run_1", "surface_pressure")
    assert np.array_equal(np.sort(stored, axis=0), np.sort(source, axis=0))
    problems = [line for line in messages(check(place)) if "bytes" not in line]
    assert len(problems) == 1
    assert "run_1, surface_pressure: 2 of 70 rows differ from the source: stored row 3 is" in problems[0]
    assert not [line for line in messages(verify_store(str(place / "store"))) if "bytes" not in line]


def test_a_field_shuffled_like_another_domain_is_found(place: Path) -> None:
    rewrite(place, "run_1", "surface/friction", lambda rows: rows[::-1])
    assert any("surface_friction" in line and "rows differ" in line for line in messages(check(place)))


def test_missing_and_cut_shards(place: Path) -> None:
    group = group_of(place, "run_3")
    (group / "volume/pressure/c/2/0").unlink()
    (group / "volume/pressure/c/2/0").mkdir()  # a folder is no object
    cut = group / "surface/position/c/0/0"
    cut.write_bytes(cut.read_bytes()[:20])
    problems = messages(check(place))
    assert "run_3, volume_pressure: shard 2: the object is missing (volume/pressure/c/2/0)" in problems
    assert any(line.startswith("run_3, surface_position: shard 0: shard index") for line in problems)
    assert all(line.startswith("run_3, ") for line in problems)


def test_an_object_that_cannot_be_read_hides_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of(place, "run_1")
    bad = str(group / "volume/pressure/c/2/0")
    flip(group / "volume/pressure/c/3/0", 0)
    read = local.read

    def read_from_a_failing_disk(path: str, *args: Any) -> bytes:
        if path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return read(path, *args)

    monkeypatch.setattr(local, "read", read_from_a_failing_disk)
    problems = messages(check(place))
    assert problems[0].startswith(f"run_1, volume_pressure: shard 2: cannot be read: [Errno {errno.EIO}]")
    assert problems[1] == "run_1, volume_pressure: chunk 12: checksum mismatch (volume/pressure/c/3/0)"
    assert len(problems) == 2


@pytest.mark.slow
def test_a_worker_that_dies_is_a_problem_of_its_sample(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The function is pickled by name, so the workers run os._exit.
    monkeypatch.setattr("zarr_core.points.verify.store.partial", lambda *_: _die)
    assert main([str(place / "store"), "--workers", "2"]) == 1
    text = capsys.readouterr().out
    assert "run_1: could not be checked: its worker process died" in text
    assert "convert" not in text, "that would repair nothing"


def _die(_: object) -> None:
    os._exit(3)


def test_missing_group_and_array_metadata(place: Path) -> None:
    (group_of(place, "run_1") / "zarr.json").unlink()
    array = group_of(place, "run_2") / "volume/velocity/zarr.json"
    array.write_text("{")
    problems = messages(verify_store(str(place / "store")))
    assert any(line.startswith("run_1: ") and line.endswith("zarr.json is missing") for line in problems)
    assert any(line.startswith("run_2, volume_velocity: ") and "not readable" in line for line in problems)
    assert len(problems) == 2


def test_unexpected_objects(place: Path) -> None:
    group = group_of(place, "run_1")
    (group / "surface/pressure/c/9").mkdir()
    (group / "surface/pressure/c/9/0").write_bytes(b"?")
    assert messages(check(place)) == ["run_1: surface/pressure/c/9/0 belongs to no array of the manifest"]


def test_temporary_files_beside_a_committed_group_are_no_damage(place: Path) -> None:
    """A file of a converter that is at work on the same sample, or was killed; the refusal before it was accepted."""
    group = group_of(place, "run_1")
    for name in (f"surface/pressure/c/0/.0.{'0' * 32}.tmp", "quarantine.json"):
        (group / name).write_bytes(b"?")
    assert check(place).ok


def test_a_commit_while_it_is_verified_is_no_damage(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = zarr_core.points.verify.store.load_manifest

    def overtaken(storage: Storage) -> StoreManifest:
        found = load(storage)
        make_tag(storage, HEAD, "paper")
        settings = {"chunk_points": 32, "reconvert": True}
        convert(KIND, place / "store", source_url=str(place / "source"), sample_ids=["run_1"], **settings)
        return found

    monkeypatch.setattr(zarr_core.points.verify.store, "load_manifest", overtaken)
    assert messages(check(place)) == []


def test_grid_of_the_manifest_against_that_of_the_array(place: Path) -> None:
    def halve(manifest: dict[str, Any]) -> None:
        manifest["samples"]["run_2"]["domains"]["surface"] |= {"chunk_points": 8, "n_chunks": 10}

    edit_json(place / "store" / "manifest.json", halve)
    problems = messages(check(place))
    assert "generations/00000001.json is not equal to manifest.json" in problems
    assert "run_2, surface_position: points per chunk: the array has 16, the manifest says 8" in problems
    assert "run_2, surface_position: chunks: the array has 5, the manifest says 10" in problems
    assert not any("volume" in line or "differ" in line for line in problems)


def test_dtype_and_width_of_the_manifest(place: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["domains"]["surface"]["arrays"]["surface_friction"] |= {"dtype": "float16", "dim": 1}

    edit_json(place / "store" / "manifest.json", change)
    problems = messages(check(place))
    assert "run_1, surface_friction: dtype: the array has float32, the manifest says float16" in problems
    assert "run_1, surface_friction: components: the array has 3, the manifest says 1" in problems


def test_metadata_inlined_in_the_group_is_that_of_the_array(place: Path) -> None:
    def change(group: dict[str, Any]) -> None:
        group["consolidated_metadata"]["metadata"]["surface/pressure"]["fill_value"] = 1.0
        del group["consolidated_metadata"]["metadata"]["surface/friction"]

    edit_json(group_of(place, "run_1") / "zarr.json", change)
    assert sorted(messages(check(place))) == [
        "run_1, surface_friction: is not in the metadata of its group",
        "run_1, surface_pressure: its zarr.json differs from the copy in that of its group",
    ]


def test_bytes_of_the_manifest(place: Path) -> None:
    for name in ("manifest.json", "generations/00000001.json"):
        edit_json(place / "store" / name, lambda manifest: manifest["samples"]["run_2"].update(bytes=12))
    (problem,) = messages(check(place))
    assert problem.startswith("run_2: its arrays have")
    assert problem.endswith("the manifest says 12")


def test_samples_shuffled_with_different_seeds(place: Path) -> None:
    settings = {"chunk_points": 16, "shard_points": 64, "values_dtype": "float32"}
    convert(
        KIND,
        place / "store",
        source_url=str(place / "source"),
        sample_ids=["run_2"],
        shuffle_seed=5,
        reconvert=True,
        **settings,
    )
    assert load_manifest(str(place / "store")).shuffle_seed == 5
    assert messages(check(place)) == []


def test_recorded_moments_and_sizes_are_checked(place: Path) -> None:
    def change(group: dict[str, Any]) -> None:
        attributes = group["attributes"]["zarr_core"]
        attributes["moments"]["surface_pressure"]["mean"][0] += 1e-3
        attributes["stored_bytes"]["volume_velocity"] += 1
        attributes["fingerprint"] = "0" * 16

    edit_json(group_of(place, "run_1") / "zarr.json", change)
    problems = messages(check(place))
    assert len(problems) == 3
    assert any("run_1, surface_pressure: recorded mean" in line for line in problems)
    assert any("run_1, volume_velocity: its shards have" in line for line in problems)
    assert any("run_1: its group's fingerprint is" in line for line in problems)


def test_recorded_chunk_lengths_are_checked(place: Path) -> None:
    """Training finds chunks by them, not by the indexes of shards."""

    def change(document: dict[str, Any]) -> None:
        lengths = document["attributes"]["zarr_core"]["chunk_bytes"]
        lengths["surface/pressure"] = lengths["surface/friction"]
        lengths["volume/pressure"] = "?"

    edit_json(group_of(place, "run_1") / "zarr.json", change)
    reason = "the recorded lengths of its chunks, chunk_bytes, are not those in its shards"
    assert messages(check(place)) == [f"run_1, surface_pressure: {reason}", f"run_1, volume_pressure: {reason}"]
    assert convert(KIND, place / "store", source_url=str(place / "source"), force=True, sample_ids=["run_1"]).ok
    assert check(place).ok


def test_values_that_are_not_finite(place: Path) -> None:
    def spoil(rows: np.ndarray) -> np.ndarray:
        rows[20], rows[21] = np.nan, np.inf
        return rows

    rewrite(place, "run_1", "volume/pressure", spoil)
    assert any(
        line == "run_1, volume_pressure: chunk 1: 2 values are not finite"
        for line in messages(verify_store(str(place / "store")))
    )
    assert any("2 of 230 rows differ" in line for line in messages(check(place)))


def test_only_the_requested_samples(place: Path) -> None:
    flip(group_of(place, "run_1") / "surface/pressure/c/0/0", 0)
    assert check(place, sample_ids=["run_2", "run_3"]).samples == 2
    assert check(place, sample_ids=["run_2", "run_3"]).ok
    with pytest.raises(UnknownFieldError, match="holds no sample 'run_9'"):
        check(place, sample_ids=["run_9"])


def test_command_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, source = str(place / "store"), str(place / "source")
    assert main([store, "--source", source]) == 0
    assert "all equal: 3 samples, 21 arrays" in capsys.readouterr().out
    flip(group_of(place, "run_1") / "surface/pressure/c/0/0", 0)
    assert main([store, "--source", source, "--samples", "run_1", "run_2"]) == 1
    out = capsys.readouterr().out
    assert "run_1, surface_pressure: chunk 0: checksum mismatch (surface/pressure/c/0/0)" in out.splitlines()
    assert "1 problem in 2 samples" in out
    assert main([store, "--samples", "run_9"]) == 1
    assert main([str(place / "nothing")]) == 1
    errors = capsys.readouterr().err
    assert errors.count("error: ") == 2
    assert "Traceback" not in errors


def test_numbers_of_workers_must_be_positive(place: Path) -> None:
    with pytest.raises(ZarrCoreError, match="workers must be positive"):
        check(place, workers=0)
