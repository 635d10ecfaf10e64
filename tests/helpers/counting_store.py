"""Counts the requests that reach a Zarr store, or the samples of a store of this library."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from zarr_core.storage import Storage

T = TypeVar("T")


class CountingStore(WrapperStore[Store]):
    """Counts the read requests that reach the wrapped store and the bytes that they return.

    Attributes:
        requests: reads so far, those of absent objects included.
        bytes: bytes returned so far.
        by_key: per object ``[requests, bytes]``.
    """

    # zarr-python 3.4 also reads by get_ranges, which WrapperStore passes on uncounted; that of Store calls get.
    get_ranges: Any = getattr(Store, "get_ranges", None)

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


class Kept(Generic[T]):
    """A factory of stores, or of what fetches objects, that keeps what it has ``made``."""

    def __init__(self, make: Callable[[str], T]) -> None:
        self._make = make
        self.made: list[T] = []

    def __call__(self, root: str) -> T:
        self.made.append(self._make(root))
        return self.made[-1]

    @property
    def only(self) -> T:
        """What was made, once."""
        (only,) = self.made
        return only


class Requests:
    """Counts the operations on the samples of a store, by name."""

    def __init__(self, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        self.sizes: list[int] = []
        for operation in ("_read", "_info", "infos", "write"):
            self._count(root, operation, getattr(Storage, operation), monkeypatch)

    def _count(self, root: str, operation: str, real: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def counted(storage: Storage, name: str, *arguments: Any, **options: Any) -> Any:
            is_counted = storage.root == root and name.startswith("samples/")
            if is_counted:
                self.counts[operation.strip("_")] += 1
            result = real(storage, name, *arguments, **options)
            if is_counted and operation == "_read":
                self.sizes.append(len(result))
            return result

        monkeypatch.setattr(Storage, operation, counted)
