"""Memory maps of files that need not stay open."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from zarr_core._util.closed_maps import map_closed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are mapped, and listed in /proc, on Linux only")


def test_a_map_outlives_its_open_file_and_ends_with_the_last_array_of_it(tmp_path: Path) -> None:
    path, ended = tmp_path / "file", []
    path.write_bytes(bytes(range(100)))
    handle = os.open(path, os.O_RDONLY)
    mapped = map_closed(handle, 100, lambda: ended.append(True))
    os.close(handle)
    array = np.ndarray((100,), np.uint8, mapped)
    assert mapped.readonly
    del mapped
    assert array.tolist() == list(range(100))
    assert not array.flags.writeable
    assert not ended
    assert str(path) in Path("/proc/self/maps").read_text()
    del array
    assert ended == [True]
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_what_cannot_be_mapped_is_an_error_with_its_reason(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="the file cannot be mapped: No such device"):
            map_closed(handle, 100, lambda: pytest.fail("there is no map that could end"))
    finally:
        os.close(handle)
