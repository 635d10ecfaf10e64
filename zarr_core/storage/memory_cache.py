"""A cache of byte ranges in the memory of one process."""

from __future__ import annotations

import threading
from collections import OrderedDict

from zarr_core._util.units import parse_size

# What keeping an entry takes beside its bytes: the key, the objects round it, its place in the dictionary.
_ENTRY_BYTES = 500


class MemoryCache:
    """Byte ranges of immutable objects; the least recently used make room for new ones.

    Any number of threads may use it. It belongs to the process that made it: a fork may find it locked for ever.

    Args:
        limit: bytes to keep at most, "2GB" or a number; each entry counts 500 bytes on top of its own.

    Attributes:
        limit: in bytes.
        size: bytes kept now, never more than the limit.

    Raises:
        ZarrCoreError: the limit is no size.
    """

    def __init__(self, limit: int | str) -> None:
        self.limit = parse_size(limit)
        self.size = 0
        self._entries: OrderedDict[tuple[str, int, int | None], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def lookup(self, key: str, start: int, stop: int | None) -> bytes | None:
        """The bytes of a range if they are here; whoever decodes them checks them."""
        with self._lock:
            data = self._entries.get((key, start, stop))
            if data is not None:
                self._entries.move_to_end((key, start, stop))
            return data

    def store(self, key: str, start: int, stop: int | None, data: bytes) -> bool:
        """Keep the bytes of a range; False where they are more than the limit."""
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
        """Forget a range: the bytes turned out to be wrong."""
        with self._lock:
            self._drop((key, start, stop))

    def _drop(self, place: tuple[str, int, int | None]) -> None:
        data = self._entries.pop(place, None)
        if data is not None:
            self.size -= len(data) + _ENTRY_BYTES
