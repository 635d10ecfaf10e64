"""Sources that change under the converter, with and without a new time, and clocks that are wrong."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from tests.attacks.tally import Tally
from tests.attacks.truth import CHUNK_POINTS, Sample, check_samples, named_objects, same, stored_sample
from tests.helpers.small_source import KIND, write_source
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.head import load_manifest
from zarr_core.sources import SampleTree, resolve_kind
from zarr_core.storage.disk_cache import DiskCache

SAMPLE = "run_1"
_VERSIONS = 3


def changing_sources(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """A thread keeps changing a sample while it is converted; after the last change it is converted again."""
    versions = [
        write_source(folder / f"version_{n}", (SAMPLE,), surface=500, volume=20_000, seed=n) for n in range(_VERSIONS)
    ]
    truths = [stored_sample(version, SAMPLE) for version in versions]
    for number in range(rounds):
        source = folder / f"source_{number}"
        shutil.copytree(versions[0], source)
        store = folder / f"store_{number}"
        stop, vandal = (
            threading.Event(),
            _Vandal(source / SAMPLE, [v / SAMPLE for v in versions], chance.randrange(2**32)),
        )
        thread = threading.Thread(target=vandal.run, args=(stop,))
        thread.start()
        vandal.begun.wait()
        for _ in range(3):
            with tally.ours(f"round {number}"):
                report = convert(KIND, store, root=source, chunk_points=CHUNK_POINTS)
                tally.add("refused", len(report.having("failed")) + len(report.having("quarantined")))
            _check(store, truths, tally, f"round {number}, {vandal.last}", None)
        stop.set()
        thread.join()
        tally.add("faults", vandal.changes)
        final = chance.randrange(_VERSIONS)
        for path in versions[final].rglob("*.pt"):
            shutil.copyfile(path, source / SAMPLE / path.name)
            os.utime(source / SAMPLE / path.name)  # a listing cannot detect other bytes with an unchanged time
        with tally.ours(f"round {number}, at rest"):
            convert(KIND, store, root=source, chunk_points=CHUNK_POINTS)
        _check(store, truths, tally, f"round {number}, at rest", final)
        # The recorded fingerprint is that of the present source.
        entry = load_manifest(store).samples.get(SAMPLE)
        if entry is None or entry.fingerprint != SampleTree(KIND, source).discover()[SAMPLE].fingerprint:
            tally.add(
                "lost", 1, f"round {number}: the version at rest was not converted: {load_manifest(store).quarantine}"
            )
        tally.add("rounds")
        shutil.rmtree(source)
        shutil.rmtree(store)


def _check(store: Path, truths: list[Sample], tally: Tally, what: str, final: int | None) -> None:
    """Each field equals one version of its file. Fields may be of different versions: files are replaced singly."""
    if not (store / "manifest.json").exists() or SAMPLE not in load_manifest(store).samples:
        return
    read = ZarrChunkReader(store).read_sample(SAMPLE)
    if final is not None:
        if not same(read, truths[final]):
            tally.add("wrong", 1, f"{what}: not the version that the source has")
        return
    torn = [name for name, values in read.items() if not any(np.array_equal(values, truth[name]) for truth in truths)]
    if torn:
        tally.add("wrong", 1, f"{what}: torn: {torn}")


class _Vandal:
    """Changes files of a sample in place, by rename, and with the old time."""

    def __init__(self, folder: Path, versions: list[Path], seed: int) -> None:
        self._folder, self._versions, self._chance = folder, versions, random.Random(seed)
        self._names = [file.filename for file in resolve_kind(KIND).required_fields.values()]
        self.begun = threading.Event()
        self.changes = 0
        self.last = ""

    def run(self, stop: threading.Event) -> None:
        ways = (self._rewrite, self._rewrite_and_hide, self._replace, self._replace_and_hide, self._cut, self._grow)
        pause = self._chance.choice((0, 0.001, 0.01, 0.1, 0.3))  # so that some conversions come through
        while not stop.is_set():
            way, path = self._chance.choice(ways), self._folder / self._chance.choice(self._names)
            new = (self._chance.choice(self._versions) / path.name).read_bytes()
            with contextlib.suppress(FileNotFoundError):
                way(path, new)
            self.last = way.__name__
            self.changes += 1
            self.begun.set()
            stop.wait(pause * self._chance.uniform(0.5, 1.5))

    def _rewrite(self, path: Path, new: bytes) -> None:
        with path.open("r+b") as file:
            for start in range(0, len(new), 4096):
                file.write(new[start : start + 4096])
                file.flush()
            file.truncate()

    def _rewrite_and_hide(self, path: Path, new: bytes) -> None:
        """As ``rsync --inplace --times`` or ``tar`` may: the time is set back afterwards."""
        before = path.stat()
        self._rewrite(path, new)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def _replace(self, path: Path, new: bytes) -> None:
        beside = path.with_suffix(".new")
        beside.write_bytes(new)
        beside.replace(path)

    def _replace_and_hide(self, path: Path, new: bytes) -> None:
        before = path.stat()
        beside = path.with_suffix(".new")
        beside.write_bytes(new)
        os.utime(beside, ns=(before.st_atime_ns, before.st_mtime_ns))
        beside.replace(path)

    def _cut(self, path: Path, new: bytes) -> None:
        whole = path.read_bytes()
        os.truncate(path, self._chance.randrange(len(whole) or 1))
        path.write_bytes(new)

    def _grow(self, path: Path, new: bytes) -> None:
        with path.open("ab") as file:
            file.write(os.urandom(5000))
        path.write_bytes(new)


def jumping_clocks(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """Clocks that are wrong, and that jump while we run; files from the future and from before the epoch.

    Nothing in the stored objects may depend on the time of day. A source has changed if its time differs,
    also if it is earlier.
    """
    year = 365 * 86_400.0
    truth: dict[str, Sample] = {}
    real = time.time
    for number in range(rounds):
        source = write_source(folder / f"source_{number}", ("run_1", "run_2"), seed=number)
        jump = chance.choice((-60, -1, 1, 60)) * year / chance.choice((1, 1000, 1e6))
        jumps = [0.0, jump, -jump]

        def now(jumps: list[float] = jumps) -> float:
            return real() + chance.choice(jumps)

        store, straight = folder / f"store_{number}", folder / f"straight_{number}"
        truth = {sample_id: stored_sample(source, sample_id) for sample_id in ("run_1", "run_2")}
        for path in source.rglob("*.pt"):
            at = max(0.0, real() + chance.uniform(-50, 50) * year)
            os.utime(path, (at, at))
            tally.add("faults")
        convert(KIND, straight, root=source, chunk_points=CHUNK_POINTS)
        cache = DiskCache(folder / f"cache_{number}", "400kB")
        with patch("time.time", now), patch("time.time_ns", lambda now=now: int(now() * 1e9)), tally.ours("clock"):
            tally.add("faults")
            convert(KIND, store, root=source, limit=1, chunk_points=CHUNK_POINTS)
            convert(KIND, store, root=source, chunk_points=CHUNK_POINTS)
            # Eviction uses the clock: with any clock, a hit returns the stored bytes, and the limit holds.
            for key in (str(chance.randrange(60)) for _ in range(200)):
                found = cache.lookup(key, 0, None)
                if found is None:
                    cache.store(key, 0, None, key.encode() * 10_000)
                elif found != key.encode() * 10_000:
                    tally.add("wrong", 1, f"round {number}: the cache returned another entry")
            if cache.size() > 400_000:
                tally.add("wrong", 1, f"round {number}: the cache has {cache.size()} of 400,000 bytes")
        check_samples(str(store), truth, tally, f"round {number}")
        groups = [{k: v for k, v in named_objects(str(root)).items() if "/" in k} for root in (store, straight)]
        if groups[0] != groups[1]:
            tally.add("wrong", 1, f"round {number}: a store depends on the clock")
        # An older file in the place of a newer one is a change like any other.
        path = source / "run_1" / "surface_pressure.pt"
        values = torch.load(path, weights_only=True) + 1
        torch.save(values, path)
        before = max(0.0, path.stat().st_mtime - 70 * year)
        os.utime(path, (before, before))
        tally.add("faults")
        with tally.ours("an older file"):
            convert(KIND, store, root=source, chunk_points=CHUNK_POINTS)
        check_samples(str(store), {"run_1": stored_sample(source, "run_1")}, tally, f"round {number}, an older file")
        check_samples(str(store), {"run_1": truth["run_1"]}, tally, f"round {number}, generation 2", 2)
        tally.add("rounds")
