"""Files that stay open between requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from zarr_core.storage import local_files
from zarr_core.storage.byte_ranges import LocalObjects, Request, WholeObjects
from zarr_core.storage.local_files import OPEN_FILES

_LEFT_OPEN = """
import posix
import sys
from zarr_core.storage.byte_ranges import LocalObjects, Request, WholeObjects
from zarr_core.storage.local_files import OPEN_FILES
objects = LocalObjects(sys.argv[1])
list(objects.fetch([Request("shard", 0, 3)]))
posix.kept = objects  # dropped after the module os is emptied
del objects
"""


def test_a_file_that_is_open_at_exit_is_closed_without_an_error(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(b"data")
    ended = subprocess.run([sys.executable, "-c", _LEFT_OPEN, str(tmp_path)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_file_that_another_thread_drops_while_it_is_mapped_stays_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handle, once closed, would be that of the next file that is opened, whose bytes the map would then have."""
    if local_files.file_system(str(tmp_path)) not in local_files._LOCAL:
        pytest.skip("files are mapped on disks of this machine only")
    for number in range(2 * OPEN_FILES + 1):
        (tmp_path / f"shard {number}").write_bytes(number.to_bytes(2, "big"))
    objects = LocalObjects(str(tmp_path))
    add = local_files.Maps.add

    def add_later(self: local_files.Maps, name: str, handle: int) -> object:
        others = [Request(f"shard {number}", 0, 2) for number in range(1, 2 * OPEN_FILES + 1)]
        assert len([bytes(data) for data in objects.fetch(others)]) == 2 * OPEN_FILES
        return add(self, name, handle)

    monkeypatch.setattr(local_files.Maps, "add", add_later)
    found = objects.map("shard 0")
    assert found is not None
    assert bytes(found.memory) == b"\0\0"


def test_ranges_of_whole_objects_are_taken_from_them_and_others_are_fetched(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    (tmp_path / "b").write_bytes(b"abcdef")
    objects = WholeObjects(LocalObjects(str(tmp_path)), {"a": np.frombuffer(b"ABCDEF", np.uint8)})
    wanted = [Request("a", 0, 6), Request("b", 1, 3), Request("a", 4, 8), Request("a", 2)]
    fetched = [bytes(data) for data in objects.fetch(wanted) if isinstance(data, np.ndarray)]
    assert fetched == [b"ABCDEF", b"bc", b"4567", b"23456789"]
    objects.discard([Request("a", 0, 2)])
    assert [bytes(data) for data in objects.fetch([Request("a", 0, 6)])] == [b"012345"]
