"""Prepares or measures one rival, in a process of its own, so that memory and page faults are its own.

``python -m benchmarks.rivals.child prepare NAME FOLDER SAMPLES STORE`` and then
``python -m benchmarks.rivals.child measure NAME FOLDER DRAWS SECONDS``, which prints JSON.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rivals import RIVALS
from benchmarks.rivals.formats import load_draws, prepare
from zarr_core.shootout.candidates import Candidate
from zarr_core.shootout.formats import Draws


class DrawDataset:
    """A map-style dataset of draws for torch's DataLoader; opens the rival in the process that reads."""

    def __init__(self, entry: Candidate, folder: Path, draws: Draws, length: int) -> None:
        self._entry, self._folder, self._draws, self._length = entry, folder, draws, length
        self._rival: Any = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> dict[str, Any]:
        import torch

        if self._rival is None:
            self._rival = self._entry.make()
            self._rival.open(self._folder, self._draws)
        sample, epoch = _nth(self._draws, number)
        return {field: torch.from_numpy(array) for field, array in self._rival.read(sample, epoch).items()}


def _nth(draws: Draws, number: int) -> tuple[str, int]:
    samples = list(draws.runs)
    return samples[number % len(samples)], number // len(samples) % len(draws.runs[samples[0]])


def through_loader(entry: Candidate, folder: Path, draws: Draws, workers: int, seconds: float) -> float:
    """Draws per second that a DataLoader hands out, its start left out."""
    from torch.utils.data import DataLoader

    # Nothing has used the rival in this process: forks are safe, and start at once.
    context = "fork" if workers else None
    dataset: Any = DrawDataset(entry, folder, draws, 1_000_000)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=context)
    numbers = iter(loader)
    for _ in range(2 * len(draws.runs)):  # open every file in every worker
        next(numbers)
    started = time.perf_counter()
    count = 0
    while (passed := time.perf_counter() - started) < seconds:
        next(numbers)
        count += 1
    return count / passed


def measure(entry: Candidate, folder: Path, draws: Draws, seconds: float) -> dict[str, Any]:
    """See the keys."""
    found: dict[str, Any] = {}
    for workers in (1, 2):
        found[f"samples/s, {workers} workers"] = through_loader(entry, folder, draws, workers, seconds)
    found["samples/s, 0 workers"] = through_loader(entry, folder, draws, 0, seconds)
    gc.collect()
    cold, disk = [], 0
    for turn in range(3):
        rival = entry.make()
        _drop_from_page_cache(folder)
        rival.open(folder, draws)
        before = _io("read_bytes")
        cold += [_milliseconds(rival, sample, turn) for sample in draws.runs]
        disk += _io("read_bytes") - before
        del rival
        gc.collect()
    found |= {"cold ms p50": float(np.median(cold)), "cold ms p99": float(np.percentile(cold, 99))}
    found["cold bytes from disk"] = disk / len(cold)
    rival = entry.make()
    rival.open(folder, draws)
    for sample in draws.runs:
        rival.read(sample, 0)
    for array in _pages(folder):  # what the cold turns dropped
        array.sum()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    resident = _status("VmRSS")
    read, used = _io("rchar"), _cpu_seconds()
    warm: list[float] = []
    started = time.perf_counter()
    while time.perf_counter() - started < seconds or len(warm) < 3 * len(draws.runs):
        warm.append(_milliseconds(rival, *_nth(draws, len(warm))))
    found |= {"warm ms p50": float(np.median(warm)), "warm ms p99": float(np.percentile(warm, 99))}
    found["warm bytes by read calls"] = (_io("rchar") - read) / len(warm)
    found["CPU ms"] = 1000 * (_cpu_seconds() - used) / len(warm)
    found["peak MB"] = _status("VmHWM") / 1e6
    found["peak MB above idle"] = (_status("VmHWM") - resident) / 1e6
    return found


def _milliseconds(rival: Any, sample: str, epoch: int) -> float:
    started = time.perf_counter()
    rival.read(sample, epoch)
    return 1000 * (time.perf_counter() - started)


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder, followlinks=True):
        yield from (Path(place, name) for name in names)


def _drop_from_page_cache(folder: Path) -> None:
    for path in _files(folder):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def _pages(folder: Path) -> Iterator[np.ndarray]:
    for path in _files(folder):
        if path.stat().st_size:
            yield np.memmap(path, np.uint8, mode="r")


def _io(name: str) -> int:
    return _proc("io", name)


def _status(name: str) -> int:
    return 1024 * _proc("status", name)


def _proc(file: str, name: str) -> int:
    for line in Path("/proc/self", file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    verb, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    entry = next(entry for entry in RIVALS if entry.name == name)
    if verb == "prepare":
        prepare(entry, folder, Path(sys.argv[4]), Path(sys.argv[5]))
        os.sync()  # what is dirty cannot be dropped from the page cache
    else:
        print(json.dumps(measure(entry, folder, load_draws(Path(sys.argv[4])), float(sys.argv[5]))))


if __name__ == "__main__":
    main()
