"""Reading through a disk cache: in tests, and in processes that they kill.

``python -m tests.helpers.cache_reader FOLDER LIMIT SEED`` reads until it is killed, or until it gets wrong bytes.
"""

from __future__ import annotations

import random
import sys
from itertools import count, islice
from pathlib import Path

from zarr_core.storage.disk_cache import DiskCache

BLOCK = 4096
ENTRY = 10_000  # bytes, so that an entry takes three blocks
OBJECTS = {f"object {number}": 500 + 400 * number for number in range(60)}  # sizes
LIMIT = 40 * 3 * BLOCK  # not enough for all of them


def content(key: str, start: int, stop: int) -> bytes:
    """Bytes of object ``key`` there: other keys and other ranges hold other bytes."""
    return random.Random(f"{key} {start}").randbytes(stop - start)


def fetched(cache: DiskCache, key: str, start: int = 0, stop: int = ENTRY) -> bytes:
    """The range from the cache, or else from the object, after which the cache stores it."""
    data = cache.lookup(key, start, stop)
    if data is None:
        data = content(key, start, stop)
        cache.store(key, start, stop, data)
    return data


def files(cache: DiskCache) -> list[Path]:
    """The files of the entries."""
    return sorted(path for path in Path(cache.folder).rglob("*_*") if path.is_file())


def read_on(folder: str, limit: int, seed: int, reads: int | None = None) -> None:
    """Read objects in an order that the seed determines; None: endlessly. Raises ValueError for wrong bytes."""
    cache, chance = DiskCache(folder, limit), random.Random(seed)
    for _ in islice(count(), reads):
        key = chance.choice(list(OBJECTS))
        if fetched(cache, key, 0, OBJECTS[key]) != content(key, 0, OBJECTS[key]):
            raise ValueError(f"the cache returned other bytes than those of {key}")


if __name__ == "__main__":
    read_on(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
