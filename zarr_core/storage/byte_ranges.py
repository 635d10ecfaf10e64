"""Fetching byte ranges of many objects at once.

Local files are read by the calling thread, with ``pread`` into a reused buffer. Requests for remote objects are all in
flight together, on one event loop per process, and are retried under the policy of ``zarr_core.storage.retries``.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from zarr_core._util.units import format_size, parse_size
from zarr_core.errors import CorruptChunkError, TruncatedError
from zarr_core.format.ranges import coalesce
from zarr_core.storage.disk_cache import DiskCache
from zarr_core.storage.local_files import Identity, MappedFile, Maps, OpenFiles
from zarr_core.storage.storage import Storage

# A longer read allocates its own buffer.
_BUFFER_BYTES = 8 << 20
# Bytes of a coming request that the system is told to load, at most.
_ANNOUNCED_BYTES = 8 << 20
# Remote objects whose versions are remembered. Beyond, all are met again.
_KNOWN_VERSIONS = 1 << 16
# Memory of an entry of a cache beside its bytes: the key, the Python objects and the place in the dictionary.
_ENTRY_BYTES = 500
# Objects of a sample group named by a content digest. They never change.
_IMMUTABLE = re.compile(r"samples/.+/[0-9a-f]{16}(?:/|\.zip$)")

# Number of forks between this process and the first one. Cheaper than a system call for the pid on every read.
forks = 0


def _forked() -> None:
    global forks
    forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Request(NamedTuple):
    """Bytes ``[start, stop)`` of an object below the root; a negative start without a stop means the last bytes."""

    key: str
    start: int = 0
    stop: int | None = None

    @property
    def size(self) -> int | None:
        """Expected bytes; None for a range to the end of the object."""
        if self.start < 0:
            return -self.start
        return None if self.stop is None else self.stop - self.start

    def __str__(self) -> str:
        if self.start < 0:
            return f"the last {-self.start} bytes of {self.key}"
        return self.key if self.stop is None else f"bytes {self.start} to {self.stop} of {self.key}"


class Objects(Protocol):
    """Interface for fetching byte ranges of the objects below one root."""

    #: Whether bytes come over a network or from a cache, so that damaged bytes are worth a second attempt.
    remote: bool

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        """Bytes of each request in order, or the error that prevented the read.

        Each uint8 array is valid until the next one is taken.
        """

    def discard(self, requests: Sequence[Request]) -> None:
        """Drop cached copies of ranges whose bytes were damaged. Without a cache, there is nothing to do."""
        return


def open_objects(place: str | Storage) -> Objects:
    """The objects below a root: local files, or remote ones through a client."""
    storage = place if isinstance(place, Storage) else Storage(place)
    return LocalObjects(storage.location) if storage.is_local else RemoteObjects(storage)


class LocalObjects(Objects):
    """Files below a folder. Safe for threads and after a fork."""

    remote = False

    def __init__(self, folder: str) -> None:
        self._files = OpenFiles(folder)
        self._thread = threading.local()
        self._maps = Maps(folder)

    def announce(self, requests: Sequence[Request]) -> None:
        """Let the system load bytes that are going to be read, so that a disk works on many requests at a time."""
        for request in requests:
            try:
                file = self._files.get(request.key)
                size = min(request.size or _ANNOUNCED_BYTES, _ANNOUNCED_BYTES)
                os.posix_fadvise(file.handle, request.start, size, os.POSIX_FADV_WILLNEED)
            except (AttributeError, OSError):  # macOS has no such call; the read reports errors
                return

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        if len(requests) > 1:
            self.announce([request for request in requests if request.start >= 0])
        for request in requests:
            try:
                fetched: np.ndarray | Exception = self._read(request)
            except (OSError, CorruptChunkError) as error:
                fetched = error
            yield fetched

    def read_into(self, key: str, start: int, buffers: Sequence[Any]) -> int:
        """Fill buffers one after another from a position of a file; returns how many bytes were there."""
        file = self._files.get(key)
        return os.preadv(file.handle, buffers, start)

    def identity(self, key: str) -> Identity:
        """Distinguishes a file from one that replaced it, which is read once the first one is no longer open.

        Empty if the file cannot be opened, which a read reports.
        """
        try:
            return self._files.get(key).identity
        except OSError:
            return ()

    def map(self, key: str) -> MappedFile | None:
        """The map of a file whose content never changes; None if it should be read instead."""
        try:
            found = self._maps.get(key)
            if found is None:
                # This name keeps it open: another thread may drop it from the table, and open another with its handle.
                file = self._files.get(key)
                found = self._maps.add(key, file)
            return found
        except OSError:  # the read reports it
            return None

    def _read(self, request: Request) -> np.ndarray:
        file = self._files.get(request.key)
        start, stop = request.start, request.stop
        if start < 0 or stop is None or stop - start > _BUFFER_BYTES:
            size = os.fstat(file.handle).st_size
            if start < 0 or stop is None:
                start, stop = (max(0, size + start) if start < 0 else start), size
            elif stop > size:  # allocate nothing for a range that a damaged index invented
                raise TruncatedError(f"expected {stop - start} bytes, but only {size - start} are there")
        buffer: Any = self._buffer(stop - start)
        done = os.preadv(file.handle, (buffer,), start)
        if done == stop - start and request.start >= 0:
            return np.asarray(buffer)
        while done < len(buffer):
            more = os.preadv(file.handle, [buffer[done:]], start + done)
            if not more:
                break
            done += more
        return check_size(request, buffer[:done])

    def _buffer(self, size: int) -> np.ndarray:
        if size > _BUFFER_BYTES:
            return np.empty(size, np.uint8)
        kept: np.ndarray | None = getattr(self._thread, "buffer", None)
        if kept is None or len(kept) < size:
            kept = self._thread.buffer = np.empty(size + size // 4, np.uint8)
        return kept[:size]


class RemoteObjects(Objects):
    """Objects of a remote location. Belongs to the process that made it."""

    remote = True

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._versions: dict[str, str] = {}
        #: How often an object was read for the first time, or in another version than before. It only grows.
        self.met = 0
        #: The value of ``met`` when a handle last looked whether they are of its store.
        self.checked = 0

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        """See :class:`Objects`; all requests are in flight before the first bytes are returned."""
        running = [self._storage.begin_read(each.key, each.start or None, each.stop) for each in requests]
        try:
            for request, future in zip(requests, running, strict=True):
                try:
                    data, version = future.result()
                    self._meet(request.key, version)
                    fetched: np.ndarray | Exception = check_size(request, np.frombuffer(data, np.uint8))
                except Exception as error:
                    fetched = error
                yield fetched
        finally:
            for future in running:
                future.cancel()

    def _meet(self, key: str, version: str) -> None:
        if not version or self._versions.get(key) != version:
            if len(self._versions) >= _KNOWN_VERSIONS:
                self._versions.clear()
            self._versions[key] = version
            self.met += 1


class _Layer(Objects):
    """Objects over others, which do what it does not."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.remote = objects.remote

    def discard(self, requests: Sequence[Request]) -> None:
        self._objects.discard(requests)


class CountingObjects(_Layer):
    """Counts the requests passed to other objects and the bytes that they return.

    Attributes:
        requests: number so far, failed ones included.
        bytes: returned so far.
        by_key: ``[requests, bytes]`` per object.
        batches: calls of ``fetch`` so far. All requests of a call are in flight together, so this counts round trips.
    """

    def __init__(self, objects: Objects) -> None:
        super().__init__(objects)
        self.reset()

    def reset(self) -> None:
        """Start again from zero."""
        self.requests = self.bytes = self.batches = 0
        self.by_key: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        """Fetch, and count it."""
        self.batches += 1
        for request, data in zip(requests, self._objects.fetch(requests), strict=True):
            self.count(request, 0 if isinstance(data, Exception) else len(data))
            yield data

    def count(self, request: Request, n_bytes: int) -> None:
        """Count a request that returned ``n_bytes`` bytes."""
        self.requests += 1
        self.bytes += n_bytes
        self.by_key[request.key][0] += 1
        self.by_key[request.key][1] += n_bytes


class JoinedObjects(_Layer):
    """Fetches neighbouring ranges of consecutive requests as one range, as :func:`zarr_core.format.ranges.coalesce`.

    Lies below a cache, not above it: the joined ranges differ from one batch of requests to the next.
    """

    def __init__(self, objects: Objects, max_gap: int, max_bytes: int) -> None:
        super().__init__(objects)
        self._max_gap, self._max_bytes = max_gap, max_bytes

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        groups = coalesce(requests, self._max_gap, self._max_bytes)
        joined = [Request(group[0].key, group[0].start, group[-1].stop) for group in groups]
        for data, group in zip(self._objects.fetch(joined), groups, strict=True):
            first = group[0].start
            for request in group:
                if isinstance(data, Exception) or len(group) == 1:
                    yield data
                else:
                    yield data[request.start - first : request.stop - first]  # type: ignore[operator]  # none is None


class MemoryCache:
    """Byte ranges of immutable objects; the least recently used are evicted.

    Thread-safe. Belongs to the process that made it: after a fork its lock may be held for ever.

    Args:
        limit: bytes to keep at most, "2GB" or a number; each entry counts 500 bytes more than its size.

    Attributes:
        limit: in bytes.
        size: bytes kept now, never more than the limit.

    Raises:
        ZarrCoreError: the limit is not a size.
    """

    def __init__(self, limit: int | str) -> None:
        self.limit = parse_size(limit)
        self.size = 0
        self._warned = False
        self._entries: OrderedDict[tuple[str, int, int | None], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def lookup(self, key: str, start: int, stop: int | None) -> bytes | None:
        """The bytes of a range if they are cached. They are checked when they are decoded."""
        with self._lock:
            data = self._entries.get((key, start, stop))
            if data is not None:
                self._entries.move_to_end((key, start, stop))
            return data

    def store(self, key: str, start: int, stop: int | None, data: bytes) -> bool:
        """Keep the bytes of a range; False, with one warning, if they exceed the limit."""
        size = len(data) + _ENTRY_BYTES
        if size > self.limit:
            if not self._warned:
                self._warned = True
                text = f"the memory cache does not keep ranges of {format_size(len(data))}: its limit is "
                warnings.warn(f"{text}{format_size(self.limit)}; use larger cache_bytes", stacklevel=5)
            return False
        with self._lock:
            self._drop((key, start, stop))
            while self.size + size > self.limit:
                self._drop(next(iter(self._entries)))
            self._entries[key, start, stop] = data
            self.size += size
        return True

    def discard(self, key: str, start: int, stop: int | None) -> None:
        """Remove a range whose bytes were damaged."""
        with self._lock:
            self._drop((key, start, stop))

    def _drop(self, place: tuple[str, int, int | None]) -> None:
        data = self._entries.pop(place, None)
        if data is not None:
            self.size -= len(data) + _ENTRY_BYTES


class CachedObjects(_Layer):
    """Objects behind a cache on a disk or in memory. All ranges that are not cached are fetched in one batch.

    Args:
        objects: where to fetch.
        cache: where to keep ranges. A memory cache lies over a disk cache: ``CachedObjects(CachedObjects(...), ...)``.
        identity: distinguishes the store from all others (``Storage.identity``).
        immutable: matches the start of the names of objects that never change; only those are cached. By default,
            everything below ``samples/<id>/<digest>/``, and archives: the digest is one of the source and the settings.
    """

    def __init__(
        self, objects: Objects, cache: DiskCache | MemoryCache, identity: str, immutable: re.Pattern[str] = _IMMUTABLE
    ) -> None:
        super().__init__(objects)
        self.remote = True
        self._cache, self._identity, self._immutable = cache, identity, immutable

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        kept = [self._cache.lookup(*self._place(r)) if self._immutable.match(r.key) else None for r in requests]
        fetched = self._objects.fetch([r for r, data in zip(requests, kept, strict=True) if data is None])
        for request, data in zip(requests, kept, strict=True):
            if data is not None:
                yield np.frombuffer(data, np.uint8)
                continue
            new = next(fetched)
            if not isinstance(new, Exception) and self._immutable.match(request.key):
                self._cache.store(*self._place(request), new.tobytes())
            yield new

    def discard(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._cache.discard(*self._place(request))
        super().discard(requests)

    def _place(self, request: Request) -> tuple[str, int, int | None]:
        return f"{self._identity}/{request.key}", request.start, request.stop


class WholeObjects(_Layer):
    """Takes ranges from objects that were fetched whole, given by name, and fetches all others."""

    def __init__(self, objects: Objects, whole: dict[str, np.ndarray]) -> None:
        super().__init__(objects)
        self._whole = whole

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        kept = [self._range(request) for request in requests]
        fetched = self._objects.fetch([r for r, data in zip(requests, kept, strict=True) if data is None])
        for data in kept:
            yield next(fetched) if data is None else data

    def discard(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._whole.pop(request.key, None)
        super().discard(requests)

    def _range(self, request: Request) -> np.ndarray | None:
        data = self._whole.get(request.key)
        if data is None or request.stop is None or request.stop > len(data):
            return None
        return data[request.start : request.stop]


def check_size(request: Request, data: np.ndarray) -> np.ndarray:
    """Return the bytes; raises TruncatedError if they are not as many as requested."""
    if request.size is not None and len(data) != request.size:
        raise TruncatedError(f"expected {request.size} bytes, but {len(data)} came")
    return data
