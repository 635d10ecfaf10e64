"""Conversions by other executors and by worker processes, and those that are killed."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.helpers.faults import Kill, is_killed
from tests.helpers.small_source import write_source
from zarr_core.convert import convert
from zarr_core.errors import StoreError
from zarr_core.points.manifest import load_manifest
from zarr_core.storage import Storage

SETTINGS = {"chunk_points": 32}


def objects(root: str | Path) -> dict[str, bytes]:
    """Every object of a store, less the lock that only local disks have."""
    storage = Storage(root)
    return {name: storage.read(name) for name in storage.list() if not name.endswith(".lock")}


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


def _die(*args: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_is_reported_and_what_was_done_is_kept(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zarr_core.points.convert.convert_sample", _die)
    with pytest.raises(StoreError, match="worker process died"):
        convert("ahmedml", tmp_path / "store", root=source, workers=2, **SETTINGS)
    monkeypatch.undo()
    assert convert("ahmedml", tmp_path / "store", root=source, **SETTINGS).ok


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
        Kill("rename", "/manifest.json$"),
        Kill("create", "/generations/"),
        Kill("link", "/generations/"),
        Kill("unlink", "/generations/"),
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
