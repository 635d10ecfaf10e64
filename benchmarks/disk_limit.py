"""Limits how fast this process reads from a disk, as the disks of cloud machines do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BLOCK_IO = Path("/sys/fs/cgroup/blkio")


def can_limit_reads() -> bool:
    """Whether the system has control groups of block devices (Linux, version 1), and this process may make one."""
    return os.access(_BLOCK_IO, os.W_OK) and (_BLOCK_IO / "blkio.throttle.read_bps_device").exists()


@contextmanager
def limited_reads(folder: Path, bytes_per_s: int) -> Iterator[None]:
    """All threads of this process read at most ``bytes_per_s`` from the device that holds the folder.

    What lies in the page cache is not limited.
    """
    device = os.stat(folder).st_dev
    group = _BLOCK_IO / f"zarr_core_{os.getpid()}"
    group.mkdir()
    try:
        limit = f"{os.major(device)}:{os.minor(device)} {bytes_per_s}"
        (group / "blkio.throttle.read_bps_device").write_text(limit)
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (_BLOCK_IO / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()
