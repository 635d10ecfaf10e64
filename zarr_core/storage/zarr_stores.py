"""Zarr stores: how zarr-python gets at the bytes below a root, and a wrapper that counts what it fetched."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore

from zarr_core.storage.backends import obstore
from zarr_core.storage.filesystems import filesystem_options
from zarr_core.storage.retries import POLICY
from zarr_core.storage.storage import Storage, is_local

# Of one request, by the client itself: zarr-python has no retries. For a body over s3fs that number squared.
_TRIES = 4


def make_store(root: str | os.PathLike[str]) -> Store:
    """A read-only Zarr store for a root: a local path or any fsspec URL.

    ``s3://`` uses obstore where it is installed (except in forks of a process that has used it), every other remote
    location goes through fsspec.
    """
    url = os.fspath(root)
    if is_local(url):
        return LocalStore(Storage(url).location, read_only=True)
    if url.startswith("s3://") and obstore.may_be_used():
        return ObjectStore(obstore.open_obstore(url, tries=POLICY.attempts), read_only=True)
    store = FsspecStore.from_url(url, storage_options=filesystem_options(url, _TRIES), read_only=True)
    store.fs.retries = _TRIES  # s3fs's name for it; means nothing to others
    return store


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
