"""Conversions by other executors and by worker processes, and those that are killed."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.faults import KILLS_OF_A_COMMIT, Kill, is_killed
from tests.helpers.small_source import write_source
from tests.helpers.stores import objects
from tests.helpers.waiting import LIMIT_SECONDS
from zarr_core._util.processes import WorkerPool
from zarr_core.convert import ConversionReport, ConversionResult, convert, iter_convert
from zarr_core.points.convert.sample import convert_sample
from zarr_core.points.convert.stored_values import stored_blocks
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.store.head import load_manifest
from zarr_core.sources.parts import Part
from zarr_core.sources.sample import SampleSource, SourceSample
from zarr_core.storage import Storage

SETTINGS: dict[str, Any] = {"chunk_points": 32}
IDS = ("run_1", "run_2", "run_3")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source")


def test_any_executor_will_do(tmp_path: Path, source: Path) -> None:
    class Immediate(ThreadPoolExecutor):
        def submit(self, function, /, *args, **kwargs):
            future: Future = Future()
            future.set_result(function(*args, **kwargs))
            return future

    with Immediate() as executor:
        assert len(convert("ahmedml", tmp_path / "s", root=source, executor=executor, **SETTINGS).results) == 3


def _killed_at_run_2(
    writer: GroupWriter, source: SampleSource, sample: SourceSample, *options: bool
) -> ConversionResult:
    if sample.sample_id == "run_2":
        os.kill(os.getpid(), signal.SIGKILL)
    return convert_sample(writer, source, sample, *options)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["workers", "executor"])
def test_a_sample_that_kills_its_worker_fails_alone(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    monkeypatch.setattr("zarr_core.points.convert.conversion.convert_sample", _killed_at_run_2)
    with WorkerPool(1) as pool:
        options = {"executor": pool} if own else {"workers": 2}
        report = convert("ahmedml", tmp_path / "store", root=source, **options, **SETTINGS)
    assert [(result.sample_id, result.reason) for result in report.having("failed")] == [
        ("run_2", "its worker process died (out of memory?)")
    ]
    assert sorted(report.manifest.samples) == ["run_1", "run_3"]
    monkeypatch.undo()
    assert sorted(convert("ahmedml", tmp_path / "store", root=source, **SETTINGS).manifest.samples) == list(IDS)


def test_any_exception_in_a_conversion_is_a_failure_of_its_sample(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(values: torch.Tensor, *_: Any) -> Any:
        if len(values) == 77:  # the surface of run_2
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return stored_blocks(values, *_)

    monkeypatch.setattr("zarr_core.points.convert.stored_values.stored_blocks", gather)
    report = convert("ahmedml", tmp_path / "store", root=source, **SETTINGS)
    (failed,) = report.having("failed")
    assert (failed.sample_id, failed.reason) == ("run_2", "RuntimeError: DefaultCPUAllocator: can't allocate memory")
    assert sorted(report.manifest.samples) == ["run_1", "run_3"]


def test_a_refusal_that_cannot_be_written_is_a_failure_of_its_sample(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "run_2" / "surface_position_vtp.pt").unlink()

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(GroupWriter, "write_quarantine", full)
    report = convert("ahmedml", tmp_path / "store", root=source, **SETTINGS)
    assert [result.sample_id for result in report.having("failed")] == ["run_2"]
    assert sorted(report.manifest.samples) == ["run_1", "run_3"]


def test_float64_values_whose_squares_are_infinite_are_refused(tmp_path: Path, source: Path) -> None:
    torch.save(torch.linspace(-1e200, 1e200, 77, dtype=torch.float64), source / "run_2" / "surface_pressure.pt")
    report = convert("ahmedml", tmp_path / "store", root=source, values_dtype="float64", **SETTINGS)
    (refused,) = report.having("quarantined")
    assert refused.sample_id == "run_2"
    assert "surface_pressure: largest value 1e+200 is so large that its square is infinite" in refused.reason
    assert sorted(report.manifest.samples) == ["run_1", "run_3"]


def test_samples_in_flight_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_source(tmp_path / "source", tuple(f"run_{n}" for n in range(1, 9)), surface=2, volume=2)
    in_flight: list[int] = []

    class Counting(ThreadPoolExecutor):
        unfinished = 0

        def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
            self.unfinished += 1
            in_flight.append(self.unfinished)
            return super().submit(*arguments, **options)

    with Counting(2) as executor:
        for _ in iter_convert("ahmedml", tmp_path / "store", root=source, executor=executor, workers=2, **SETTINGS):
            executor.unfinished -= 1
    assert len(in_flight) == 8
    assert max(in_flight) <= 6


def test_parts_at_the_same_time_make_the_store_of_one_process(tmp_path: Path, source: Path) -> None:
    def convert_part(number: int) -> ConversionReport:
        return convert("ahmedml", tmp_path / "store", root=source, part=Part(number, 3), **SETTINGS)

    with ThreadPoolExecutor(3) as threads:
        reports = list(threads.map(convert_part, range(3)))
    converted = [[result.sample_id for result in report.having("converted")] for report in reports]
    assert sorted(sample_id for part in converted for sample_id in part) == list(IDS)
    whole = convert("ahmedml", tmp_path / "whole", root=source, **SETTINGS)
    assert load_manifest(tmp_path / "store").samples == whole.manifest.samples
    assert load_manifest(tmp_path / "store").splits == whole.manifest.splits
    made, expected = (objects(tmp_path / name) for name in ("store", "whole"))
    assert {name: data for name, data in made.items() if name.startswith("samples/")} == {
        name: data for name, data in expected.items() if name.startswith("samples/")
    }
    assert convert("ahmedml", tmp_path / "store", root=source, part=Part(0, 3), force=True, **SETTINGS).ok
    left_alone = convert("ahmedml", tmp_path / "store", root=source, part=Part(1, 3), **SETTINGS)
    assert not left_alone.having("converted"), "nothing of another part, and nothing twice"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, and a store that a conversion made of it without being killed."""
    root = tmp_path_factory.mktemp("undisturbed")
    write_source(root / "source", tuple(f"run_{n}" for n in range(1, 4)), surface=300, volume=2000)
    convert("ahmedml", root / "store", root=root / "source", chunk_points=50)
    return root


@pytest.mark.parametrize(
    "kill",
    [
        Kill("create", "run_1"),
        Kill("rename", "run_1/.*/c/0/"),
        Kill("create", "run_2/.*/c/0/", 4),
        Kill("create", "run_2/[^/]*/.zarr.json"),
        Kill("rename", "run_2/[^/]*/zarr.json$"),
        Kill("create", "/.manifest.json"),
        *KILLS_OF_A_COMMIT,
    ],
    ids=str,
)
def test_a_conversion_that_is_killed_is_finished_by_the_next(tmp_path: Path, undisturbed: Path, kill: Kill) -> None:
    options = {"root": undisturbed / "source", "chunk_points": 50}
    assert is_killed(kill, convert, "ahmedml", tmp_path / "store", **options)
    assert convert("ahmedml", tmp_path / "store", **options).ok
    left_over = {name for name in objects(tmp_path / "store") if name.endswith(".tmp")}
    found = {name: data for name, data in objects(tmp_path / "store").items() if name not in left_over}
    expected = objects(undisturbed / "store")
    if kill.path == "/generations/" and kill.operation != "unlink":
        del expected["generations/00000001.json"]  # the manifest is committed; the next commit archives it
    assert found == expected
    assert load_manifest(tmp_path / "store", generation=1).samples


@pytest.mark.parametrize("remote", ["source", "store"])
@pytest.mark.parametrize(("limit", "most"), [(256 << 20, 3), (1, 1)])
def test_samples_are_converted_at_a_time_if_source_or_store_is_on_a_network(
    source: Path, tmp_path: Path, memory_root: str, monkeypatch: pytest.MonkeyPatch, remote: str, limit: int, most: int
) -> None:
    """As many as their size allows; in the order of the source."""
    source_url, store = str(source), memory_root
    if remote == "source":
        source_url, store = memory_root, str(tmp_path / "store")
        for file in source.rglob("*.*"):
            Storage(memory_root).write(str(file.relative_to(source)), [file.read_bytes()])
    monkeypatch.setattr("zarr_core.points.convert.conversion._OVERLAPPING_BYTES", limit)
    running: list[int] = []
    together = threading.Barrier(most)

    def convert_one(writer: Any, source: Any, sample: Any, *options: Any) -> ConversionResult:
        together.wait(LIMIT_SECONDS)
        running.append(1)
        result = convert_sample(writer, source, sample, *options)
        assert len(running) <= most
        running.pop()
        return result

    monkeypatch.setattr("zarr_core.points.convert.conversion.convert_sample", convert_one)
    report = convert("ahmedml", store, source_url=source_url, chunk_points=32)
    assert [result.sample_id for result in report.having("converted")] == ["run_1", "run_2", "run_3"]
