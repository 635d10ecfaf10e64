"""Byte ranges of many objects at once: what the direct engine fetches its plans with.

Local files are read with ``pread`` into a buffer that is used again, by the calling thread. Remote objects are all in
flight together, on one event loop of the process, and tried again as ``zarr_core.storage.retries`` says.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import fsspec.asyn
import numpy as np

from zarr_core.errors import CorruptChunkError, TruncatedError
from zarr_core.format.ranges import coalesce
from zarr_core.storage import retries
from zarr_core.storage.backends import RemoteBackend, obstore
from zarr_core.storage.disk_cache import DiskCache
from zarr_core.storage.memory_cache import MemoryCache
from zarr_core.storage.retries import RetryPolicy
from zarr_core.storage.storage import Storage, is_local, open_backend

_OPEN_FILES = 128
# Longer reads get a buffer of their own.
_BUFFER_BYTES = 8 << 20
# Objects of a group that a digest of its content's origin names.
_OF_A_DIGEST = re.compile(r"samples/.+/[0-9a-f]{16}/")
# What a try may take that fetches an object whose size nobody has told.
_UNKNOWN_BYTES = 64 << 20


# How often this process was forked off its ancestors: asking the system for the pid costs too much on every read.
forks = 0


def _forked() -> None:
    global forks
    forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Request(NamedTuple):
    """Bytes ``[start, stop)`` of an object below the root; a negative start with no stop means the last bytes."""

    key: str
    start: int = 0
    stop: int | None = None

    @property
    def size(self) -> int | None:
        """Bytes that must come; None where the object's end decides."""
        if self.start < 0:
            return -self.start
        return None if self.stop is None else self.stop - self.start

    def __str__(self) -> str:
        if self.start < 0:
            return f"the last {-self.start} bytes of {self.key}"
        return self.key if self.stop is None else f"bytes {self.start} to {self.stop} of {self.key}"


class Objects(Protocol):
    """Where the direct engine gets its bytes."""

    #: Whether bytes come over a network, where damage may be of the way and not of the object.
    remote: bool

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        """Bytes of each request in order, or what kept them from coming.

        Arrays are uint8 and hold until the next one is taken.
        """
        ...

    def discard(self, requests: Sequence[Request]) -> None:
        """Their bytes were damaged: keep no copy of them."""
        ...


def open_objects(root: str) -> Objects:
    """The objects below a root: files, or what obstore (S3, where it is installed) or fsspec reaches."""
    if is_local(root):
        return LocalObjects(Storage(root).location)
    return RemoteObjects(root)


class LocalObjects:
    """Files below a folder. Works on after a fork, and in any number of threads."""

    remote = False

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._thread = threading.local()

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        """See :class:`Objects`."""
        for request in requests:
            try:
                fetched: np.ndarray | Exception = self._read(request)
            except (OSError, CorruptChunkError) as error:
                fetched = error
            yield fetched

    def discard(self, requests: Sequence[Request]) -> None:
        """Nothing is kept."""

    def read_into(self, request: Request, buffers: Sequence[Any]) -> bool:
        """Fill buffers, one after the other, with bytes from the request's start; False where fewer came."""
        file = self._files.get(request.key) or self._open(request.key)
        return os.preadv(file.handle, buffers, request.start) == sum(map(len, buffers))

    def _read(self, request: Request) -> np.ndarray:
        file = self._files.get(request.key) or self._open(request.key)
        start, stop = request.start, request.stop
        if start < 0 or stop is None or stop - start > _BUFFER_BYTES:
            size = os.fstat(file.handle).st_size
            if start < 0 or stop is None:
                start, stop = (max(0, size + start) if start < 0 else start), size
            elif stop > size:  # no memory is taken for what a damaged index promises
                raise TruncatedError(f"{size - start} bytes are there where {stop - start} belong")
        buffer: Any = self._buffer(stop - start)
        done = os.preadv(file.handle, (buffer,), start)
        if done == stop - start and request.start >= 0:
            return np.asarray(buffer)
        while done < len(buffer):
            more = os.preadv(file.handle, [buffer[done:]], start + done)
            if not more:
                break
            done += more
        return _checked(request, buffer[:done])

    def _open(self, key: str) -> _File:
        file = self._files[key] = _File(f"{self._folder}/{key}")
        while len(self._files) > _OPEN_FILES:
            try:
                self._files.popitem(last=False)
            except KeyError:  # another thread was faster
                break
        return file

    def _buffer(self, size: int) -> np.ndarray:
        if size > _BUFFER_BYTES:
            return np.empty(size, np.uint8)
        kept: np.ndarray | None = getattr(self._thread, "buffer", None)
        if kept is None or len(kept) < size:
            kept = self._thread.buffer = np.empty(size + size // 4, np.uint8)
        return kept[:size]


class _File:
    """A file that stays open as long as somebody refers to it: a thread may read what another has just put away."""

    __slots__ = ("handle",)

    def __init__(self, path: str) -> None:
        self.handle = -1
        self.handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def __del__(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)


class MappedObjects:
    """Files below a folder, mapped into memory: no copy of what the page cache holds, a sixth faster where it is warm.

    Not the default: a file that is cut, or a disk that fails, under a mapping ends the process (SIGBUS), where
    ``pread`` raises an error that names the sample. ``ZarrChunkReader(root, objects_factory=MappedObjects)``.

    Args:
        root: a local path.
    """

    remote = False

    def __init__(self, root: str) -> None:
        self._folder = Storage(root).location
        self._files: OrderedDict[str, np.ndarray] = OrderedDict()

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        """See :class:`Objects`."""
        for request in requests:
            try:
                file = self._files.get(request.key)
                if file is None:
                    file = self._open(request.key)
                fetched: np.ndarray | Exception = _checked(request, file[request.start : request.stop])
            except (OSError, CorruptChunkError) as error:
                fetched = error
            yield fetched

    def discard(self, requests: Sequence[Request]) -> None:
        """Nothing is kept."""

    def _open(self, key: str) -> np.ndarray:
        with open(f"{self._folder}/{key}", "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return np.empty(0, np.uint8)  # nothing can be mapped
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        found = self._files[key] = np.frombuffer(mapped, np.uint8)  # unmapped when nobody refers to it
        while len(self._files) > _OPEN_FILES:
            try:
                self._files.popitem(last=False)
            except KeyError:  # another thread was faster
                break
        return found


class RemoteObjects:
    """Objects below any fsspec URL. Belongs to the process that made it.

    Args:
        root: the URL. ``s3://`` uses obstore where it is installed, except in forks of a process that has used it.
        policy: how often a request is tried, and how long; the library's one where None.
    """

    remote = True

    def __init__(self, root: str, policy: RetryPolicy | None = None) -> None:
        self._policy = policy
        self._loop = fsspec.asyn.get_loop()
        self._service = retries.service(root)
        self._backend: RemoteBackend
        if root.startswith("s3://") and obstore.may_be_used():
            self._backend = obstore.ObstoreBackend(root)
        else:
            self._backend = open_backend(root)
        self._url = root.rstrip("/")

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        """See :class:`Objects`; all requests are under way before the first bytes are handed out."""
        running: list[Future[np.ndarray]] = [
            asyncio.run_coroutine_threadsafe(self._fetch_one(request), self._loop) for request in requests
        ]
        try:
            for future in running:
                try:
                    fetched: np.ndarray | Exception = future.result()
                except Exception as error:
                    fetched = error
                yield fetched
        finally:
            for future in running:
                future.cancel()

    def discard(self, requests: Sequence[Request]) -> None:
        """Nothing is kept."""

    async def _fetch_one(self, request: Request) -> np.ndarray:
        path = f"{self._backend.location}/{request.key}"

        async def get() -> Any:
            try:
                return (await self._backend.get(path, request.start or None, request.stop))[0]
            except Exception as error:
                if _beyond_the_end(error):
                    return b""
                raise

        size = _UNKNOWN_BYTES if request.size is None else request.size
        data = await retries.request(self._service, f"{self._url}/{request.key}", get, size, self._policy)
        return _checked(request, np.frombuffer(data, np.uint8))


class CountingObjects:
    """Counts the requests that reach other objects and the bytes that they return.

    Attributes:
        requests: so far, those that failed included.
        bytes: returned so far.
        by_key: per object ``[requests, bytes]``.
        waves: calls of ``fetch`` so far: round trips, where all requests of a call are in flight together.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.remote = objects.remote
        self.reset()

    def reset(self) -> None:
        """Start again from zero."""
        self.requests = self.bytes = self.waves = 0
        self.by_key: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        """Fetch, and count it."""
        self.waves += 1
        for request, data in zip(requests, self._objects.fetch(requests), strict=True):
            self.count(request, 0 if isinstance(data, Exception) else len(data))
            yield data

    def count(self, request: Request, n_bytes: int) -> None:
        """Count a request that returned so many bytes."""
        self.requests += 1
        self.bytes += n_bytes
        self.by_key[request.key][0] += 1
        self.by_key[request.key][1] += n_bytes

    def discard(self, requests: Sequence[Request]) -> None:
        """See :class:`Objects`."""
        self._objects.discard(requests)


class JoinedObjects:
    """Objects whose neighbouring ranges are fetched as one, where requests for them follow one another.

    Below a cache and not above it: which ranges are neighbours depends on what else is asked for.

    Args:
        objects: where to fetch.
        max_gap: bytes between two ranges that may be fetched in vain.
        max_bytes: of a range, if it is more than one that was asked for.
    """

    def __init__(self, objects: Objects, max_gap: int, max_bytes: int) -> None:
        self._objects, self._max_gap, self._max_bytes = objects, max_gap, max_bytes
        self.remote = objects.remote

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        """See :class:`Objects`."""
        groups = coalesce(requests, self._max_gap, self._max_bytes)
        joined = [Request(group[0].key, group[0].start, group[-1].stop) for group in groups]
        for data, group in zip(self._objects.fetch(joined), groups, strict=True):
            first = group[0].start
            for request in group:
                if isinstance(data, Exception) or len(group) == 1:
                    yield data
                else:
                    yield data[request.start - first : request.stop - first]  # type: ignore[operator]  # none is None

    def discard(self, requests: Sequence[Request]) -> None:
        """See :class:`Objects`."""
        self._objects.discard(requests)


class CachedObjects:
    """Objects whose ranges are kept, on a disk or in memory; what is not there is fetched together.

    Args:
        objects: where to fetch.
        cache: where to keep. One in memory lies over one on a disk: ``CachedObjects(CachedObjects(...), ...)``.
        identity: what tells the store from all others (``Storage.identity``).
        immutable: names of objects that never change begin so; only those are kept. By default all below
            ``samples/<id>/<digest>/``: the digest is of what they were made from.
    """

    remote = True

    def __init__(
        self,
        objects: Objects,
        cache: DiskCache | MemoryCache,
        identity: str,
        immutable: re.Pattern[str] = _OF_A_DIGEST,
    ) -> None:
        self._objects, self._cache, self._identity, self._immutable = objects, cache, identity, immutable

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        """See :class:`Objects`."""
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
        """Forget the ranges; what was fetched damaged is then fetched again."""
        for request in requests:
            self._cache.discard(*self._place(request))
        self._objects.discard(requests)

    def _place(self, request: Request) -> tuple[str, int, int | None]:
        return f"{self._identity}/{request.key}", request.start, request.stop


def _checked(request: Request, data: np.ndarray) -> np.ndarray:
    if request.size is not None and len(data) != request.size:
        raise TruncatedError(f"{len(data)} bytes came where {request.size} belong")
    return data


def _beyond_the_end(error: Exception) -> bool:
    """Whether a service said that an object ends before the range begins."""
    text = f"{error} {error.__cause__}".lower()
    return "not satisfiable" in text or "invalidrange" in text
