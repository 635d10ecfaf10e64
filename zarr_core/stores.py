"""Zarr stores: how zarr-python gets at the bytes below a root, and wrappers that count or cache what it fetches."""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore

from zarr_core.cache import DiskCache
from zarr_core.storage import Storage, is_local

StoreFactory = Callable[[str], Store]

# The process that first used obstore. Its Rust threads do not survive a fork: in a child of that process every request
# would wait for ever, so children go through fsspec.
_obstore_process: int | None = None


def make_store(root: str | os.PathLike[str]) -> Store:
    """A read-only Zarr store for a root: a local path or any fsspec URL.

    ``s3://`` uses obstore where it is installed (except in forks of a process that has used it), every other remote
    location goes through fsspec.
    """
    global _obstore_process
    url = os.fspath(root)
    if is_local(url):
        return LocalStore(Storage(url).location, read_only=True)
    if url.startswith("s3://") and _obstore_process in (None, os.getpid()):
        try:
            import obstore.store
        except ImportError:
            pass
        else:
            _obstore_process = os.getpid()
            plain_http = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
            return ObjectStore(obstore.store.from_url(url, client_options={"allow_http": plain_http}), read_only=True)
    # OCI's default of 5 MiB read-ahead would fetch far more than the chunk that was asked for.
    options = {"default_cache_type": "none"} if url.startswith("oci://") else None
    return FsspecStore.from_url(url, storage_options=options, read_only=True)


class CountingStore(WrapperStore[Store]):
    """Counts the read requests that reach the wrapped store and the bytes that they return.

    Attributes:
        requests: reads so far, those of absent objects included.
        bytes: bytes returned so far.
        by_key: per object ``[requests, bytes]``.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.reset()

    def reset(self) -> None:
        """Start again from zero."""
        self.requests = 0
        self.bytes = 0
        self.by_key: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Fetch, and count it."""
        found = await super().get(key, prototype, byte_range)
        self._count(key, found)
        return found

    async def get_partial_values(self, prototype: BufferPrototype, key_ranges: Any) -> list[Buffer | None]:
        """Fetch several ranges, and count each as one request."""
        ranges = list(key_ranges)
        found = await super().get_partial_values(prototype, ranges)
        for (key, _), buffer in zip(ranges, found, strict=True):
            self._count(key, buffer)
        return found

    def _count(self, key: str, buffer: Buffer | None) -> None:
        size = len(buffer) if buffer is not None else 0
        self.requests += 1
        self.bytes += size
        self.by_key[key][0] += 1
        self.by_key[key][1] += size


class CachedStore(WrapperStore[Store]):
    """Keeps ranges of objects below ``samples/`` in a :class:`~zarr_core.cache.DiskCache`.

    Only those never change: the path of a sample's group is a digest of what it was made from. Everything else, the
    manifest first of all, is fetched each time.

    Args:
        store: the store that holds the objects.
        cache: where to keep them.
        identity: what tells the store from all others (``Storage.identity``).
    """

    def __init__(self, store: Store, cache: DiskCache, identity: str) -> None:
        super().__init__(store)
        self._cache = cache
        self._identity = identity

    def _with_store(self, store: Store) -> CachedStore:
        return type(self)(store, self._cache, self._identity)

    def discard(self, keys: Iterable[str]) -> None:
        """Forget objects: what the cache has of them did not decode, so they were fetched damaged."""
        for key in keys:
            self._cache.discard(f"{self._identity}/{key}")

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Look it up, else fetch it and keep it."""
        if not key.startswith("samples/"):
            return await super().get(key, prototype, byte_range)
        place = f"{self._identity}/{key}", *_bounds(byte_range)
        data = await asyncio.to_thread(self._cache.lookup, *place)
        if data is not None:
            return prototype.buffer.from_bytes(data)
        found = await super().get(key, prototype, byte_range)
        if found is not None:
            data = found.to_bytes()
            if not key.endswith(".json") or _is_json(data):
                await asyncio.to_thread(self._cache.store, *place, data)
        return found

    async def get_partial_values(self, prototype: BufferPrototype, key_ranges: Any) -> list[Buffer | None]:
        """Several ranges, each looked up by itself."""
        return await asyncio.gather(*(self.get(key, prototype, byte_range) for key, byte_range in key_ranges))


def _bounds(byte_range: ByteRequest | None) -> tuple[int, int | None]:
    """Start and stop of a request as a cache counts them: a negative start counts from the object's end."""
    match byte_range:
        case None:
            return 0, None
        case RangeByteRequest(start, end):
            return start, end
        case OffsetByteRequest(offset):
            return offset, None
        case SuffixByteRequest(suffix):
            return -suffix, None


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True
