"""``kill -9`` of readers that share a disk cache, at random moments."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.attacks.processes import Forked
from tests.attacks.tally import Tally
from tests.helpers.cache_reader import LIMIT, OBJECTS, content, fetched, read_on
from zarr_core.storage.disk_cache import DiskCache

_READERS = 8


def killed_readers(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """In each round one of eight readers is killed and replaced by a new one."""
    seeds = iter(range(_READERS + rounds))

    def start_reader() -> Forked:
        return Forked(read_on, str(folder / "cache"), LIMIT, next(seeds))

    readers = [start_reader() for _ in range(_READERS)]
    try:
        for number in range(rounds):
            time.sleep(chance.uniform(0, 0.2))
            place = chance.randrange(_READERS)
            tally.add("faults", readers[place].kill_and_look(tally, f"round {number}"))
            readers[place] = start_reader()
            tally.add("rounds")
    finally:
        for reader in readers:
            reader.kill_and_look(tally, "in the end")
    cache = DiskCache(folder / "cache", LIMIT)
    for key, size in OBJECTS.items():
        if fetched(cache, key, 0, size) != content(key, 0, size):
            tally.add("wrong", 1, f"in the end: {key}")
    if cache.size() > LIMIT:
        tally.add("wrong", 1, f"the cache has {cache.size()} of {LIMIT} bytes")
    if cache.corrupt_evicted:
        tally.add("wrong", 1, "a kill left a damaged entry")
