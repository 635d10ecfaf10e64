"""Garbage collection of point stores during conversion, publication and staging."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from tests.helpers.small_source import KIND, write_source
from tests.helpers.waiting import LIMIT_SECONDS, wait_for
from zarr_core.errors import StoreError
from zarr_core.gc import main
from zarr_core.points.convert.conversion import convert
from zarr_core.points.convert.publish import commit_results, publish
from zarr_core.points.read.engines import ENGINES
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.stage.store import stage_store
from zarr_core.points.store.head import HEAD as POINTS
from zarr_core.points.store.head import load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.points.verify.store import verify_store
from zarr_core.statistics import main as statistics
from zarr_core.storage import Storage
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.generations import Retention, amend
from zarr_core.versioning.tags import make_tag

HOUR = 3600.0
DAY = 24 * HOUR


def age(store: Path, hours: float) -> None:
    """Make everything in a local store older."""
    for path in store.rglob("*"):
        if path.is_file():
            written = path.stat().st_mtime - hours * 3600
            os.utime(path, (written, written))


def read_all(store: Path, generation: int | str | None = None) -> dict[str, dict[str, bytes]]:
    reader = ZarrChunkReader(store, generation=generation)
    return {i: {f: a.tobytes() for f, a in reader.read_sample(i).items()} for i in reader.sample_ids}


def test_a_store_of_points_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_source(tmp_path / "source")
    store = tmp_path / "store"
    convert(KIND, store, source_url=str(source), chunk_points=16)
    tagged = read_all(store)
    make_tag(Storage(store), POINTS, "first")
    for chunk_points in (32, 64):
        convert(KIND, store, source_url=str(source), reconvert=True, chunk_points=chunk_points)
    (store / "samples" / "notes.txt").write_text("mine")
    assert main([str(store)]) == 0
    assert "removed 0 groups" in capsys.readouterr().out
    age(store, 30)
    assert main([str(store), "--dry-run", "--grace", "24h"]) == 0
    assert "would remove 3 groups" in capsys.readouterr().out
    assert main([str(store), "--grace", "24h"]) == 0
    printed = capsys.readouterr().out
    assert "removed 3 groups and statistics that no kept generation names" in printed
    assert "generations 2 to 4, and 0 incomplete files" in printed
    assert "kept generations 1, 5; 0 unnamed" in printed
    assert "left alone: 1 objects" in printed
    assert read_all(store, "first") == read_all(store, 1) == tagged
    assert verify_store(str(store)).ok
    assert len(list((store / "samples" / "run_1").iterdir())) == 2  # no empty folder is left
    assert main([str(store), "--grace", "soon"]) == 1


def test_statistics_live_as_long_as_their_generation(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    store = tmp_path / "store"
    for ids in (["run_1"], ["run_1", "run_2"], None):
        convert(KIND, store, source_url=str(source), sample_ids=ids, chunk_points=16)
        assert statistics([str(store), "--split", "train", "--quiet"]) == 0
    make_tag(Storage(store), POINTS, "first", 1)
    (store / "statistics" / "notes.txt").write_text("mine")
    age(store, 30)
    report = collect_garbage(Storage(store), POINTS, DAY)
    assert list(report.prefixes) == ["statistics/00000002"]
    assert (report.expired, report.foreign) == ([2], 1)
    left = {path.name for path in (store / "statistics").iterdir()}
    assert left == {"00000001", "00000003", "notes.txt"}
    assert (store / "stats.yaml").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_reading_a_collected_generation_names_the_reason(tmp_path: Path, engine: str) -> None:
    """A sample that is gone is no damage: the advice to convert it again would be wrong."""
    if engine == "tensorstore":
        pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    source, store = write_source(tmp_path / "source", ("run_1",)), tmp_path / "store"
    convert(KIND, store, source_url=str(source), chunk_points=16)
    reader = ZarrChunkReader(store, engine=engine)
    convert(KIND, store, source_url=str(source), reconvert=True, chunk_points=32)
    age(store, 30)
    collect_garbage(Storage(store), POINTS, DAY)
    for read in (reader.read_sample, reader.read_attributes):
        with pytest.raises(StoreError, match="no generation 1; .* has been collected"):
            read("run_1")


def _tombstones_in_capitals(current: StoreManifest) -> Retention:
    retention = current.retention
    capitals = {name.replace("samples/run", "samples/Run"): since for name, since in retention.tombstones.items()}
    return replace(retention, tombstones=capitals)


@pytest.mark.parametrize("spelling", ["the own", "another"])
def test_a_conversion_avoids_a_tombstoned_name(tmp_path: Path, spelling: str) -> None:
    """A disk that ignores case lists a folder by the spelling that it was first written by."""
    source = write_source(tmp_path / "source", ("run_1", "run_2 b"))
    store = tmp_path / "store"
    settings = {"a": {"chunk_points": 16, "reconvert": True}, "b": {"chunk_points": 32, "reconvert": True}}
    convert(KIND, store, source_url=str(source), **settings["a"])
    expected = read_all(store)
    first = {i: entry.relpath for i, entry in load_manifest(store).samples.items()}
    convert(KIND, store, source_url=str(source), **settings["b"])
    age(store, 30)
    collect_garbage(Storage(store), POINTS, DAY)
    assert not [relpath for relpath in first.values() if (store / relpath).exists()]
    if spelling == "another":
        amend(Storage(store), POINTS, _tombstones_in_capitals)
    report = convert(KIND, store, source_url=str(source), workers=2, **settings["a"])
    assert len(report.having("converted")) == 2
    assert all(entry.relpath != first[i] for i, entry in report.manifest.samples.items())
    assert read_all(store) == expected
    assert not publish(KIND, store, source_url=str(source), **settings["a"]).committed
    assert convert(KIND, store, source_url=str(source), **settings["a"]).having("converted") == []
    assert verify_store(str(store), source=str(source)).ok


def test_groups_that_are_tombstoned_before_they_are_published_are_left_out(tmp_path: Path) -> None:
    from zarr_core.points.convert.conversion import iter_convert

    source = write_source(tmp_path / "source", ("run_1", "run_2"))
    store = tmp_path / "store"
    convert(KIND, store, source_url=str(source), chunk_points=16)
    list(iter_convert(KIND, store, source_url=str(source), chunk_points=32, reconvert=True))
    age(store, 30)
    collect_garbage(Storage(store), POINTS, DAY)
    report = publish(KIND, store, source_url=str(source), chunk_points=32, reconvert=True)
    assert report.replaced == []
    outcomes = list(iter_convert(KIND, store, source_url=str(source), chunk_points=32, reconvert=True))
    assert [outcome.status for outcome in outcomes] == ["converted"] * 2
    assert sorted(publish(KIND, store, source_url=str(source), chunk_points=32, reconvert=True).replaced) == [
        "run_1",
        "run_2",
    ]


def test_a_conversion_whose_groups_are_collected_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_source(tmp_path / "source", ("run_1", "run_2"))
    store = tmp_path / "store"
    convert(KIND, store, source_url=str(source), chunk_points=16)

    def late(*arguments, **options):
        age(store, 30)
        collect_garbage(Storage(store), POINTS, DAY)
        return commit_results(*arguments, **options)

    monkeypatch.setattr("zarr_core.points.convert.conversion.commit_results", late)
    report = convert(KIND, store, source_url=str(source), chunk_points=32, reconvert=True)
    assert ["garbage collected" in result.reason for result in report.having("failed")] == [True] * 2
    monkeypatch.undo()
    assert len(convert(KIND, store, source_url=str(source), chunk_points=32, reconvert=True).having("converted")) == 2
    assert verify_store(str(store), source=str(source)).ok


def test_samples_collected_from_a_copy_can_be_staged_again(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1", "run_2"))
    store, copy = tmp_path / "store", tmp_path / "copy"
    convert(KIND, store, source_url=str(source), chunk_points=16)
    stage_store(store, copy)
    convert(KIND, store, source_url=str(source), chunk_points=32, reconvert=True)
    stage_store(store, copy)
    age(copy, 30)
    assert len(collect_garbage(Storage(copy), POINTS, DAY).prefixes) == 2
    stage_store(store, copy, generation=1)
    assert read_all(copy) == read_all(store, 1)
    assert stage_store(store, copy, generation=1).copied == 0
    assert verify_store(str(copy), deep=True).ok


def test_nothing_is_lost_while_converters_and_collectors_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a grace period a sample may be collected before its commit: it is reported, and nothing is lost."""
    source = write_source(tmp_path / "source", ("run_1", "run_2"), surface=40, volume=90)
    store = tmp_path / "store"
    convert(KIND, store, source_url=str(source), chunk_points=64)
    make_tag(Storage(store), POINTS, "first")
    first = read_all(store)

    collections = 0

    def late(*arguments: Any, **options: Any) -> Any:
        before = collections
        wait_for(lambda: collections > before + 1)  # a collection runs between writing a group and its commit
        return commit_results(*arguments, **options)

    monkeypatch.setattr("zarr_core.points.convert.conversion.commit_results", late)
    taken: list[str] = []

    together = Barrier(2, timeout=LIMIT_SECONDS)  # of two migrations to different settings, one is refused

    def convert_often() -> None:
        for number in range(3):
            together.wait()
            report = convert(KIND, store, source_url=str(source), reconvert=True, chunk_points=8 + number % 4)
            taken.extend(outcome.reason for outcome in report.having("failed"))

    with ThreadPoolExecutor(2) as threads:
        converters = [threads.submit(convert_often) for _ in range(2)]
        while not all(converter.done() for converter in converters):
            collect_garbage(Storage(store), POINTS, 0)
            collections += 1
        for converter in converters:
            converter.result()
    assert collections > 2
    assert verify_store(str(store), source=str(source), deep=True).problems == []
    assert read_all(store, "first") == first
    assert any(reason.startswith("its group was garbage collected") for reason in taken)
