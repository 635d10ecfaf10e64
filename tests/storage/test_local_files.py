"""Limits of open files and of maps are those of the process, whose datasets share them."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zarr_core._util import reused_memory
from zarr_core.points.convert.conversion import convert
from zarr_core.points.store.settings import Layout
from zarr_core.storage import local_files
from zarr_core.storage.local_files import Maps, OpenFiles, share_of_open_files


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 100)
    return str(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts the descriptors in /proc")
def test_folders_share_the_limit_and_the_files_opened_last_stay_open(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()
    local_files._opened.clear()
    monkeypatch.setattr(local_files, "OPEN_FILES", 6)
    before = descriptors()
    folders = [OpenFiles(folder) for _ in range(3)]
    handles = [opened.get(str(number)).handle for opened in folders for number in range(6)]
    assert descriptors() == before + 6
    assert [folders[2].get(str(number)).handle for number in range(6)] == handles[-6:]
    folders[0].get("0")
    assert descriptors() == before + 6
    del folders[2]
    assert descriptors() == before + 1
    with pytest.raises(FileNotFoundError):
        folders[0].get("missing")
    folders.clear()
    assert descriptors() == before


def test_a_file_that_another_thread_has_opened_meanwhile_is_not_replaced(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacing it would close it in the middle of a change of the table, which another thread may change then."""
    files = OpenFiles(folder)
    make, meanwhile = local_files.OpenFile, []

    def opened(path: str) -> local_files.OpenFile:
        monkeypatch.setattr(local_files, "OpenFile", make)
        meanwhile.append(files.get("1"))
        return make(path)

    monkeypatch.setattr(local_files, "OpenFile", opened)
    assert files.get("1") is meanwhile[0]
    assert files.get("1") is meanwhile[0]


def test_maps_share_the_limits_and_give_back_what_they_took(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if local_files.file_system(folder) not in local_files._LOCAL:
        pytest.skip("files are mapped on disks of this machine only")
    gc.collect()
    files, first, second = OpenFiles(folder), Maps(folder), Maps(folder)
    taken = local_files._all._count
    monkeypatch.setattr(local_files, "_MAX_MAPS", taken + 3)

    def add(to: Maps, number: int) -> bool:
        file = files.get(str(number))
        return to.add(str(number), file) is not None

    assert [add(first, 0), add(second, 0), add(first, 1), add(first, 2), add(second, 2)] == [True] * 3 + [False] * 2
    held = first.get("0")
    del first
    assert [add(second, 2), add(second, 3)] == [True, False]
    assert held is not None
    assert bytes(held.memory[:1]) == b"\0"
    array = np.ndarray((100,), np.uint8, held.memory)
    del held
    assert not add(second, 3), "as long as an array of it is kept"
    assert not array.any()
    assert not array.flags.writeable
    del array
    assert add(second, 3)
    del second
    assert local_files._all._count == taken
    monkeypatch.setattr(local_files, "_SHARE_OF_MEMORY", 0.0)
    assert not add(Maps(folder), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_beyond_a_share_of_the_open_files_maps_keep_none_open(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a process may open 1,024 files, most samples of a store were read, which takes twice the time."""
    if local_files.file_system(folder) not in local_files._LOCAL:
        pytest.skip("files are mapped on disks of this machine only")
    gc.collect()
    before, allowed = descriptors(), local_files._all._open + 2
    monkeypatch.setattr(local_files, "share_of_open_files", lambda share, most: allowed)
    files, maps = OpenFiles(folder), Maps(folder)
    added = [maps.add(str(number), files.get(str(number))) for number in range(20)]
    del files
    assert descriptors() == before + 2
    assert [bytes(file.memory) for file in added if file] == [bytes([number]) * 100 for number in range(20)]
    assert [file.size() for file in added if file] == [100] * 20
    os.truncate(f"{folder}/3", 7)
    os.remove(f"{folder}/4")
    Path(f"{folder}/new").write_bytes(b"new")
    os.replace(f"{folder}/new", f"{folder}/5")
    assert [file.size() for file in added[3:6] if file] == [7, 100, 100]
    (last,) = (np.ndarray((100,), np.uint8, file.memory) for file in added[19:] if file)
    del added, maps
    assert not last.flags.writeable
    assert (last == 19).all()
    assert Path("/proc/self/maps").read_text().count(folder) == 1
    del last
    assert folder not in Path("/proc/self/maps").read_text()
    assert (descriptors(), local_files._all._open) == (before, allowed - 2)


def test_the_limit_is_a_part_of_what_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", reason="the system has no limits of resources")
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1000, 5000))
    assert [share_of_open_files(0.25, 8192), share_of_open_files(0.25, 100)] == [250, 100]
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert share_of_open_files(0.25, 8192) == 8192


_MANY_DATASETS = """
import resource
import sys

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from zarr_core.points.read.reader import ZarrChunkReader

readers = [ZarrChunkReader(sys.argv[1], engine=sys.argv[2]) for _ in range(8)]
for reader in readers:
    for sample in reader.sample_ids:
        reader.read_sample(sample, {"volume": 8})
print("read")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "layout"), [("direct", "directory"), ("direct", "packed"), ("zarr", "packed")])
def test_many_datasets_are_read_where_a_process_may_open_few_files(tmp_path: Path, engine: str, layout: Layout) -> None:
    files = {"volume_position": "xyz.pt", "volume_pressure": "p.pt"}
    for number in range(60):
        sample = tmp_path / "source" / f"case_{number}"
        sample.mkdir(parents=True)
        torch.save(torch.full((20, 3), float(number)), sample / "xyz.pt")
        torch.save(torch.full((20,), float(number)), sample / "p.pt")
    (tmp_path / "many.yaml").write_text(json.dumps({"name": "many", "samples": "case_*", "files": files}))
    store = str(tmp_path / "store")
    settings: dict[str, Any] = {"source_url": str(tmp_path / "source"), "chunk_points": 8, "layout": layout}
    assert convert(str(tmp_path / "many.yaml"), store, **settings).ok
    read = subprocess.run([sys.executable, "-c", _MANY_DATASETS, store, engine], capture_output=True, text=True)
    assert (read.returncode, read.stdout, read.stderr) == (0, "read\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_does_not_wait_for_a_thread_that_only_its_parent_has() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with reused_memory._kept._lock, local_files._all._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        held.wait()
        child = os.fork()
        if not child:
            free = [owner._lock._lock.acquire(blocking=False) for owner in (reused_memory._kept, local_files._all)]
            os._exit(0 if free == [True, True] else 1)
        assert os.waitpid(child, 0) == (child, 0)
    finally:
        done.set()
        thread.join()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
