"""Stores that are repacked in place."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.faults import Kill, is_killed
from tests.helpers.small_source import KIND, load_field, write_source
from tests.helpers.stores import objects, write_broken
from zarr_core.datasets import build_dataset
from zarr_core.errors import StoreError
from zarr_core.points.convert import conversion
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.stage import store as staging
from zarr_core.points.stage.store import stage_store
from zarr_core.points.statistics_files import load_statistics, statistics_hint
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.settings import current_settings
from zarr_core.points.verify.store import verify_store
from zarr_core.stage import main
from zarr_core.statistics import main as statistics
from zarr_core.storage import Storage
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.tags import make_tag

SAMPLES = ("run_1", "run_2", "run_3")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A source and its store, with a refused sample and statistics."""
    write_source(tmp_path / "source", (*SAMPLES, "run_4"))
    write_broken(tmp_path / "source", "run_4", "surface_pressure.pt", np.nan * load(tmp_path, "run_4"))
    convert_again(tmp_path)
    assert statistics([str(tmp_path / "store"), "--split", "train", "--quiet"]) == 0
    return tmp_path


def load(place: Path, sample_id: str) -> Any:
    import torch

    return torch.from_numpy(load_field(place / "source", sample_id, "surface_pressure"))[:, 0]


def convert_again(place: Path, store: str = "store", **options: Any) -> Any:
    return convert(KIND, place / store, root=place / "source", chunk_points=16, **options)


def in_samples(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in objects(root).items() if name.startswith("samples/")}


def current_groups(root: Path) -> dict[str, bytes]:
    """The objects of the groups that the current manifest names."""
    groups = tuple(entry.relpath for entry in load_manifest(root).samples.values())
    return {name: data for name, data in in_samples(root).items() if name.startswith(groups)}


def of_training(root: Path) -> dict[str, Any]:
    """The statistics that datasets of the current generation normalize with."""
    return load_statistics(Storage(root), load_manifest(root))[0]


def statuses(report: Any) -> dict[str, str]:
    return {result.sample_id: result.status for result in report.results}


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "other"), [("directory", "packed"), ("packed", "directory")])
def test_a_repacked_store_is_as_if_it_had_been_converted_again(tmp_path: Path, layout: Any, other: Any) -> None:
    write_source(tmp_path / "source", SAMPLES)
    convert_again(tmp_path, layout=layout)
    before = in_samples(tmp_path / "store")
    make_tag(Storage(tmp_path / "store"), HEAD, "paper")
    pinned = ZarrChunkReader(tmp_path / "store")
    report = stage_store(tmp_path / "store", tmp_path / "store", layout=other)
    assert report.ok
    convert_again(tmp_path, "converted", layout=other)
    assert current_groups(tmp_path / "store") == current_groups(tmp_path / "converted")
    assert before.items() <= in_samples(tmp_path / "store").items()
    manifest = load_manifest(tmp_path / "store")
    expected = load_manifest(tmp_path / "converted")
    assert manifest.samples == expected.samples
    assert manifest.conversion == expected.conversion
    for reader in (pinned, ZarrChunkReader(tmp_path / "store", generation="paper")):
        for sample_id in SAMPLES:
            read, now = reader.read_sample(sample_id), ZarrChunkReader(tmp_path / "store").read_sample(sample_id)
            assert all(np.array_equal(read[name], now[name]) for name in now)
    assert verify_store(tmp_path / "store", source=str(tmp_path / "source"), deep=True).problems == []
    generation = manifest.generation
    again = stage_store(tmp_path / "store", tmp_path / "store", layout=other)
    assert (again.samples, again.manifest.generation) == ([], generation)


def test_no_sample_is_converted_again_and_new_ones_get_the_layout(place: Path) -> None:
    stage_store(place / "store", place / "store", layout="packed")
    manifest = load_manifest(place / "store")
    settings = current_settings(manifest)
    assert settings is not None
    assert settings.layout == "packed"
    assert manifest.quarantine["run_4"].settings == settings.digest
    write_source(place / "source", ("run_5",))
    report = convert_again(place)
    assert {sample for sample, status in statuses(report).items() if status == "converted"} == {"run_5"}
    assert list(load_manifest(place / "store").quarantine) == ["run_4"]
    assert load_manifest(place / "store").quarantine["run_4"].settings == settings.digest
    assert all(entry.head for entry in load_manifest(place / "store").samples.values())
    assert load_manifest(place / "store").generation == manifest.generation + 1


@pytest.mark.filterwarnings("ignore:.*are absent and skipped:UserWarning")
def test_datasets_of_each_new_generation_have_their_statistics(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: dict[str, Any] = {"kind": KIND, "root": str(place / "store"), "split": "train", "num_surface_points": 8}
    config["normalizers"] = {"surface_pressure": "mean_std"}
    before = build_dataset(config).normalizers
    stage_sample = staging.stage_sample

    def opened_meanwhile(*arguments: Any) -> Any:
        assert str(build_dataset(config).normalizers) == str(before)
        return stage_sample(*arguments)

    monkeypatch.setattr(staging, "stage_sample", opened_meanwhile)
    stage_store(place / "store", place / "store", layout="packed")
    assert load_manifest(place / "store").generation == 3
    assert str(build_dataset(config).normalizers) == str(before)


def test_garbage_collection_frees_the_old_groups(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = [entry.relpath for entry in load_manifest(place / "store").samples.values()]
    stage_store(place / "store", place / "store", layout="packed")
    now = Storage.now
    for hours in (1, 100, 200):
        monkeypatch.setattr("zarr_core.versioning.gc.time.time", lambda h=hours: 3600 * h + now_of(now, place))
        monkeypatch.setattr(Storage, "now", lambda self, h=hours: now(self) + 3600 * h)
        collect_garbage(Storage(place / "store"), HEAD, 0)
    assert not [name for name in in_samples(place / "store") if name.startswith(tuple(f"{path}/z" for path in old))]
    monkeypatch.undo()
    assert verify_store(place / "store").problems == []


def now_of(now: Any, place: Path) -> float:
    return float(now(Storage(place / "store")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    [
        Kill("rename", r"\.zip$", 1),
        Kill("rename", r"\.zip$", 3),
        Kill("create", r"\.zip\.", 2),
        Kill("rename", "/manifest.json$", 1),
        Kill("rename", "/manifest.json$", 2),
        Kill("create", "/statistics/", 1),
        Kill("create", "/statistics/", 3),
    ],
    ids=str,
)
def test_a_killed_repacking_is_finished_by_the_next(place: Path, kill: Kill) -> None:
    """Also its statistics: the first two files are of the commit of the settings, the next of that of the samples."""
    shutil.copytree(place / "store", place / "other")
    assert is_killed(kill, stage_store, place / "store", place / "store", layout="packed")
    assert verify_store(place / "store").problems == []
    assert stage_store(place / "store", place / "store", layout="packed").ok
    stage_store(place / "other", place / "other", layout="packed")
    assert current_groups(place / "store") == current_groups(place / "other")
    assert of_training(place / "store") == of_training(place / "other")
    assert verify_store(place / "store", source=str(place / "source")).problems == []


def test_a_sample_that_is_converted_meanwhile_wins(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = staging.stage_sample

    def overtaken(task: Any, item: Any) -> Any:
        result = real(task, item)
        if item[0] == "run_2":
            shutil.rmtree(place / "source" / "run_2")
            write_source(place / "source", ("run_2",), seed=9)
            convert_again(place, sample_ids=["run_2"])
        return result

    monkeypatch.setattr(staging, "stage_sample", overtaken)
    stage_store(place / "store", place / "store", layout="packed")
    assert verify_store(place / "store", source=str(place / "source")).problems == []


def test_a_conversion_during_a_repacking_is_to_be_run_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_source(place / "source", ("run_5",))
    real = conversion.convert_samples

    def overtaken(*arguments: Any) -> Any:
        stage_store(place / "store", place / "store", layout="packed")
        return real(*arguments)

    monkeypatch.setattr(conversion, "convert_samples", overtaken)
    message = (
        "layout is 'packed' in the store, not 'directory'. Run again without .* a repacking may have changed meanwhile"
    )
    with pytest.raises(StoreError, match=message):
        convert(KIND, place / "store", root=place / "source")
    monkeypatch.undo()
    assert statuses(convert(KIND, place / "store", root=place / "source"))["run_5"] == "converted"


def test_a_migration_that_begins_before_a_repacking_has_committed_its_layout_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings of the migration stay, whose samples have the old layout: the repacking has not been done."""
    commit = staging.Repacking._commit

    def overtaken(self: Any, samples: Any) -> Any:
        monkeypatch.setattr(staging.Repacking, "_commit", commit)
        convert_again(place, codec="zstd:1", reconvert=True)
        return commit(self, samples)

    store = str(place / "store")
    monkeypatch.setattr(staging.Repacking, "_commit", overtaken)
    with pytest.raises(StoreError, match="a conversion has committed other settings meanwhile: repack it again"):
        stage_store(store, store, layout="packed")
    assert {entry.layout for entry in load_manifest(store).samples.values()} == {"directory"}
    assert stage_store(store, store, layout="packed").ok
    settings = current_settings(load_manifest(store))
    assert settings is not None
    assert (settings.layout, settings.codec) == ("packed", "zstd:1")
    assert {entry.layout for entry in load_manifest(store).samples.values()} == {"packed"}
    assert convert_again(place).having("converted") == []


@pytest.mark.parametrize(
    "options", [{}, {"layout": "packed", "sample_ids": ["run_1"]}, {"layout": "packed", "points": "5%"}]
)
def test_a_part_of_a_store_is_not_repacked(place: Path, options: Any) -> None:
    with pytest.raises(StoreError, match="cannot be staged onto itself; .*--layout packed"):
        stage_store(place / "store", place / "store", **options)


def test_a_copy_is_not_repacked(place: Path) -> None:
    stage_store(place / "store", place / "copy")
    with pytest.raises(StoreError, match="is a copy of .*: stage it again from there, with --layout"):
        stage_store(place / "copy", place / "copy", layout="packed")


def test_a_copy_that_took_the_place_of_its_origin_is_a_store_of_its_own(place: Path) -> None:
    store = place / "store"
    stage_store(store, place / "copy")
    shutil.rmtree(store)
    (place / "copy").rename(store)
    generation = load_manifest(store).generation
    command = f"`zarr-core statistics {store} --split train --generation {generation}`$"
    assert re.search(command, statistics_hint(Storage(store), load_manifest(store)))
    assert stage_store(store, store, layout="packed").ok
    write_source(place / "source", ("run_5",))
    assert not [note for note in convert_again(place).notes if "is a copy of" in note]


def test_the_command_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(place / "store")
    assert main([store, "--source", store, "--layout", "packed"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("3 samples staged")
    assert printed.splitlines()[-1].endswith("3 samples of its own")
    assert main([store, "--source", store]) == 1
