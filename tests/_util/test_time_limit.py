"""No sample takes for ever, whatever it waits for and whoever runs it; the others are converted."""

from __future__ import annotations

import copy
import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import fork_server
from tests.helpers.small_source import write_source
from tests.helpers.waiting import wait_for
from zarr_core._util.dask_cluster import dask_executor
from zarr_core._util.processes import SAMPLE_SECONDS, TimeLimitError, WorkerPool, call_within
from zarr_core.convert import ConversionReport, convert
from zarr_core.errors import SourceError
from zarr_core.points.convert.sample import convert_sample
from zarr_core.points.store.head import load_manifest
from zarr_core.sources import SampleTree
from zarr_core.storage import Storage

_NEVER = threading.Event()


def _wait() -> None:
    """For data of a pipe that nobody writes to, as on a file system that does not answer."""
    reading, _ = os.pipe()
    os.read(reading, 1)


def _loop() -> None:
    while not _NEVER.is_set():
        pass


def _keep_the_lock() -> None:
    """In C code that does not release Python's lock."""
    ctypes.PyDLL(None).pause()


HANGS = {"waits": _wait, "loops": _loop, "keeps the lock": _keep_the_lock}


class HangingTree(SampleTree):
    """Samples whose pressure never ends to load."""

    hang = ""

    def load(self, sample: Any, canonical: str) -> Any:
        if canonical == "surface_pressure":
            HANGS[self.hang]()
        return super().load(sample, canonical)


class HangingConversion:
    """``convert_sample``, in any process, of a source with samples that hang. The limit is theirs alone.

    Args:
        hang: how they hang.
        sample_ids: which.
    """

    def __init__(self, hang: str, sample_ids: tuple[str, ...] = ("run_2",)) -> None:
        self.hang, self.sample_ids = hang, sample_ids

    def __call__(self, writer: Any, source: Any, sample: Any, again: bool, repair: Any, seconds: float) -> Any:
        if sample.sample_id not in self.sample_ids:
            return convert_sample(writer, source, sample, again, repair)
        source = copy.copy(source)
        source.__class__, source.hang = HangingTree, self.hang
        return convert_sample(writer, source, sample, again, repair, seconds)


def _hangs(monkeypatch: pytest.MonkeyPatch, hang: str, *sample_ids: str) -> None:
    monkeypatch.setattr(
        "zarr_core.points.convert.conversion.convert_sample", HangingConversion(hang, sample_ids or ("run_2",))
    )
    monkeypatch.setenv(SAMPLE_SECONDS, "1")


def _check(report: ConversionReport, *sample_ids: str) -> None:
    failed = {result.sample_id: result.reason for result in report.having("failed")}
    assert sorted(failed) == sorted(sample_ids or ("run_2",))
    for reason in failed.values():
        assert reason.startswith("took longer than 1 s, the limit of one sample")
        assert SAMPLE_SECONDS in reason
    assert {*report.manifest.samples} == {result.sample_id for result in report.results} - {*failed}
    assert report.manifest.quarantine == {}, "they are tried again by the next conversion"


@pytest.mark.slow
@pytest.mark.parametrize("hang", HANGS)
def test_in_worker_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hang: str) -> None:
    source = write_source(tmp_path / "source")
    _hangs(monkeypatch, hang)
    with WorkerPool(2) as pool:
        _check(convert("ahmedml", tmp_path / "store", root=source, executor=pool, chunk_points=32))
    monkeypatch.undo()
    assert convert("ahmedml", tmp_path / "store", root=source, chunk_points=32).ok


@pytest.mark.slow
def test_several_samples_of_a_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of one that is given up ends later, and takes no other sample with it."""
    source = write_source(tmp_path / "source", tuple(f"run_{number}" for number in range(6)), surface=5, volume=5)
    _hangs(monkeypatch, "waits", "run_1", "run_2", "run_4")
    report = convert("ahmedml", tmp_path / "store", root=source, workers=2, chunk_points=32)
    _check(report, "run_1", "run_2", "run_4")


@pytest.mark.parametrize("remote", [False, True], ids=["disk", "network"])
def test_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_root: str, remote: bool) -> None:
    source = write_source(tmp_path / "source")
    for file in source.rglob("*.*"):
        Storage(memory_root).write(str(file.relative_to(source)), [file.read_bytes()])
    _hangs(monkeypatch, "waits")
    place = {"source_url": memory_root} if remote else {"root": source}
    _check(convert("ahmedml", tmp_path / "store", **place, chunk_points=32))


def _convert_from_memory(source: Path, store: Path) -> None:
    """In a process that no pool has started: nothing else ends it."""
    for file in source.rglob("*.*"):
        Storage("memory://source").write(str(file.relative_to(source)), [file.read_bytes()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multiprocessing.parent_process", lambda: None)
        _hangs(patch, "waits")
        convert("ahmedml", store, source_url="memory://source", chunk_points=32)


def test_a_process_ends_although_a_load_does_not(tmp_path: Path) -> None:
    process = fork_server.start(_convert_from_memory, write_source(tmp_path / "source"), tmp_path / "store")
    try:
        wait_for(lambda: not process.is_alive())
    finally:
        process.kill()
    assert process.exitcode == 0
    assert sorted(load_manifest(tmp_path / "store").samples) == ["run_1", "run_3"]


def test_in_threads_of_an_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_source(tmp_path / "source")
    _hangs(monkeypatch, "waits")
    with ThreadPoolExecutor(1) as executor:
        _check(convert("ahmedml", tmp_path / "store", root=source, executor=executor, chunk_points=32))


@pytest.mark.slow
def test_on_a_dask_worker_that_no_python_code_can_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ends itself. Dask repeats the call on another one, and then says which died, not why."""
    pytest.importorskip("distributed", reason="needs the extra dask")
    from tests.points.convert.test_dask import running

    source = write_source(tmp_path / "source")
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "1")
    with running(tmp_path) as cluster:
        _hangs(monkeypatch, "keeps the lock")
        with dask_executor(cluster.address) as executor:
            report = convert("ahmedml", tmp_path / "store", root=source, executor=executor, chunk_points=32)
    (failed,) = report.having("failed")
    assert failed.sample_id == "run_2"
    assert failed.reason.startswith("its worker process died 2 times, the last one at tcp://")
    assert "(out of memory?), or it took longer than 1 s, the limit of one sample" in failed.reason
    assert f"set {SAMPLE_SECONDS} to a larger number" in failed.reason
    assert sorted(report.manifest.samples) == ["run_1", "run_3"]


def test_a_limit_that_is_no_number_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_source(tmp_path / "source")
    for text in ("soon", "0", "-1", "nan", "inf", ""):
        monkeypatch.setenv(SAMPLE_SECONDS, text)
        with pytest.raises(SourceError, match=SAMPLE_SECONDS):
            convert("ahmedml", tmp_path / "store", root=source)


def test_results_and_errors_are_those_of_the_call() -> None:
    assert call_within(60, lambda: 3) == 3
    with pytest.raises(KeyboardInterrupt):
        call_within(60, lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(TimeLimitError, match=r"took longer than 0\.01 s"):
        call_within(0.01, _wait)
