"""Local files that stay open between requests, and memory maps of those whose content never changes.

Many systems let a process open 1,024 files, which its datasets share: all together keep few files open. Each of
Python's own maps keeps one, too. So those beyond a quarter of that limit do not, and the size
of their files is looked at by path, which takes longer.

A read of bytes of a map that are in memory is a copy, no system call. But a page that cannot be read ends the process
(SIGBUS) where ``read`` raises an error. So only files of disks of this machine are mapped, and their size is looked at
at most a second before a copy. What remains is a file that is truncated right then, and a disk that fails. With
``ZARR_CORE_MMAP=never`` in its environment, a process maps nothing.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import re
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zarr_core._util.closed_maps import map_closed
from zarr_core._util.locks import ProcessLock
from zarr_core.errors import ZarrCoreError
from zarr_core.format.array_metadata import CHECKSUM_BYTES

#: Files of a process that stay open, at most.
OPEN_FILES = 128
#: And as a part of those that the system lets a process open.
_SHARE_KEPT_OPEN = 0.125
_CHOICE = "ZARR_CORE_MMAP"
# File systems on disks, or in the memory, of this machine.
_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
# Limits per process, beyond which files are read. Linux allows 65,530 maps.
_SHARE_OF_MEMORY = 0.25
_MAX_MAPS = 8192
_SHARE_OF_OPEN_FILES = 0.25
#: Seconds after which the size of a file is looked at again, which takes as long as a small copy.
LOOK_AGAIN = 1.0
#: Larger batches are copied sample by sample, so that the sizes of the files are looked at meanwhile.
AT_ONCE_BYTES = 16 << 20


_opened: OrderedDict[tuple[int, str], OpenFile] = OrderedDict()
_numbers = itertools.count()


def share_of_open_files(share: float, most: int) -> int:
    """A part of the files that this process may open, ``most`` at most."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, int(soft * share))


#: What distinguishes a file from one that replaced it.
Identity = tuple[int, ...]


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class OpenFile:
    """A file that stays open while it is referenced: one thread may read it while another drops it from the table.

    Attributes:
        handle: to read it.
        identity: when it was opened.
    """

    __slots__ = ("handle", "identity")

    def __init__(self, path: str) -> None:
        self.handle = -1
        self.handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.identity = _identity(os.fstat(self.handle))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # At exit, the interpreter may have emptied the module os before it drops the last reference to this object.
        if self.handle >= 0:
            close(self.handle)


class OpenFiles:
    """The files below a folder. Those that this process opened last stay open. Safe for threads."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._number = next(_numbers)
        weakref.finalize(self, _close, self._number).atexit = False

    def get(self, name: str) -> OpenFile:
        """A file, opened if it is not; raises OSError. Refer to it while its handle is used."""
        return _opened.get((self._number, name)) or self._open(name)

    def _open(self, name: str) -> OpenFile:
        # Replacing an entry would close the file of another thread in the middle of the change of the table.
        file = _opened.setdefault((self._number, name), OpenFile(f"{self._folder}/{name}"))
        while len(_opened) > share_of_open_files(_SHARE_KEPT_OPEN, OPEN_FILES):
            try:
                _opened.popitem(last=False)
            except KeyError:  # another thread has closed it
                break
        return file


def _close(number: int) -> None:
    """Close the files of a folder that are not being read."""
    for key in [key for key in list(_opened) if key[0] == number]:
        _opened.pop(key, None)


class MappedFile(NamedTuple):
    """A file in memory. The map lasts, and counts, as long as ``memory`` or an array of it.

    Attributes:
        memory: the bytes of the file, read-only.
        size: bytes of the file now.
        identity: of the file that was mapped.
    """

    memory: mmap.mmap | memoryview
    size: Callable[[], int]
    identity: Identity


def _size_now(path: str, mapped: os.stat_result) -> int:
    """Bytes of a mapped file now. A file that was deleted or replaced since keeps the bytes that it had."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return mapped.st_size
    except OSError:
        return 0  # the read reports it
    return found.st_size if os.path.samestat(found, mapped) else mapped.st_size


class MappedChunks(NamedTuple):
    """Uncompressed chunks in a map, at equal distances, each followed by its checksum.

    Attributes:
        file_size: bytes of the file now.
        size: bytes of the file up to the end of its last chunk. Beyond the end of a file, a copy ends the process.
        chunks: (chunks, *shape of a chunk) of the stored dtype, read-only.
        verified: by chunk number, whether this process has compared the chunk with its checksum, so that it may be
            copied.
    """

    file_size: Callable[[], int]
    size: int
    chunks: np.ndarray
    verified: bytearray

    @classmethod
    def of(
        cls,
        file: MappedFile | None,
        count: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        verified: bytearray,
        first: int = 0,
        step: int | None = None,
    ) -> MappedChunks | None:
        """The chunks of a map; None without a map, or if the file is too short.

        The first one begins at byte ``first``, and each ``step`` bytes after the one before, by default at its end.
        """
        stored = math.prod(shape) * dtype.itemsize + CHECKSUM_BYTES
        step = step or stored
        size = first + (count - 1) * step + stored
        if file is None or len(file.memory) < size:
            return None
        within = np.empty(shape, dtype).strides
        chunks: np.ndarray = np.ndarray((count, *shape), dtype, file.memory, first, (step, *within))
        return cls(file.size, size, chunks, verified)


class Maps:
    """Maps of files below a folder, kept as long as this object; none if ``ZARR_CORE_MMAP`` is "never"."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._maps: dict[str, MappedFile] = {}
        choice = os.environ.get(_CHOICE, "auto")
        if choice not in ("auto", "never"):
            raise ZarrCoreError(f"the environment variable {_CHOICE} must be auto or never, not {choice!r}")
        self._wanted = choice == "auto" and file_system(folder) in _LOCAL

    def get(self, name: str) -> MappedFile | None:
        """The map of a file; None if there is none yet."""
        return self._maps.get(name)

    def add(self, name: str, file: OpenFile) -> MappedFile | None:
        """Map an open file; None if it should be read instead."""
        if not self._wanted:
            return None
        handle = file.handle
        status = os.fstat(handle)
        size = status.st_size
        stays_open = _all.take(size) if size else None
        if stays_open is None:
            return None
        on_end = partial(_all.give_back, size, stays_open)
        try:
            if stays_open:
                memory = mmap.mmap(handle, size, prot=mmap.PROT_READ)
                weakref.finalize(memory, on_end).atexit = False
                added = MappedFile(memory, memory.size, file.identity)
            else:
                now = partial(_size_now, f"{self._folder}/{name}", status)
                added = MappedFile(map_closed(handle, size, on_end), now, file.identity)
        except BaseException:
            on_end()
            raise
        return self._maps.setdefault(name, added)


class _AllMaps:
    """What the maps of this process take of its memory and of its open files."""

    def __init__(self) -> None:
        self._count = self._open = self._bytes = 0
        self._lock = ProcessLock()

    def take(self, size: int) -> bool | None:
        """Count one more map of ``size`` bytes: whether its file may stay open; None if it is not allowed."""
        most = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _SHARE_OF_MEMORY)
        with self._lock:
            if self._bytes + size > most or self._count >= _MAX_MAPS:
                return None
            stays_open = self._open < share_of_open_files(_SHARE_OF_OPEN_FILES, _MAX_MAPS)
            self._bytes += size
            self._count += 1
            self._open += stays_open
            return stays_open

    def give_back(self, size: int, stays_open: bool) -> None:
        """A map of ``size`` bytes is gone and no longer counts."""
        with self._lock:
            self._bytes -= size
            self._count -= 1
            self._open -= stays_open


_all = _AllMaps()


def file_system(folder: str) -> str:
    """Type of the file system that a folder is on, as Linux names it; "" if it is not known."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    path = os.path.realpath(folder)
    found = longest = ""
    for line in mounts:
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
        inside = path == point or path.startswith(f"{point.rstrip('/')}/")
        if inside and len(point) >= len(longest):  # a later mount at the same place hides the earlier one
            longest, found = point, after.split()[0]
    return found
