"""Files that stay open between requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LEFT_OPEN = """
import posix
import sys
from zarr_core.storage.byte_ranges import LocalObjects, Request
objects = LocalObjects(sys.argv[1])
list(objects.fetch([Request("shard", 0, 3)]))
posix.kept = objects  # dropped after the module os is emptied
del objects
"""


def test_a_file_that_is_open_at_exit_is_closed_without_an_error(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(b"data")
    ended = subprocess.run([sys.executable, "-c", _LEFT_OPEN, str(tmp_path)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
