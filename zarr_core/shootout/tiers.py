"""Storage that is compared: a folder or a URL, and the shootout's own folder in it."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from zarr_core._util.redaction import redact
from zarr_core.errors import StoreError
from zarr_core.storage import Storage, is_local

# Objects that are written to a URL at a time.
_UPLOADS = 8


class Tier:
    """One tier. Its folder ``zarr-core-shootout-<random>`` is made on entering, and removed on leaving the context.

    Args:
        name: of the tier.
        place: a local folder or a URL.

    Raises:
        StoreError: the place does not exist or cannot be written to.
    """

    def __init__(self, name: str, place: str) -> None:
        self.name, self.url, self.local = name, redact(place), is_local(place)
        if self.local and not Path(Storage(place).location).is_dir():
            raise StoreError(f"tier {name}: {self.url} is no folder")
        self._parent = Storage(place).location if self.local else place.rstrip("/")
        self.root = f"{self._parent}/zarr-core-shootout-{secrets.token_hex(4)}"

    def __enter__(self) -> Tier:
        try:
            Storage(self.root).write("probe", [b"zarr-core shootout: to be removed\n"])
        except OSError as error:
            raise StoreError(f"tier {self.name}: {self.url} cannot be written to: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self.local:
            shutil.rmtree(self.root, ignore_errors=True)
            return
        storage = Storage(self.root)
        storage.delete(list(storage.list()))

    def place(self, name: str) -> str:
        """Where a copy of that name lies."""
        return f"{self.root}/{name}"

    def put(self, name: str, folder: Path) -> float:
        """Copy a folder, through to the device; returns the seconds."""
        started = time.perf_counter()
        storage = Storage(self.place(name))

        def copy(path: Path) -> None:
            storage.write(str(path.relative_to(folder)), [path.read_bytes()])

        with ThreadPoolExecutor(1 if self.local else _UPLOADS) as pool:
            deque(pool.map(copy, _files(folder)), maxlen=0)
        if self.local:  # what is not on the device yet cannot be dropped from the page cache
            for path in _files(Path(self.place(name))):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        return time.perf_counter() - started

    def drop_from_cache(self, name: str) -> bool:
        """Ask the system to drop a copy's files from memory; False where that is not possible."""
        if not self.local or not hasattr(os, "posix_fadvise"):
            return False
        for path in _files(Path(self.place(name))):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
        return True

    def facts(self) -> dict[str, Any]:
        """Name, URL, and for local folders what ``statvfs`` reports: free bytes and inodes."""
        facts: dict[str, Any] = {"name": self.name, "url": self.url, "local": self.local}
        if self.local:
            found = os.statvfs(self._parent)
            facts |= {
                "bytes_free": found.f_bavail * found.f_frsize,
                "bytes_total": found.f_blocks * found.f_frsize,
                # Some filesystems have no limit and report 0.
                "inodes_free": found.f_favail or None,
                "inodes_total": found.f_files or None,
            }
        return facts


def footprint(folder: Path) -> dict[str, int]:
    """Bytes, files (objects in a bucket) and inodes (files and folders) of a prepared format."""
    sizes = [path.stat().st_size for path in _files(folder)]
    folders = sum(1 for path in folder.rglob("*") if path.is_dir())
    return {"bytes": sum(sizes), "objects": len(sizes), "inodes": len(sizes) + folders}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
