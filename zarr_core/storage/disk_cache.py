"""A cache of byte ranges on a fast local disk, shared by every process of a host that names the same folder.

Each entry is one file: a header (magic, crc32c, length, digest of object and range) and the bytes. It is written under
another name and renamed, so an entry is whole or absent; every hit is checked against its header before it is
returned, and an entry that fails is deleted and fetched again. Nothing relies on ``fsync``: what a power cut tears, the
check finds.

Reading takes no lock. An entry is read whole through one open handle, and on POSIX an open handle outlives the name it
was opened by: eviction can never take bytes from under a reader, so the handle is the pin. (Where the system refuses to
delete open files, eviction passes them over.) A hit makes an entry the newest first and reads it then.

Whatever changes the folder's size happens under one ``flock``, which the kernel releases when its holder dies, however
it dies. Hence a temporary file that the holder of the lock finds is a dead process's, and is removed. The lock's file
holds the sum of the entries' sizes; it is raised before an entry appears, so a death in between can only make it too
large, and it is counted anew when it reaches the limit, when it does not match its own checksum, and once an hour.
Storing is never waited for: where the lock is not to be had soon, the bytes are returned and not kept.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import struct
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import IO

import google_crc32c

from zarr_core._util.units import format_size, parse_size
from zarr_core.errors import ZarrCoreError

try:
    import fcntl
except ImportError:  # Windows: entries are checked and atomic all the same, the limit is kept by each process alone
    fcntl = None  # type: ignore[assignment]

DEFAULT_LIMIT = "200GB"

_FOLDER = "zarr_core-cache-1"  # nothing outside this folder, and no name in it that is not ours, is ever deleted
_LOCK = "lock"
_ENTRY = re.compile(r"[0-9a-f]{32}_-?\d+_(\d+|end)")
_TEMPORARY = ".tmp"
_MAGIC = b"zcache1\n"
_HEADER = struct.Struct("<8sIQ32s")  # magic, crc32c of all that follows it, bytes, digest of object and range
_LENGTH = slice(12, 20)  # of the bytes, in the header
_USAGE = struct.Struct("<QdI")  # bytes, time of the last count, crc32c of the two
_BLOCK = 4096  # what even a small file takes
_KEEP = 0.9  # of the limit is left after an eviction, so that not every new entry has to evict
_LOCK_PATIENCE = 0.5
_COUNT_AGAIN = 3600.0
_TRY_AGAIN = 60.0  # seconds without storing after the disk refused

# Handles that hold the lock. A fork copies them, and with them the lock, which its child would keep after us.
_held: set[IO[bytes]] = set()


def _drop_inherited_locks() -> None:
    for file in _held:
        file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited_locks)


class DiskCache:
    """Byte ranges of immutable objects, read through a folder.

    Any number of processes and threads may use one folder; forks and pickles of a cache go on working. The caller names
    objects by keys that never stand for other bytes: full URL and version.

    Args:
        folder: where to keep entries; made where it is missing. A disk that is full or read-only is no error: a warning
            is given once, and reads go past the cache.
        limit: bytes to keep at most, "200GB" or a number; the least recently used entries go first.

    Attributes:
        hits, misses: requests answered from the cache, and not.
        healed: damaged entries that were found and deleted.
        evicted: entries that this process deleted to keep the limit.

    Raises:
        ZarrCoreError: the limit is no size, or the folder is a file.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int | str = DEFAULT_LIMIT) -> None:
        self.limit = parse_size(limit)
        self.folder = os.path.join(os.path.abspath(os.path.expanduser(os.fspath(folder))), _FOLDER)
        if os.path.isfile(os.path.dirname(self.folder)):
            raise ZarrCoreError(f"cache folder {os.path.dirname(self.folder)} is a file")
        self.hits = self.misses = self.healed = self.evicted = 0
        self._warned = False
        self._store_again_at = 0.0
        self._flights = _Flights()

    def __repr__(self) -> str:
        folder = os.path.dirname(self.folder)
        return f"<DiskCache {folder}, limit {format_size(self.limit)}: {self.hits:,} hits, {self.misses:,} misses>"

    def __reduce__(self) -> tuple[type[DiskCache], tuple[str, int]]:
        return type(self), (os.path.dirname(self.folder), self.limit)

    def get(
        self,
        key: str,
        start: int,
        stop: int | None,
        fetch: Callable[[], bytes],
        check: Callable[[bytes], object] | None = None,
    ) -> bytes:
        """Bytes ``[start, stop)`` of an object, from the cache or by ``fetch``, which is then kept.

        Args:
            key: full URL of the object and its version.
            start: first byte; negative, with ``stop`` None: that many bytes at the object's end.
            stop: end of the range, None for the end of the object.
            fetch: gets the bytes. Threads of a process that ask for the same range at the same time share one call.
            check: raises for bytes that must not be kept, a checksum's mismatch for example; so do they to the caller.
                Called on what was fetched. A hit was checked when it was stored, and equals that byte for byte.

        Returns:
            What was asked for. Shorter answers (past the end of an object) are passed on and not kept.
        """
        while True:
            data = self.lookup(key, start, stop)
            if data is not None:
                return data
            flight, leads = self._flights.join((key, start, stop))
            if leads:
                break
            flight.done.wait()
            if flight.data is not None:
                return flight.data
            # Whoever was first failed; its error is its own, and this caller tries for itself.
        try:
            data = fetch()
            if check is not None:
                check(data)
            self.store(key, start, stop, data)
            flight.data = data
            return data
        finally:
            self._flights.leave((key, start, stop))
            flight.done.set()

    def lookup(self, key: str, start: int, stop: int | None) -> bytes | None:
        """The bytes of a range if they are here and sound."""
        path, digest = self._place(key, start, stop)
        try:
            with open(path, "rb", buffering=0) as file:
                with contextlib.suppress(OSError):  # of a disk that has become read-only, hits are still good
                    now = time.time_ns()
                    os.utime(file.fileno() if os.utime in os.supports_fd else path, ns=(now, now))
                header = file.read(_HEADER.size)
                # Nothing is read for what a damaged entry claims to be: its length may be any.
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
        self.healed += 1
        self.misses += 1
        _unlink(path)
        return None

    def store(self, key: str, start: int, stop: int | None, data: bytes) -> bool:
        """Keep the bytes of a range; whether that was possible."""
        if not data or (stop is not None and len(data) != stop - start) or time.monotonic() < self._store_again_at:
            return False
        size = _footprint(_HEADER.size + len(data))
        if size > self.limit * _KEEP:
            return False
        path, digest = self._place(key, start, stop)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except OSError as error:
            self._give_up(error)
            return False
        try:
            with self._locked() as lock:
                if lock is None:
                    return False
                self._make_room(lock, size)
                _write_entry(path, _header(digest, data), data)
        except FileNotFoundError:  # somebody removed the folder meanwhile; the next entry makes it again
            return False
        except OSError as error:
            self._give_up(error)
            return False
        return True

    def discard(self, key: str, start: int | None = None, stop: int | None = None) -> None:
        """Forget a range of an object, or all of its ranges: the bytes turned out to be wrong."""
        if start is not None:
            _unlink(self._place(key, start, stop)[0])
            return
        folder, name = os.path.split(self._place(key, 0, None)[0])
        stem = name.partition("_")[0] + "_"
        with contextlib.suppress(FileNotFoundError):
            for found in os.listdir(folder):
                if found.startswith(stem) and _ENTRY.fullmatch(found):
                    _unlink(os.path.join(folder, found))

    def size(self) -> int:
        """Bytes that the entries take on the disk now, counted."""
        return sum(size for _, size, _ in self._entries())

    def _place(self, key: str, start: int, stop: int | None) -> tuple[str, bytes]:
        """Path of an entry, and the digest that its header must have."""
        stem = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        name = f"{stem}_{start}_{'end' if stop is None else stop}"
        digest = hashlib.blake2b(f"{start} {stop} {key}".encode(), digest_size=32).digest()
        return os.path.join(self.folder, stem[:2], name), digest

    @contextlib.contextmanager
    def _locked(self) -> Iterator[IO[bytes] | None]:
        """The lock's file, held; None where somebody else holds it for long."""
        path = os.path.join(self.folder, _LOCK)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as file:
            if fcntl is None:
                yield file
                return
            give_up_at = time.monotonic() + _LOCK_PATIENCE
            pause = 0.0001
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up_at:
                        yield None
                        return
                    time.sleep(pause)
                    pause = min(2 * pause, 0.01)
            _held.add(file)
            try:
                yield file
            finally:
                _held.discard(file)
                # Closing alone would leave the lock with a child that was forked meanwhile and has not come to its
                # own closing yet.
                fcntl.flock(file, fcntl.LOCK_UN)

    def _make_room(self, lock: IO[bytes], size: int) -> None:
        """Note that so many bytes are coming, and evict where they would be too many; the lock is held."""
        usage, counted_at = _read_usage(lock)
        now = time.time()
        if usage is None or usage + size > self.limit or not 0 <= now - counted_at < _COUNT_AGAIN:
            usage, counted_at = self._evict(size), now
        _write_usage(lock, usage + size, counted_at)

    def _evict(self, size: int) -> int:
        """Count the entries, delete the oldest until ``size`` more fit, and say what is left; the lock is held."""
        for path in self._files(_TEMPORARY):
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
        for path in self._files(""):
            with contextlib.suppress(OSError):
                found = os.stat(path)
                yield found.st_mtime_ns, _footprint(found.st_size), path

    def _files(self, ending: str) -> Iterator[str]:
        for number in range(256):
            folder = os.path.join(self.folder, f"{number:02x}")
            with contextlib.suppress(OSError):
                names = os.listdir(folder)
                yield from (
                    os.path.join(folder, name)
                    for name in names
                    if (name.endswith(ending) if ending else _ENTRY.fullmatch(name))
                )

    def _give_up(self, error: OSError) -> None:
        """Go on without storing for a while."""
        self._store_again_at = time.monotonic() + _TRY_AGAIN
        if not self._warned:
            self._warned = True
            why = "is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "cannot be written"
            warnings.warn(
                f"the cache folder {self.folder} {why} ({error}); reads go on without it "
                f"(its limit is {format_size(self.limit)})",
                stacklevel=4,
            )


class _Flight:
    """One fetch under way."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.data: bytes | None = None


class _Flights:
    """Fetches under way in this process, by range. A forked child starts with none: the parent's never end in it."""

    def __init__(self) -> None:
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, int, int | None], _Flight] = {}

    def join(self, place: tuple[str, int, int | None]) -> tuple[_Flight, bool]:
        """The flight that fetches a range, and whether the caller is to carry it out."""
        if self._pid != os.getpid():
            self._start_anew()
        with self._lock:
            flight = self._under_way.get(place)
            if flight is not None:
                return flight, False
            flight = self._under_way[place] = _Flight()
            return flight, True

    def leave(self, place: tuple[str, int, int | None]) -> None:
        """The flight of a range has ended."""
        with self._lock:
            self._under_way.pop(place, None)


def _header(digest: bytes, data: bytes) -> bytes:
    length = len(data).to_bytes(8, "little")
    checksum = google_crc32c.extend(google_crc32c.value(length + digest), data)
    return _HEADER.pack(_MAGIC, checksum, len(data), digest)


def _write_entry(path: str, header: bytes, data: bytes) -> None:
    temporary = os.path.join(os.path.dirname(path), uuid.uuid4().hex + _TEMPORARY)
    try:
        with open(temporary, "xb", buffering=0) as file:
            file.write(header)
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
        os.replace(temporary, path)
    except BaseException:
        _unlink(temporary)
        raise


def _footprint(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _read_usage(lock: IO[bytes]) -> tuple[int | None, float]:
    lock.seek(0)
    record = lock.read(_USAGE.size)
    if len(record) != _USAGE.size or google_crc32c.value(record[:-4]) != int.from_bytes(record[-4:], "little"):
        return None, 0.0
    usage, counted_at, _ = _USAGE.unpack(record)
    return usage, counted_at


def _write_usage(lock: IO[bytes], usage: int, counted_at: float) -> None:
    record = _USAGE.pack(usage, counted_at, 0)[:-4]
    lock.seek(0)
    lock.write(record + int(google_crc32c.value(record)).to_bytes(4, "little"))


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
