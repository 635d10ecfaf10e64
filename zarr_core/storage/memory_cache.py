"""A cache of byte ranges in the memory of one process."""

from __future__ import annotations

import threading
from collections import OrderedDict

from zarr_core._util.units import parse_size

# Memory of an entry beside its bytes: the key, the Python objects and the place in the dictionary.
_ENTRY_BYTES = 500


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
        """Keep the bytes of a range; False if they exceed the limit."""
        size = len(data) + _ENTRY_BYTES
        if size > self.limit:
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
