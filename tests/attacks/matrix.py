"""``kill -9`` of processes that append to a wide matrix; later processes complete the appends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.attacks import network
from tests.attacks.processes import Forked
from tests.attacks.tally import Attack, Tally
from tests.helpers.faults import Kill, is_killed
from tests.helpers.matrix_writer import N_FEATURES, OPTIONS, cells_of, samples_of, write_batches
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.verify import verify_matrix
from zarr_core.storage import Storage

_BATCHES = ("a", "b", "c")
_FEW_FEATURES = [7, 2_900]


def killed_appenders(place: Callable[[Path], AbstractContextManager[Callable[[], str]]]) -> Attack:
    """An attack on a kind of location: two processes append the same batches; one is killed, then the other as well.

    No shard may be written twice, and committed batches must read correctly from both copies.
    """

    def attack(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
        with place(folder) as new_root:
            for number in range(rounds):
                _round(new_root(), f"round {number}", tally, partial(_kill_two, tally=tally, chance=chance))
                tally.add("rounds")

    return attack


def appenders_killed_at(*kills: Kill) -> Attack:
    """The same on a disk: one round per operation at which an appender is killed."""

    def attack(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
        def die_one_by_one(root: str, look: Callable[[], None]) -> None:
            for seed, kill in enumerate(kills):
                tally.add("faults", is_killed(kill, write_batches, root, seed, _BATCHES))
                look()

        _round(str(folder / "matrix"), "killed at operations", tally, die_one_by_one)
        tally.add("rounds")

    return attack


def _kill_two(root: str, look: Callable[[], None], tally: Tally, chance: random.Random) -> None:
    """Two processes append at the same time; one is killed, then the other as well."""
    writers = [Forked(write_batches, root, seed, _BATCHES) for seed in range(2)]
    for writer in writers:
        time.sleep(chance.uniform(0, 0.3))
        tally.add("faults", writer.kill_and_look(tally, "an appender that was to be killed"))
        look()


def _round(root: str, what: str, tally: Tally, kill: Callable[[str, Callable[[], None]], None]) -> None:
    matrix = WideMatrix.create(root, list(range(N_FEATURES)), **OPTIONS)
    matrix.append("first", samples_of("first"), cells_of("first"))
    matrix.derive_columns()
    versions = _Versions(root)
    versions.check(tally, what)

    def look() -> None:
        versions.check(tally, what)
        _check(root, tally, f"{what}, after a kill", {"first"})

    kill(root, look)
    with tally.ours(f"{what}, the retry"):
        matrix.refresh()
        for batch_id in _BATCHES:
            there = batch_id in matrix.batches
            if matrix.append(batch_id, samples_of(batch_id), cells_of(batch_id)) == there:
                tally.add(
                    "wrong", 1, f"{what}: batch {batch_id} was {'not ' * (not there)}there, and is reported as new"
                )
        matrix.derive_columns()
        report = verify_matrix(root)
        if not report.ok:
            tally.add("wrong", 1, f"{what}: verify: {report.problems[:3]}")
    versions.check(tally, what)
    _check(root, tally, f"{what}, in the end", {"first", *_BATCHES})


def _check(root: str, tally: Tally, what: str, batches: set[str]) -> None:
    """Every committed sample is right, by rows and by columns, and these batches are among them."""
    with tally.ours(what):
        matrix = WideMatrix.open(root)
        gone = batches - matrix.batches.keys()
        if gone:
            tally.add("lost", sum(len(samples_of(batch_id)) for batch_id in gone), f"{what}: {sorted(gone)}")
        for batch_id, sample_ids in matrix.batches.items():
            for value, cells in cells_of(batch_id).items():
                rows = matrix.read(sample_ids, value=value)
                columns = matrix.read(sample_ids, _FEW_FEATURES, value)
                if not np.array_equal(rows, cells) or not np.array_equal(columns, cells[:, _FEW_FEATURES]):
                    tally.add("wrong", 1, f"{what}: {value} of batch {batch_id}")


class _Versions:
    """Version and time of every shard, to detect a shard that is written twice."""

    def __init__(self, root: str) -> None:
        self._storage = Storage(root)
        self._seen: dict[str, Any] = {}

    def check(self, tally: Tally, what: str) -> None:
        """Compare with the versions recorded before, and record new shards."""
        for name, info in self._storage.infos().items():
            if "/c/" in name and not name.endswith(".tmp"):
                version = info.version, info.modified, info.size
                if self._seen.setdefault(name, version) != version:
                    tally.add("wrong", 1, f"{what}: {name} was written twice")


def on_disk(folder: Path) -> AbstractContextManager[Callable[[], str]]:
    """A new folder per round."""
    numbers = iter(range(10**6))
    return nullcontext(lambda: str(folder / f"matrix_{next(numbers)}"))


@contextmanager
def on_moto(folder: Path) -> Any:
    """Buckets of moto."""
    with network.on_moto() as new_root:
        yield new_root
