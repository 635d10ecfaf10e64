"""Byte ranges of many objects at once: what the direct engine fetches its plans with.

Local files are read with ``pread`` into a buffer that is used again, by the calling thread. Remote objects are all in
flight together, on one event loop of the process. How often a request is tried, and how long it may take, is
:class:`RetryPolicy` and nothing else.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import fsspec.asyn
import numpy as np
from fsspec.config import conf as fsspec_conf
from fsspec.core import url_to_fs

from zarr_core.cache import DiskCache
from zarr_core.errors import CorruptChunkError
from zarr_core.storage import Storage, is_local

_OPEN_FILES = 128
# Longer reads get a buffer of their own.
_BUFFER_BYTES = 8 << 20
# What obstore raises where another try would be refused again.
_REFUSALS = ("PermissionDeniedError", "UnauthenticatedError", "NotSupportedError")
# Objects of a group that a digest of its content's origin names.
_OF_A_DIGEST = re.compile(r"samples/.+/[0-9a-f]{16}/")
# Requests of one process in flight.
_IN_FLIGHT = 64


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


class TruncatedError(CorruptChunkError):
    """An object ends before the bytes that were asked for."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long a request may take, and how often it is tried.

    Attributes:
        attempts: tries in all.
        timeout_s: for one try.
        first_wait_s: before the second try; doubled for each further one, and each time less a random part of it, so
            that a thousand workers do not come back at the same moment.
    """

    attempts: int = 4
    timeout_s: float = 60
    first_wait_s: float = 0.2

    def wait_s(self, attempt: int) -> float:
        """Seconds to wait after so many failed tries."""
        return self.first_wait_s * float(2 ** (attempt - 1)) * random.uniform(0.5, 1)

    async def run(self, request: Request, get: Callable[[Request], Awaitable[Any]]) -> np.ndarray:
        """The request's bytes, all of them; raises FileNotFoundError, TruncatedError, or what the last try raised."""
        for attempt in range(1, self.attempts + 1):
            try:
                data = np.frombuffer(await asyncio.wait_for(get(request), self.timeout_s), np.uint8)
                return _checked(request, data)
            except (FileNotFoundError, PermissionError, TypeError, NotImplementedError):
                raise
            except Exception as error:
                if _beyond_the_end(error):
                    raise TruncatedError(f"the object ends before {request.start}") from error
                if attempt == self.attempts or type(error).__name__ in _REFUSALS:
                    raise
            await asyncio.sleep(self.wait_s(attempt))
        raise AssertionError("unreachable")


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

    def _read(self, request: Request) -> np.ndarray:
        file = self._files.get(request.key) or self._open(request.key)
        start, stop = request.start, request.stop
        if start < 0 or stop is None:
            size = os.fstat(file.handle).st_size
            start, stop = (max(0, size + start) if start < 0 else start), size
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
        retry: see there.
    """

    remote = True

    def __init__(self, root: str, retry: RetryPolicy | None = None) -> None:
        self._retry = retry or RetryPolicy()
        self._loop = fsspec.asyn.get_loop()
        self._slots = asyncio.Semaphore(_IN_FLIGHT)
        self._get = _getter(root, self._loop)

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
        async with self._slots:
            return await self._retry.run(request, self._get)


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
            size = 0 if isinstance(data, Exception) else len(data)
            self.requests += 1
            self.bytes += size
            self.by_key[request.key][0] += 1
            self.by_key[request.key][1] += size
            yield data

    def discard(self, requests: Sequence[Request]) -> None:
        """See :class:`Objects`."""
        self._objects.discard(requests)


class CachedObjects:
    """Objects whose ranges are kept in a :class:`~zarr_core.cache.DiskCache`; what is not there is fetched together.

    Args:
        objects: where to fetch.
        cache: where to keep.
        identity: what tells the store from all others (``Storage.identity``).
        immutable: names of objects that never change begin so; only those are kept. By default all below
            ``samples/<id>/<digest>/``: the digest is of what they were made from.
    """

    remote = True

    def __init__(
        self, objects: Objects, cache: DiskCache, identity: str, immutable: re.Pattern[str] = _OF_A_DIGEST
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


# The process that first used obstore. Its Rust threads do not survive a fork: in a child of that process every request
# would wait for ever, so children go through fsspec.
_obstore_process: int | None = None


def open_obstore(url: str, **options: Any) -> Any | None:
    """An obstore store for an ``s3://`` URL; None where obstore is not installed, or this process must not use it."""
    global _obstore_process
    if not url.startswith("s3://") or _obstore_process not in (None, os.getpid()):
        return None
    try:
        import obstore.store
    except ImportError:
        return None
    _obstore_process = os.getpid()
    plain_http = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return obstore.store.from_url(url, client_options={"allow_http": plain_http}, **options)


def _getter(root: str, loop: asyncio.AbstractEventLoop) -> Callable[[Request], Awaitable[Any]]:
    """How one request is made at this kind of location."""
    store = open_obstore(root, retry_config={"max_retries": 0})
    if store is not None:
        return _obstore_getter(store)
    options: dict[str, Any] = {}
    if root.startswith("s3://"):
        # botocore's default of 10 connections would make a wave of requests several.
        config = fsspec_conf.get("s3", {}).get("config_kwargs", {})
        options["config_kwargs"] = {"max_pool_connections": _IN_FLIGHT, **config}
    fs, location = url_to_fs(root, **options)
    folder = location.rstrip("/")
    if fs.async_impl and fs.loop is loop:

        async def get(request: Request) -> Any:
            return await fs._cat_file(f"{folder}/{request.key}", start=request.start, end=request.stop)

        return get
    threads = ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="zarr_core.objects")
    read = _oci_reader(fs) if root.startswith("oci://") else _plain_reader(fs)

    async def get_in_thread(request: Request) -> Any:
        return await loop.run_in_executor(threads, read, f"{folder}/{request.key}", request)

    return get_in_thread


def _obstore_getter(store: Any) -> Callable[[Request], Awaitable[Any]]:
    import obstore

    async def get(request: Request) -> Any:
        if request.stop is not None:
            return await obstore.get_range_async(store, request.key, start=request.start, end=request.stop)
        options: Any = {"range": {"suffix": -request.start}} if request.start < 0 else {}
        return await (await obstore.get_async(store, request.key, options=options)).bytes_async()

    return get


def _plain_reader(fs: Any) -> Callable[[str, Request], bytes]:
    def read(path: str, request: Request) -> bytes:
        return bytes(fs.cat_file(path, start=request.start, end=request.stop))

    return read


def _oci_reader(fs: Any) -> Callable[[str, Request], bytes]:
    """One GET a request: ocifs' own ``cat_file`` asks for the size first, and reads 5 MiB ahead."""
    from ocifs.errors import translate_oci_error

    def read(path: str, request: Request) -> bytes:
        bucket, namespace, key = fs.split_path(path)[:3]
        if request.start < 0:
            span = f"bytes={request.start}"
        else:
            span = f"bytes={request.start}-{'' if request.stop is None else request.stop - 1}"
        try:
            response = fs._call_oci(
                fs.oci_client.get_object, namespace_name=namespace, bucket_name=bucket, object_name=key, range=span
            )
            return bytes(response.data.content)
        except Exception as error:
            if hasattr(error, "code") and hasattr(error, "status"):
                raise translate_oci_error(error) from error
            raise

    return read


def _checked(request: Request, data: np.ndarray) -> np.ndarray:
    if request.size is not None and len(data) != request.size:
        raise TruncatedError(f"{len(data)} bytes came where {request.size} belong")
    return data


def _beyond_the_end(error: Exception) -> bool:
    """Whether a service said that an object ends before the range begins."""
    text = f"{error} {error.__cause__}".lower()
    return "not satisfiable" in text or "invalidrange" in text
