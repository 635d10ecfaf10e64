"""A shootout from end to end: what it measures, what it names, and that it leaves nothing behind."""

from __future__ import annotations

import html
import itertools
import json
import math
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers.small_shootout import run_commands, shootout
from tests.helpers.small_source import KIND, write_source
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.points.store.head import load_manifest
from zarr_core.shootout import candidates, loading, run, run_shootout, turns, workload
from zarr_core.shootout.__main__ import main
from zarr_core.shootout.budget import Budget
from zarr_core.shootout.candidates import COLUMNS, LOSSY, OURS, Candidate, Loader, chunk_sizes
from zarr_core.shootout.formats.files import Window
from zarr_core.shootout.measurement import Measurement, Measurements
from zarr_core.shootout.page import render_page
from zarr_core.shootout.request import ShootoutRequest
from zarr_core.shootout.tiers import Tier
from zarr_core.shootout.turns import take_turns
from zarr_core.shootout.verdict import Case, judge

pytestmark = pytest.mark.usefixtures("quick")

_WORKERS = run._Run._workers


@pytest.mark.slow
def test_page_and_json_of_a_small_store(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Candidate("Unheard of", "nothing:Nothing", {}, "no_such_library")
    broken = Candidate("Broken", f"{__name__}:Broken")
    kept = [entry for entry in candidates.ENTRIES if entry.name in ("zarr_core", ".npy", ".pt", "pickle")]
    monkeypatch.setattr(workload, "ENTRIES", (*kept, absent, broken))
    report = shootout(store, tmp_path)
    assert json.loads((tmp_path / "out" / "shootout.json").read_text()) == report
    rows = report["measurements"]
    assert {row["format"] for row in rows} == {"zarr_core", ".npy", ".pt", "pickle", LOSSY}
    assert {row["reads"] for row in rows} == {"draws", "samples"}
    assert {row["codec"] for row in rows if row["format"] == "zarr_core"} >= {"none", "blosc-lz4:5", "zstd:3"}
    assert len({row["chunk_points"] for row in rows if row["format"] == "zarr_core"}) > 1
    of_layouts = {(row["layout"], row["reads"]) for row in rows if row["format"] == "zarr_core"}
    assert of_layouts == set(itertools.product(("directory", "packed"), ("draws", "samples")))
    assert all(row["low"] <= row["median"] <= row["high"] for row in rows)
    (lossy,) = (row for row in rows if row["format"] == LOSSY)
    assert (lossy["reads"], lossy["codec"], lossy["compared"]) == ("draws", "pcodec:8", False)
    assert any(LOSSY in reason for reason in report["verdict"]["reasons"])
    assert not any(LOSSY in entry["what"] for entry in report["not_measured"]), "it takes no part in the turns"
    (pt, *_) = (row for row in rows if row["format"] == ".pt")
    assert pt["objects"] == 7, "a file per field"
    assert pt["inodes"] == 8
    reasons = {entry["what"]: entry["reason"] for entry in report["not_measured"]}
    assert reasons["Unheard of"] == "no_such_library is not installed"
    assert reasons["draws: Broken, on scratch"] == "KeyError: 'no such chunk'"
    draws = [row for row in rows if row["reads"] == "draws" and row is not lossy]
    compared = [row for row in draws if row["compared"]] or draws
    assert report["verdict"]["setting"] in compared
    assert report["verdict"]["setting"]["median"] >= 0.95 * max(row["median"] for row in compared)
    assert list((tmp_path / "tier").iterdir()) == []
    page = (tmp_path / "out" / "shootout.html").read_text()
    assert report["verdict"]["command"].splitlines()[-1].partition("(")[0] in page
    assert "no_such_library is not installed" in page
    assert "64 points, error bound 1e-3 std, lossy</td>" in page, "bytes of it"
    assert page.count("<svg") >= 3
    assert not re.search(r"(?:src|href)=[\"']?https?:", page)


@pytest.mark.slow
def test_error_bounds_are_left_out_where_their_codec_is_not_installed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "BOUNDED", replace(candidates.BOUNDED, package="no_such_library"))
    report = shootout(store, tmp_path, formats=[OURS])
    assert {"what": LOSSY, "reason": "no_such_library is not installed"} in report["not_measured"]
    assert {row["format"] for row in report["measurements"]} == {OURS}


class Broken(Window):
    """A library that fails when it reads."""

    def read(self, sample: str, epoch: int) -> Any:
        raise KeyError("no such chunk")


@pytest.mark.slow
def test_page_and_command_of_a_small_matrix(matrix: WideMatrix, tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    tiers = {"scratch": str(tmp_path / "tier")}
    report = run_shootout(
        matrix.url, tiers, tmp_path / "out", budget=60.0, num_features=20, batch_size=2, formats=[OURS, ".npy", COLUMNS]
    )
    assert json.loads((tmp_path / "out" / "shootout.json").read_text()) == report
    rows = report["measurements"]
    found = {(row["format"], row["reads"]) for row in rows}
    assert found == {
        *((name, "samples") for name in (OURS, ".npy")),
        *((name, reads) for name in (OURS, ".npy", COLUMNS) for reads in ("selected", "features")),
    }
    assert {row["chunk_features"] for row in rows if row["format"] == ".npy"} == {0}
    assert {row["codec"] for row in rows if row["format"] == OURS} >= {"none", "blosc-lz4:5", "zstd:3"}
    assert {row["chunk_features"] for row in rows if row["format"] == OURS} >= {16, 100, 4}
    assert all(row["objects"] > 0 < row["bytes"] for row in rows)
    verdict = report["verdict"]
    assert any(reason.startswith("To read features of 6 samples: ") for reason in verdict["reasons"])
    assert verdict["setting"]["compared"]
    assert verdict["store"]["compared"], "also if another format leads"
    assert verdict["setting"]["turns"] >= 2
    assert {row["turns"] for row in rows if row["reads"] == "samples"} != {0}
    page = (tmp_path / "out" / "shootout.html").read_text()
    assert "<th>turns</th>" in page
    assert "Samples of 20 features per second, by format" in page
    run_commands(verdict["command"])


def test_epochs_from_storage_are_measured_if_the_data_exceed_the_memory(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = itertools.count(0, 10**9)
    monkeypatch.setattr(run, "memory_bytes", lambda: 1)
    monkeypatch.setattr(loading, "_bytes_from_device", lambda: next(device))
    report = shootout(store, tmp_path, formats=[".npy"])
    rows = report["measurements"]
    assert all(row["cold"] and len(row["rates"]) >= 2 for row in rows), "several epochs, so that the error is known"
    assert report["verdict"]["setting"]["compared"]
    assert "more than the memory of this machine" in report["verdict"]["reasons"][0]
    # Where files stay in memory, that is said.
    monkeypatch.setattr(loading, "_bytes_from_device", lambda: 0)
    report = shootout(store, tmp_path, formats=[".npy"])
    assert not any(row["cold"] or row["first"] for row in report["measurements"])
    assert "could not be dropped from memory" in report["verdict"]["reasons"][0]


def test_a_format_that_keeps_its_files_in_memory_does_not_stop_the_others(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def epochs(timer: loading.Timer, _: object) -> loading.Timing:
        return loading.Timing(None, [1.0], None, timer.reading.candidate.name != ".npy")

    monkeypatch.setattr(loading.Timer, "first_epochs", epochs)
    monkeypatch.setattr(run, "memory_bytes", lambda: 1)
    options = ShootoutRequest(str(store), {"scratch": str(tmp_path)}, samples=1)
    with Tier("scratch", str(tmp_path)) as tier:
        shootout = run._Run(
            options, Budget(math.inf), [tier], run.take_workload(options, tmp_path / "samples"), tmp_path
        )
        tier.dropped = False

        def is_cold(name: str, workers: int = 0) -> bool:
            m = Measurement("scratch", shootout.entries[name], "draws", [], Loader(workers))
            return shootout._time_cold(m, tier, math.inf) is not None

        assert not is_cold(".npy")
        assert is_cold("pickle")
        assert not is_cold("pickle", workers=1), "no measurement has shown that files are dropped"
        tier.dropped = True
        assert is_cold("pickle", workers=1)


def test_workers_beyond_the_shards_or_batches_are_named(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    assert run.worker_counts() == [1, 2, 16]
    assert run.worker_counts(8) == [1, 2, 8]
    assert run.worker_counts(1) == [1]
    options = ShootoutRequest(str(store), {"scratch": str(tmp_path)}, samples=3, batch_size=2)
    workload = run.take_workload(options, tmp_path / "samples")
    shootout = run._Run(options, Budget(math.inf), [], workload, tmp_path)
    m = Measurement("scratch", shootout.entries[".npy"], "draws", [1.0])
    assert shootout._most_workers(m) is None
    m.cold = True
    assert shootout._most_workers(m) == 2
    assert shootout.absent[-1] == (
        ".npy on scratch with more than 2 workers or threads",
        "an epoch of the samples measured has 2 batches; --limit sets their number",
    )
    monkeypatch.setattr("zarr_core.shootout.formats.shards.IndexedTars.streams", True)
    m = Measurement("bucket", shootout.entries["tar shards, indexed"], "draws", [1.0])
    shards = len(list(shootout.local_copy(m.candidate).glob("*.tar")))
    assert shootout._most_workers(m) == shards
    assert shootout.absent[-1][1].startswith(f"the samples measured make {shards} shards")


def test_settings_that_can_be_told_from_the_best_leave_the_turns(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ShootoutRequest(str(store), {"scratch": str(tmp_path)}, samples=1)
    workload = run.take_workload(options, tmp_path / "samples")
    rates = {".npy": [100.0, 104.0], "pickle": [99.0, 103.0], "HDF5": [50.0, 60.0], OURS: [10.0, 12.0]}
    measured: list[str] = []

    def measure(timer: loading.Timer) -> loading.Timing:
        measured.append(timer.reading.candidate.name)
        return loading.Timing(None, list(rates[measured[-1]]))

    monkeypatch.setattr(loading.Timer, "epochs", measure)
    with Tier("scratch", str(tmp_path)) as tier:
        shootout = run._Run(options, Budget(math.inf), [tier], workload, tmp_path)
        entries = {entry.name: entry for entry in workload.entries}
        settings = [entries[name].with_settings("none", 64) for name in rates]
        shootout.measured = Measurements(Measurement("scratch", each, "draws", [60.0]) for each in settings)
        take_turns([shootout.measured], shootout.budget, shootout._again)
    assert measured == [*rates, OURS, "pickle", ".npy"], "the second turn in reverse, without the slow one"
    assert {m.format for m in shootout.measured if m.compared} == {".npy", "pickle", OURS}, "and the best store"


def simulated(
    monkeypatch: pytest.MonkeyPatch, options: ShootoutRequest, seconds: float = 4
) -> tuple[dict[str, Any], float]:
    """A shootout whose measurements take equally long, twice as long with workers; its report, and what it took."""
    now = 0.0

    def measure(timer: loading.Timer, cold: bool = False) -> loading.Timing:
        nonlocal now
        reading = timer.reading
        now += seconds * (2 if reading.loader.workers else 1)
        rate = 100.0 + len(reading.candidate.name) - reading.loader.workers
        return loading.Timing(None, [rate, rate + 1])

    for name, value in {"_TURNS": 10, "_TURNS_OF_ALL": 3}.items():
        monkeypatch.setattr(turns, name, value)
    monkeypatch.setattr(run._Run, "_workers", _WORKERS)
    monkeypatch.setattr(run, "Budget", partial(Budget, clock=lambda: now))
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(loading.Timer, "epochs", measure)
    return run.measure_all(options), now


@pytest.mark.slow
def test_a_lossy_setting_that_is_the_fastest_takes_part_in_nothing_further(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ShootoutRequest(str(store), {"scratch": str(tmp_path)}, samples=2, budget=2000)
    report, _ = simulated(monkeypatch, options)
    (lossy,) = (row for row in report["measurements"] if row["format"] == LOSSY)
    assert lossy["median"] == max(row["median"] for row in report["measurements"])
    assert lossy["threads"] == lossy["workers"] == 0
    assert not lossy["compared"]
    assert report["verdict"]["setting"]["format"] != LOSSY


def rate_of(loader: Loader) -> float:
    """Threads that are faster than none, and workers that are slower."""
    return 70.0 * loader.workers if loader.workers else 1000.0 * max(loader.threads, 1)


@pytest.mark.slow
@pytest.mark.parametrize("formats", [[OURS, ".npy"], ["WebDataset"]])
def test_threads_are_measured_and_named_and_more_workers_only_if_they_can_be_the_fastest(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, formats: list[str]
) -> None:
    def measure(timer: loading.Timer, cold: bool = False) -> loading.Timing:
        return loading.Timing(None, [rate_of(timer.reading.loader)])

    monkeypatch.setattr(run._Run, "_workers", _WORKERS)
    monkeypatch.setattr(run, "worker_counts", lambda most=None: [1, 2, 16])
    monkeypatch.setattr(loading.Timer, "epochs", measure)
    report = shootout(store, tmp_path, formats=formats)
    rows = [row for row in report["measurements"] if row["reads"] == "draws"]
    reasons = {each["what"]: each["reason"] for each in report["not_measured"]}
    verdict = report["verdict"]
    if formats == ["WebDataset"]:
        assert reasons["WebDataset on scratch with threads"] == "a stream has one reader"
        assert {row["threads"] for row in rows} == {0}
        return
    for name in formats:
        read_by = {(row["threads"], row["workers"]) for row in rows if row["format"] == name}
        assert read_by >= {(0, 0), (1, 0), (16, 0), (0, 1)}
        assert (0, 2) not in read_by, "16 threads are faster than two workers can be"
    assert reasons[".npy, 2 workers, on scratch"] == "cannot be the fastest: 1 worker made 70/s"
    assert verdict["setting"]["threads"] == 16
    assert verdict["headline"].partition(", on scratch")[0].endswith(", 16 threads")
    line = verdict["command"].splitlines()[-1]
    assert "num_threads=16, prefetch_factor=" in line
    page = (tmp_path / "out" / "shootout.html").read_text()
    assert "16 threads" in page
    assert html.escape(line) in page


@pytest.mark.slow
@pytest.mark.parametrize("minutes", [2, 3, 10])
def test_a_short_budget_has_time_for_the_turns(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    options = ShootoutRequest(str(store), {"scratch": str(tmp_path)}, 60.0 * minutes, samples=1)
    report, took = simulated(monkeypatch, options)
    assert took <= 60 * minutes
    verdict = report["verdict"]
    assert verdict["setting"]["compared"]
    assert verdict["store"]["compared"]
    assert sum(m["compared"] for m in report["measurements"]) >= 2
    assert len(verdict["setting"]["rates"]) >= (4 if minutes == 2 else 6), "turns have two repetitions here"
    assert {m["reads"] for m in report["measurements"]} == {"draws", "samples"}
    assert not any("turns" in reason for reason in verdict["reasons"])


def test_a_short_budget_has_time_for_each_way_to_read_a_matrix(
    matrix: WideMatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, _ = simulated(monkeypatch, ShootoutRequest(matrix.url, {"scratch": str(tmp_path)}, 180.0, num_features=20))
    assert {m["reads"] for m in report["measurements"]} == {"samples", "selected", "features"}
    assert report["verdict"]["setting"]["compared"]


def test_what_a_budget_has_no_time_for_is_said(
    matrix: WideMatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, _ = simulated(
        monkeypatch, ShootoutRequest(matrix.url, {"scratch": str(tmp_path)}, 8.0, num_features=1000), 2
    )
    reasons = report["verdict"]["reasons"]
    assert any("not measured again in turns" in reason and "--budget" in reason for reason in reasons)
    assert any(reason.startswith("How to read features of 6 samples was not measured") for reason in reasons)
    missing = {one["what"]: one["reason"] for one in report["not_measured"]}
    assert missing["turns of the leading settings"] == (
        "1 of 2 leading settings were not measured again: the budget was used, or they failed"
    )
    assert missing["samples of 1,000 features"] == "the matrix has 100: whole samples have them all"
    assert "not measured again in turns" in render_page(report)


@pytest.mark.parametrize(
    ("format", "written"),
    [(OURS, "tier/ahmedml/manifest.json"), ("tar shards, indexed", "tier/ahmedml.webdataset/index.json")],
)
def test_the_commands_of_a_verdict_run(store: Path, tmp_path: Path, format: str, written: str) -> None:
    tier = {"name": "scratch", "url": str(tmp_path / "tier"), "local": True}
    options = ShootoutRequest(str(store), {"scratch": str(tmp_path / "tier")}, samples=1)
    facts = run.take_workload(options, tmp_path).facts
    (entry,) = (entry for entry in candidates.ENTRIES if entry.name == format)
    named = Measurement("scratch", entry.with_settings("none", facts["chunk_points"]), "draws", [2.0], loader=Loader(2))
    run_commands(judge(Case([named], {"scratch": tier}, facts, {}, batch_size=2))["command"])
    assert (tmp_path / written).is_file()


def test_an_output_that_cannot_be_written_is_an_error_before_the_work(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "measure_all", lambda options: pytest.fail("measured"))
    (tmp_path / "out").touch()
    with pytest.raises(FileExistsError):
        shootout(store, tmp_path)
    (tmp_path / "out").unlink()

    def denied(**_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    with pytest.raises(PermissionError):
        shootout(store, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tiers", "a=/x", "a=/y"], "--tiers: a is given twice"),
        (["--tiers", "a="], "expected NAME=PATH"),
        (["--tiers", "a=/tmp", "--budget", "soon"], "duration 'soon'"),
        (["--tiers", "a=/tmp", "--formats", "xyz"], "no format 'xyz'; formats are zarr_core, .npy"),
    ],
)
def test_wrong_arguments_are_explained(
    arguments: list[str], message: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(store), *arguments, "--quiet"]) in (1, 2)
    assert message in capsys.readouterr().err


def test_files_without_their_kind_are_an_error(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ZarrCoreError, match="is not a store; .* pass --dataset-kind"):
        shootout(store.with_name("source"), tmp_path)


def test_source_files_are_converted_first(store: Path, tmp_path: Path) -> None:
    report = shootout(store.with_name("source"), tmp_path, dataset_kind=KIND, formats=[".npy"])
    assert report["workload"]["samples_total"] == 3, "of the listing"
    assert report["workload"]["samples"] == 2


def test_source_files_that_need_other_settings_are_to_be_converted_beforehand(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1",))
    torch.save(1e5 + torch.rand(230, 3), source / "run_1" / "volume_cell_velocity.pt")
    with pytest.raises(
        ZarrCoreError, match="use --field-dtype .*; convert a few samples so, and run the shootout on their store"
    ):
        shootout(source, tmp_path, dataset_kind=KIND, formats=[".npy"])


@pytest.mark.parametrize("kind", [None, KIND])
def test_samples_are_taken_until_their_bytes_or_the_time_are_used_up(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None
) -> None:
    source = store if kind is None else store.with_name("source")
    asked = ShootoutRequest(str(source), {"a": "b"}, dataset_kind=kind, num_surface_points=10, num_volume_points=10)

    def taken(name: str, **options: Any) -> dict[str, Any]:
        found = workload.take_points(asked, tmp_path / name, **options)
        assert found.facts["samples_total"] == 3
        return found.facts

    assert taken("all")["samples"] == 3
    one = taken("in time", end=0)
    assert one["samples"] == 1
    read: list[str] = []
    reading = workload.ZarrChunkReader.read_sample
    monkeypatch.setattr(
        workload.ZarrChunkReader, "read_sample", lambda *args: (read.append(args[1]), reading(*args))[1]
    )
    monkeypatch.setattr(workload, "_MAX_BYTES", one["bytes_raw"] + 1)
    assert taken("in bytes")["samples"] == len(read) == 1, "sizes are known before a sample is read"
    if kind is not None:
        assert len(load_manifest(tmp_path / "in bytes" / "converted").samples) == 1


def test_a_matrix_is_read_until_the_time_is_used_up(matrix: WideMatrix, tmp_path: Path) -> None:
    options = ShootoutRequest(matrix.url, {"a": "b"}, num_features=20, batch_size=2)
    assert run.take_workload(options, tmp_path / "all").facts["samples"] == 6
    assert run.take_workload(options, tmp_path / "in time", end=0).facts["samples"] == 2


def test_chunk_sizes_are_at_least_one_and_at_most_a_sample() -> None:
    assert chunk_sizes(200, 64, 128, 512, 32) == [64, 128, 200, 32]
    assert chunk_sizes(3, 1, 0) == [1]
