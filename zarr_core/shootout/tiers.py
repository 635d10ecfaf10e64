"""Storage that is compared: the copies of the samples in each format, and the shootout's own folder on a tier."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from zarr_core._util.redaction import redact, refuse_credentials
from zarr_core._util.units import format_size
from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.shootout.budget import MeasurementError
from zarr_core.shootout.candidates import Candidate
from zarr_core.storage import Storage, is_local

# Objects that are written to a URL at a time.
_UPLOADS = 8
# Bytes of a file that are written between two looks at the clock.
_PIECE = 16 << 20


class Tier:
    """One tier. Its folder ``zarr-core-shootout-<random>`` is made on entering, and removed on leaving the context.

    Args:
        name: of the tier.
        place: a local folder or a URL.

    Attributes:
        clock: monotonic time in seconds.
        copies: :func:`footprint` of each copy in it, by name.
        facts: name, URL, and for local folders what ``statvfs`` reports before there are copies: free bytes and inodes.
        too_slow: why a copy was not complete in time; "" if all were.
        dropped: whether files were seen to be dropped from memory; None if that was not tried.

    Raises:
        StoreError: the place does not exist or cannot be written to.
    """

    clock = staticmethod(time.monotonic)

    def __init__(self, name: str, place: str) -> None:
        refuse_credentials(name, place)
        self.name, self.url, self.local = redact(name), redact(place), is_local(place)
        if self.local and not Path(Storage(place).location).is_dir():
            raise StoreError(f"tier {self.name}: {self.url} is not a folder")
        self._parent = Storage(place).location if self.local else place.rstrip("/")
        self.root = f"{self._parent}/zarr-core-shootout-{secrets.token_hex(4)}"
        self.copies: dict[str, dict[str, int]] = {}
        self.facts = self._facts()
        self.dropped: bool | None = None
        self.too_slow = ""
        self._bytes, self._seconds = 0, 0.0

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

    @property
    def rate(self) -> float | None:
        """Bytes per second that were written; None if there are no copies."""
        return self._bytes / self._seconds if self._seconds else None

    def put(self, name: str, folder: Path, seconds: float = math.inf) -> None:
        """Copy a folder, through to the device.

        Args:
            name: of the copy.
            folder: local.
            seconds: after which to stop.

        Raises:
            MeasurementError: the copy was not complete by then.
        """
        started = self.clock()
        files = {str(path.relative_to(folder)): path for path in _files(folder)}

        def left() -> float:
            found = seconds - (self.clock() - started)
            if found <= 0:
                size = format_size(footprint(folder)["bytes"])
                self.too_slow = f"{self.name} is too slow: {size} could not be written within {seconds:.1f} s"
                raise MeasurementError(self.too_slow)
            return found

        (_write if self.local else _upload)(Storage(self.place(name)), files, left)
        self.copies[name] = footprint(folder)
        self._bytes += self.copies[name]["bytes"]
        self._seconds += self.clock() - started

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

    def _facts(self) -> dict[str, Any]:
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
    found = {"bytes": 0, "objects": 0, "inodes": 0}
    for path in folder.rglob("*"):
        found["inodes"] += 1
        if path.is_file():
            found["bytes"] += path.stat().st_size
            found["objects"] += 1
    return found


def _files(folder: Path) -> Iterator[Path]:
    return filter(Path.is_file, sorted(folder.rglob("*")))


def _write(storage: Storage, files: Mapping[str, Path], left: Callable[[], float]) -> None:
    """Write files to a local folder and to its device. ``left`` returns the seconds left, and raises if none are."""

    def pieces(path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                left()
                yield piece

    for name, path in files.items():
        storage.write(name, pieces(path))
    for name in files:  # what is not on the device yet cannot be dropped from the page cache
        left()
        with open(storage.path(name), "rb") as written:
            os.fsync(written.fileno())


def _upload(storage: Storage, files: Mapping[str, Path], left: Callable[[], float]) -> None:
    """Upload files; those under way when no time is left are cancelled."""
    running: deque[Future[None]] = deque()

    def finish_one() -> None:
        while not running[0].done():
            seconds = left()
            wait([running[0]], None if seconds == math.inf else seconds)
        running.popleft().result()

    try:
        for name, path in files.items():
            if len(running) == _UPLOADS:
                finish_one()
            running.append(storage.begin_write(name, path.read_bytes()))
        while running:
            finish_one()
    finally:
        for upload in running:
            upload.cancel()


def local_copy(samples: Any, folder: Path, chosen: Candidate) -> Path:
    """The copy of the samples in a format below a local folder, written when it is first asked for.

    Raises:
        MeasurementError: the format cannot be written, with the reason.
    """
    copy = folder / "copies" / chosen.copy
    if copy.is_dir():
        return copy
    building = copy.with_name(f"{copy.name}.building")
    shutil.rmtree(building, ignore_errors=True)  # of a try that failed
    building.mkdir(parents=True)
    try:
        chosen.make().prepare(samples, building)
    except (ZarrCoreError, OSError):
        raise
    # A format is another library, which may raise anything; one of them must not end the others.
    except Exception as error:
        raise MeasurementError(f"{type(error).__name__}: {error}") from error
    building.rename(copy)
    return copy
