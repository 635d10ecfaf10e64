"""A cache of byte ranges on a fast local disk, shared by all processes of a host that use the same folder.

Each entry is one file: a header (magic, crc32c, length, digest of object and range) and the bytes. It is written
under a temporary name and renamed, so an entry is complete or absent. Every hit is checked against its header; a
corrupt entry is evicted and fetched again. Nothing relies on ``fsync``, because the check finds damage by a power
failure.

Reads take no lock. An entry is read through one open handle, and on POSIX an open file outlives its name, so eviction
cannot affect a reader. (Where the system refuses to delete open files, eviction skips them.) A hit first marks the
entry as the most recently used and then reads it.

Everything that changes the size of the folder happens under one ``flock``, which the kernel releases when its holder
dies. So a temporary file found by the holder of the lock belongs to a dead process and is removed. The lock file holds
the sum of the entries' sizes. It is raised before an entry appears, so a crash in between can only make it too large.
It is recounted when it reaches the limit, when it does not match its own checksum, and once an hour. If the lock cannot
be had soon, the bytes are not cached.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import re
import struct
import time
import warnings
from collections.abc import Iterator
from typing import IO

import google_crc32c

from zarr_core._util.units import format_size, parse_size
from zarr_core.errors import ZarrCoreError
from zarr_core.format.shards import crc32c_bytes
from zarr_core.storage.backends import local
from zarr_core.storage.places import local_path

try:
    import fcntl
except ImportError:  # Windows: entries are checked and atomic as well, but each process counts its own entries only
    fcntl = None  # type: ignore[assignment]

DEFAULT_LIMIT = "200GB"

_FOLDER = "zarr_core-cache-1"  # only files of ours in this folder are ever deleted
_LOCK = "lock"
_ENTRY = re.compile(r"[0-9a-f]{32}_-?\d+_(\d+|end)")
_TEMPORARY = ".tmp"
_MAGIC = b"zcache1\n"
_HEADER = struct.Struct("<8sIQ32s")  # magic, crc32c of everything after it, bytes, digest of object and range
_LENGTH = slice(12, 20)  # position of the number of bytes in the header
_USAGE = struct.Struct("<Qd")  # bytes, time of the last count; the crc32c of both follows
_BLOCK = 4096  # smallest size of a file on disk
_KEEP = 0.9  # share of the limit that an eviction leaves, so that not every new entry has to evict
_LOCK_PATIENCE = 0.5
_COUNT_EVERY = 3600.0
_PAUSE_AFTER_ERROR = 60.0  # seconds without storing after a write failed

# Handles that hold the lock. A fork copies them and with them the lock, which the child must not keep.
_held: set[IO[bytes]] = set()


def _drop_inherited_locks() -> None:
    for file in _held:
        file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited_locks)


class DiskCache:
    """Byte ranges of immutable objects, cached in a folder.

    Any number of processes and threads may use one folder. A cache survives forks and pickling. Keys must never stand
    for other bytes: use the full URL and version of an object.

    Args:
        folder: where to keep entries; created if needed. On a full or read-only disk, the cache warns once and stops
            storing for a while.
        limit: bytes to keep at most, "200GB" or a number; the least recently used entries go first, also those that an
            earlier, larger limit left.

    Attributes:
        hits, misses: lookups that found their bytes, and those that did not.
        corrupt_evicted: corrupt entries that were found and evicted.
        evicted: entries that this process evicted to keep the limit.

    Raises:
        ZarrCoreError: the limit is not a size, or the folder is a file.

    Examples:
        >>> reader = ZarrChunkReader("store", cache_dir="cache", cache_limit="1GB")
        >>> isinstance(reader.cache, DiskCache)
        True
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int | str = DEFAULT_LIMIT) -> None:
        self.limit = parse_size(limit)
        self.folder = os.path.join(local_path(folder), _FOLDER)
        if os.path.isfile(os.path.dirname(self.folder)):
            raise ZarrCoreError(f"cache folder {os.path.dirname(self.folder)} is a file")
        self.hits = self.misses = self.corrupt_evicted = self.evicted = 0
        self._warned: set[str] = set()  # what there was a warning of
        self._store_again_at = 0.0
        self._apply_limit()

    def __repr__(self) -> str:
        folder = os.path.dirname(self.folder)
        return f"<DiskCache {folder}, limit {format_size(self.limit)}: {self.hits:,} hits, {self.misses:,} misses>"

    def __reduce__(self) -> tuple[type[DiskCache], tuple[str, int]]:
        return type(self), (os.path.dirname(self.folder), self.limit)

    def lookup(self, key: str, start: int, stop: int | None) -> bytes | None:
        """The bytes of a range if they are cached and intact."""
        path, digest = self._place(key, start, stop)
        try:
            with open(path, "rb", buffering=0) as file:
                with contextlib.suppress(OSError):  # a disk that has become read-only still has hits
                    now = time.time_ns()
                    os.utime(file.fileno() if os.utime in os.supports_fd else path, ns=(now, now))
                header = file.read(_HEADER.size)
                # Read nothing if the entry's length is not what its header claims.
                length = os.fstat(file.fileno()).st_size - _HEADER.size
                claimed = int.from_bytes(header[_LENGTH], "little")
                data = file.readall() if length == claimed and length <= self.limit else b""
        except FileNotFoundError:
            self.misses += 1
            return None
        except OSError:
            header = data = b""
        if header == _header(digest, data) and (stop is None or start < 0 or len(data) == stop - start):
            self.hits += 1
            return data
        self.corrupt_evicted += 1
        self.misses += 1
        _unlink(path)
        return None

    def store(self, key: str, start: int, stop: int | None, data: bytes) -> bool:
        """Keep the bytes of a range; False if that was not possible."""
        if not data or (stop is not None and len(data) != stop - start) or time.monotonic() < self._store_again_at:
            return False
        size = _footprint(_HEADER.size + len(data))
        if size > self.limit * _KEEP:
            self._warn(
                "limit",
                f"the cache folder {self.folder} does not keep ranges of {format_size(len(data))}: its limit is "
                f"{format_size(self.limit)}; use a larger cache_limit",
            )
            return False
        path, digest = self._place(key, start, stop)
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            self._pause(error)
            return False
        try:
            with self._locked() as lock:
                if lock is None:
                    return False
                self._make_room(lock, size)
                local.replace_file(path, [_header(digest, data), data], durable=False)
        except FileNotFoundError:  # the folder was removed meanwhile; the next entry creates it
            return False
        except OSError as error:
            self._pause(error)
            return False
        return True

    def discard(self, key: str, start: int, stop: int | None) -> None:
        """Remove a range whose bytes were damaged."""
        _unlink(self._place(key, start, stop)[0])

    def size(self) -> int:
        """Count the bytes that the entries take on the disk."""
        return sum(size for _, size, _ in self._entries())

    def _place(self, key: str, start: int, stop: int | None) -> tuple[str, bytes]:
        """Path of an entry, and the digest expected in its header."""
        stem = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        name = f"{stem}_{start}_{'end' if stop is None else stop}"
        digest = hashlib.blake2b(f"{start} {stop} {key}".encode(), digest_size=32).digest()
        return os.path.join(self.folder, stem[:2], name), digest

    @contextlib.contextmanager
    def _locked(self) -> Iterator[IO[bytes] | None]:
        """Hold the lock and return its file; None if another process holds it for long."""
        path = os.path.join(self.folder, _LOCK)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as file:
            if fcntl is None:
                yield file
                return
            deadline = time.monotonic() + _LOCK_PATIENCE
            wait = 0.0001
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        yield None
                        return
                    time.sleep(wait)
                    wait = min(2 * wait, 0.01)
            _held.add(file)
            try:
                yield file
            finally:
                _held.discard(file)
                # Closing alone would leave the lock to a child forked meanwhile that has not closed its copy yet.
                fcntl.flock(file, fcntl.LOCK_UN)

    def _apply_limit(self) -> None:
        """Evict what an earlier, larger limit allowed."""
        with contextlib.suppress(OSError), self._locked() as lock:  # there may be no folder yet
            if lock is not None and self._recorded_usage(lock)[0] > self.limit:
                self._make_room(lock, 0)

    def _recorded_usage(self, lock: IO[bytes]) -> tuple[int, float]:
        """The sum of the entries' sizes, and when they were counted; 0 and 0 if that is not known."""
        lock.seek(0)
        record, checksum = lock.read(_USAGE.size), lock.read(4)
        if len(record) != _USAGE.size or checksum != crc32c_bytes(record):
            return 0, 0.0
        usage, counted_at = _USAGE.unpack(record)
        return usage, counted_at

    def _make_room(self, lock: IO[bytes], size: int) -> None:
        """Reserve bytes for a new entry, and evict if they exceed the limit. Needs the lock."""
        usage, counted_at = self._recorded_usage(lock)
        now = time.time()
        if usage + size > self.limit or not 0 <= now - counted_at < _COUNT_EVERY:
            usage, counted_at = self._evict(size), now
        record = _USAGE.pack(usage + size, counted_at)
        lock.seek(0)
        lock.write(record + crc32c_bytes(record))

    def _evict(self, size: int) -> int:
        """Count the entries and evict the oldest until ``size`` more bytes fit; returns the sum. Needs the lock."""
        for path in self._files():
            if path.endswith(_TEMPORARY):
                _unlink(path)
        entries = list(self._entries())
        usage = sum(entry[1] for entry in entries)
        if usage + size <= self.limit:
            return usage
        for _, entry_size, path in sorted(entries):
            if usage + size <= self.limit * _KEEP:
                break
            if _unlink(path):
                usage -= entry_size
                self.evicted += 1
        return usage

    def _entries(self) -> Iterator[tuple[int, int, str]]:
        """Time of last use (ns), bytes on disk and path of every entry."""
        for path in self._files():
            if _ENTRY.fullmatch(os.path.basename(path)):
                with contextlib.suppress(OSError):
                    found = os.stat(path)
                    yield found.st_mtime_ns, _footprint(found.st_size), path

    def _files(self) -> list[str]:
        return glob.glob(f"{glob.escape(self.folder)}/[0-9a-f][0-9a-f]/*", include_hidden=True)

    def _pause(self, error: OSError) -> None:
        """Pause storing after an error, and warn."""
        self._store_again_at = time.monotonic() + _PAUSE_AFTER_ERROR
        why = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "cannot be written"
        self._warn(
            "disk",
            f"the cache folder {self.folder} {why} ({error}); reads continue without it (its limit is "
            f"{format_size(self.limit)})",
        )

    def _warn(self, of: str, text: str) -> None:
        """Warn, once per cache of each thing."""
        if of not in self._warned:
            self._warned.add(of)
            warnings.warn(text, stacklevel=5)


def _header(digest: bytes, data: bytes) -> bytes:
    length = len(data).to_bytes(8, "little")
    checksum = google_crc32c.extend(google_crc32c.value(length + digest), data)
    return _HEADER.pack(_MAGIC, checksum, len(data), digest)


def _footprint(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
