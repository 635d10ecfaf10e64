"""What parameters, transforms, mixtures and normalization cost beside the plain dataset: time of a batch, local.

``python -m benchmarks.items`` makes two copies of a store of 128 samples of two domains. Batches of 8 samples, 16,384
volume and 4,096 surface points of each. The datasets take turns in random order, an epoch each. Ratios are those of
each turn, of which the median is shown: the speed of a machine may change every few seconds. Epochs that meet chunks
for the first time, whose checksums are compared, are not counted.

Then processes that may open 1,024 files, as on most computers, and processes that may open enough for all fields of all
samples take turns with the plain dataset.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.result import Result, Value, parse
from zarr_core import EpochBatchSampler, MixedDataset, ResumableLoader, build_dataset, stage_store
from zarr_core.convert import convert

SAMPLES, BATCH = 128, 8
DRAW = {"num_volume_points": 16_384, "num_surface_points": 4_096}
PLAIN, COPY, MIXTURE = "plain", "plain, the other store", "mixture of two stores"
# Work on each value, which no other row has. It has no limit.
NORMALIZED = "normalized"
LIMIT = 1.05
# Files that a process may open: as on most computers, and four times as many as the store has.
USUAL, ENOUGH = 1024, 16 * SAMPLES
# Epochs until nearly all chunks were read.
WARM = 20


class _Source:
    """Random samples with parameters, for ``convert``."""

    filemap: ClassVar[dict[str, str]] = {
        "volume_position": "xyz",
        "volume_velocity": "u",
        "surface_position": "xyz_wall",
        "surface_pressure": "p",
        "design_parameters": "parameters",
    }

    def __init__(self, points: Mapping[str, int]) -> None:
        self.sample_ids = [f"run_{number}" for number in range(SAMPLES)]
        self._points = points

    def _load(self, index: int, name: str) -> Any:
        rng = np.random.default_rng(index)
        if name == "parameters":
            return {"drag": rng.normal(), "inflow": rng.normal(size=3).tolist()}
        domain = "volume" if name in ("xyz", "u") else "surface"
        shape = (self._points[domain],) if name == "p" else (self._points[domain], 3)
        return torch.from_numpy(rng.normal(size=shape).astype(np.float32))


def make_stores(folder: Path, points: Mapping[str, int]) -> list[str]:
    """A store, and a copy of it."""
    stores = [str(folder / "one"), str(folder / "other")]
    report = convert(_Source(points), stores[0], chunk_points=16_384)
    assert report.ok, report
    stage_store(*stores)
    return stores


def keep(item: Any) -> Any:
    """A transform that changes nothing."""
    return item


def datasets(stores: list[str], draw: Mapping[str, int]) -> dict[str, Any]:
    """The datasets by name."""
    config = {"kind": "point", "split": "all", **draw}
    one, other = (build_dataset(config | {"root": store}) for store in stores)
    in_one = config | {"root": stores[0]}
    numbers = {"kind": "fixed", "shift": [1.0] * 3, "unit": [10.0] * 3}
    return {
        PLAIN: build_dataset(in_one),
        COPY: build_dataset(config | {"root": stores[1]}),
        "with parameters": build_dataset(in_one | {"parameters": ["drag", "inflow"]}),
        "with a transform of items": build_dataset(in_one | {"transform": keep}),
        "with a transform of batches": build_dataset(in_one | {"batch_transform": keep}),
        NORMALIZED: build_dataset(
            in_one | {"normalizers": dict.fromkeys(("volume_position", "volume_velocity"), numbers)}
        ),
        MIXTURE: MixedDataset({"one": one, "other": other}, size=SAMPLES),
    }


def measure(opened: Mapping[str, Any], rounds: int, warm: int) -> dict[str, list[float]]:
    """Seconds of a batch in each turn by name, after ``warm`` epochs that are not counted."""
    loaders = {}
    for name, dataset in opened.items():
        loaders[name] = ResumableLoader(dataset, EpochBatchSampler.of(dataset, batch_size=BATCH, seed=0))
    seconds: dict[str, list[float]] = {name: [] for name in opened}
    turns = random.Random(0)
    for number in range(warm + rounds):
        # What an epoch leaves in the processor's caches must not always meet the same dataset.
        for name, loader in turns.sample(list(loaders.items()), len(loaders)):
            loader.set_epoch(number)
            started = time.perf_counter()
            batches = sum(1 for _ in loader)
            if number >= warm:
                seconds[name].append((time.perf_counter() - started) / batches)
    return seconds


def ratios(found: Mapping[str, list[float]]) -> dict[str, float]:
    """Times of batches as multiples of the plain dataset's; that of the mixture, of both stores' mean."""
    plain = np.array(found[PLAIN])
    compared: dict[str, float] = {}
    for name, seconds in found.items():
        base = (plain + found[COPY]) / 2 if name == MIXTURE else plain
        compared[name] = float(np.median(np.array(seconds) / base))
    return compared


def seconds_with(files: int, store: str, epochs: int) -> float:
    """Median seconds of a batch in this process, which may open ``files`` files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    torch.set_num_threads(1)
    plain = build_dataset({"kind": "point", "split": "all", "root": store, **DRAW})
    return statistics.median(measure({PLAIN: plain}, epochs, WARM)[PLAIN])


def measure_open_files(store: str, turns: int = 5, epochs: int = 20) -> dict[int, list[float]]:
    """Seconds of a batch in each turn by the number of files that a process may open; each in a new process."""
    seconds: dict[int, list[float]] = {USUAL: [], ENOUGH: []}
    for _ in range(turns):
        for files, found in seconds.items():
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
                found.append(fresh.submit(seconds_with, files, store, epochs).result())
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    arguments = parse(parser, rounds=60)
    torch.set_num_threads(1)
    result = Result("items", "Parameters, transforms, mixtures and normalization", arguments)
    points = {"volume": 40_000, "surface": 10_000}
    result.describe(
        f"{SAMPLES} samples of {points['volume']:,} volume and {points['surface']:,} surface points, float16 but for "
        f"the positions; batches of {BATCH} x ({DRAW['num_volume_points']:,} + {DRAW['num_surface_points']:,}) points, "
        f"local, no worker; median of {arguments.rounds} epochs in turns."
    )
    with tempfile.TemporaryDirectory() as folder:
        stores = make_stores(Path(folder), points)
        found = measure(datasets(stores, DRAW), arguments.rounds, WARM)
        of_files = measure_open_files(stores[0])
    compared = ratios(found)
    rows: list[list[Value]] = []
    for name, seconds in found.items():
        rows.append([name, 1000 * statistics.median(seconds), compared[name]])
    result.add_table("Time of a batch", ("dataset", "ms", "/ plain"), rows)
    for name, ratio in compared.items():
        if name not in (PLAIN, COPY, NORMALIZED):
            result.add_target(f"{name} / plain", ratio, "at most", LIMIT)
    result.add_table(
        "Time of a batch of the plain dataset by the number of files that the process may open",
        ("files", "ms"),
        [(f"{files:,}", 1000 * statistics.median(seconds)) for files, seconds in of_files.items()],
    )
    ratio = statistics.median(np.array(of_files[USUAL]) / np.array(of_files[ENOUGH]))
    result.add_target(f"{USUAL:,} open files / enough for all", ratio, "at most", 1.25)
    result.save()


if __name__ == "__main__":
    main()
