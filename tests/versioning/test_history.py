"""The history of a point store: the changes of each commit."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.small_source import KIND, write_source
from zarr_core import diff, log, write_sample
from zarr_core.points.convert.conversion import convert
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.storage import Storage, StoredObject
from zarr_core.stores.summary import store_info
from zarr_core.tag import main as tag
from zarr_core.versioning import archive, history
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.generations import commit


@pytest.fixture(params=["plain", "compressed"])
def store(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What each generation does.

    1 adds run_1 and run_2, 2 adds run_3, 3 changes the settings, 4 replaces run_1, 5 quarantines run_2,
    6 retires run_3.
    """
    if request.param == "compressed":
        monkeypatch.setattr(archive, "_PLAIN_BYTES", 0)
    source, root = write_source(tmp_path / "source"), tmp_path / "store"
    settings = {"root": source, "chunk_points": 16}
    convert(KIND, root, sample_ids=["run_1", "run_2"], **settings)
    convert(KIND, root, **settings)
    convert(KIND, root, sample_ids=["run_1"], reconvert=True, **settings | {"chunk_points": 32, "codec": "zstd:1"})
    torch.save(torch.zeros(3), source / "run_2" / "surface_pressure.pt")
    convert(KIND, root, sample_ids=["run_2"], **settings | {"chunk_points": 32})
    shutil.rmtree(source / "run_3")
    convert(
        KIND, root, retire_vanished=True, sample_ids=["run_1"], **settings | {"chunk_points": 32, "codec": "zstd:1"}
    )
    return root


def lines_of(command: object, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert command.main(list(arguments)) == 0  # type: ignore[attr-defined]
    return capsys.readouterr().out.splitlines()


def changes(lines: list[str]) -> list[str]:
    """Lines without those that name generations and times."""
    return [line.strip() for line in lines if line.startswith("  ")]


def test_log_lists_the_changes_of_each_commit_newest_first(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(log, capsys, str(store))
    assert [line.split()[1] for line in lines if line.startswith("generation ")] == list("654321")
    first, later = (
        ConversionSettings(**settings).digest
        for settings in ({"chunk_points": 16}, {"chunk_points": 32, "codec": "zstd:1"})
    )
    assert changes(lines) == [
        "retired 1: run_3",
        "quarantined 1: run_2",
        f"replaced 1: run_1 (settings {later})",
        "points per chunk: 16 -> 32",
        "points per shard: 80 to 240 -> 96 to 256",
        f"settings: {first} -> {later}",
        "codec: none -> zstd:1",
        f"added 1: run_3 (settings {first})",
        f"added 2: run_1, run_2 (settings {first})",
    ]
    assert lines_of(log, capsys, str(store), "--limit", "2")[1:] == lines[1:4]


def test_settings_of_single_fields_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, root = write_source(tmp_path / "source", sample_ids=("run_1",)), tmp_path / "store"
    convert(KIND, root, root=source)
    settings = {"field_dtypes": {"surface_position": "float32"}, "max_errors": {"surface_pressure": "1e-3std"}}
    convert(KIND, root, root=source, reconvert=True, layout="packed", **settings)
    wanted = {
        "dtypes of single fields: none -> surface_position float32",
        "error bounds: none -> surface_pressure 0.001std",
        "layout: directory -> packed",
    }
    assert wanted <= set(changes(lines_of(log, capsys, str(root))))
    assert wanted <= set(lines_of(diff, capsys, str(root), "1"))
    info = store_info(str(root))
    assert info.settings["field_dtypes"] == {"surface_position": "float32"}


def test_samples_that_change_between_splits_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers of samples stay the same."""
    store = tmp_path / "store"
    rows = np.random.default_rng(0).normal(size=(8, 3))
    for sample_id, split in (("a", "train"), ("b", "train"), ("c", "val")):
        write_sample(store, sample_id, {"surface_position": rows}, split=split, dataset_name="cars")
    before = load_manifest(store)
    for splits in ({"train": ["a", "c"], "val": ["b"]}, {"train": ["c", "a"], "val": ["b"]}):
        commit(Storage(store), HEAD, lambda current, splits=splits: replace(current, splits=splits))
    lines = changes(lines_of(log, capsys, str(store)))
    assert lines[:5] == [
        "splits: another order of train",
        "added to train 1: c",
        "removed from train 1: b",
        "added to val 1: b",
        "removed from val 1: c",
    ]
    assert before.splits == {"train": ["a", "b"], "val": ["c"]}


def test_diff_of_two_generations(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tag([str(store), "paper", "2"]) == 0
    capsys.readouterr()
    since = lines_of(diff, capsys, str(store), "paper")
    assert [line.split(" (")[0] for line in since][:3] == [
        "replaced 1: run_1",
        "retired 1: run_3",
        "quarantined 1: run_2",
    ]
    back = lines_of(diff, capsys, str(store), "6", "1")
    assert [line.split(" (")[0] for line in back][:2] == ["replaced 1: run_1", "released 1: run_2"]
    assert lines_of(diff, capsys, str(store), "3", "3") == ["no changes between generations 3 and 3"]
    assert diff.main([str(store), "3", "9"]) == 1
    assert "no generation 9" in capsys.readouterr().err


def test_log_after_earlier_generations_were_collected(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tag([str(store), "paper", "4"]) == 0
    for path in store.rglob("*"):
        os.utime(path, (1e9, 1e9))
    collect_garbage(Storage(store), HEAD, 3600)
    capsys.readouterr()
    lines = lines_of(log, capsys, str(store))
    assert lines[0].startswith("generation 6  2001-09-09")
    assert lines[1] == "  since generation 4; those between have been collected"
    assert lines[2:4] == ["  retired 1: run_3", "  quarantined 1: run_2"]
    assert lines[4].endswith("tags: paper")
    assert lines[5:] == ["  the generations before it have been collected"]


@pytest.mark.slow
@pytest.mark.parametrize("tagged", [None, "4"])
def test_log_while_earlier_generations_are_collected(
    store: Path, tagged: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are collected after they were listed."""
    if tagged:
        assert tag([str(store), "paper", tagged]) == 0
    for path in store.rglob("*"):
        os.utime(path, (1e9, 1e9))
    listed = archive.documents

    def then_collected(storage: Storage) -> dict[int, StoredObject]:
        found = listed(storage)
        monkeypatch.setattr(history, "documents", listed)
        collect_garbage(Storage(store), HEAD, 3600)
        return found

    monkeypatch.setattr(history, "documents", then_collected)
    capsys.readouterr()
    listed_now, listed_then = lines_of(log, capsys, str(store)), lines_of(log, capsys, str(store))
    generations = [[line for line in lines if line.startswith("generation")] for lines in (listed_now, listed_then)]
    assert generations[0] == generations[1]
    assert len(generations[0]) == 1 + (tagged is not None)


def test_log_lists_a_commit_whose_writer_died_before_archiving_it(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = lines_of(log, capsys, str(store))
    (archived,) = (store / "generations").glob("00000006.json*")
    archived.unlink()
    assert lines_of(log, capsys, str(store))[1:] == whole[1:]
