"""What training on a GPU waits for: batches of a store and of mapped ``.pt`` files, by how they are read and copied.

``python -m benchmarks.gpu`` needs a CUDA device. It writes 512 synthetic samples of 65,536 points and four fields, and
trains on batches of 8 samples of 16,384 points, normalized to float32: first a step that does nothing, then one that
keeps the GPU busy for half as long again as the fastest way takes for a batch. The ways take turns, an epoch each.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.result import Result, Value, parse
from benchmarks.synthetic import DRAWN, FIELDS, make_source, make_store
from zarr_core import EpochBatchSampler, Normalizers, ResumableLoader, build_dataset, to_device
from zarr_core.format.codecs import DEFAULT_CODEC

SAMPLES, POINTS, BATCH = 512, 65_536, 8
Batch = Mapping[str, Tensor]
# The batches of an epoch, on the device.
Way = Callable[[int], Iterable[Batch]]
NO_THREADS = "store, no threads, copied with .to()"
THREADS = "store, 4 threads, to_device"
ON_DEVICE = "store, 4 threads, to_device, cast and normalized there"
MAPS = ".pt files mapped, 4 worker processes, to_device, normalized there"
# Epochs that read what is not in memory yet, and compare checksums.
WARM = 8


class MappedFiles(Dataset[dict[str, Tensor]]):
    """Windows of ``.pt`` files whose points are in random order, as float32; a new window at each read."""

    def __init__(self, folder: Path, drawn: int) -> None:
        self._folders = sorted(folder.glob("run_*"))
        self._drawn = drawn
        self._opened: dict[int, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        return len(self._folders)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index not in self._opened:
            self._opened[index] = {
                field: torch.load(self._folders[index] / f"{field}.pt", weights_only=True, mmap=True)
                for field in FIELDS
            }
        tensors = self._opened[index]
        start = random.randrange(len(tensors[FIELDS[0]]) - self._drawn + 1)
        return {field: tensor[start : start + self._drawn].clone() for field, tensor in tensors.items()}


def ways(
    source: Path, store: Path, device: torch.device, drawn: int = DRAWN, batch_size: int = BATCH
) -> dict[str, Way]:
    """The ways by name. Each has its own dataset and loader, which live as long as it does."""
    components = {field: 1 if field.endswith("pressure") else 3 for field in FIELDS}
    numbers = {
        field: {"kind": "fixed", "shift": [1.0] * count, "unit": [10.0] * count} for field, count in components.items()
    }
    config = {"kind": "point", "root": str(store), "split": "all", "num_volume_points": drawn, "normalizers": numbers}
    pinned = device.type == "cuda"

    def loader(threads: int, **more: Any) -> ResumableLoader[Any]:
        dataset = build_dataset(config | more)
        sampler = EpochBatchSampler.of(dataset, batch_size=batch_size, seed=0)
        return ResumableLoader(dataset, sampler, num_threads=threads, pin_memory=pinned and threads > 0)

    alone, threads, stored = loader(0), loader(4), loader(4, dtype="stored")
    files = DataLoader(
        MappedFiles(source, drawn), batch_size, shuffle=True, num_workers=4, pin_memory=pinned, persistent_workers=True
    )
    on_device = Normalizers(numbers).normalize

    def copied(epoch: int) -> Iterator[Batch]:
        alone.set_epoch(epoch)
        for batch in alone:
            yield {name: values.to(device) for name, values in batch.items()}

    def ahead(loader: Any, transform: Any = None) -> Way:
        batches = to_device(loader, device, transform=transform)

        def read(epoch: int) -> Iterable[Batch]:
            if loader is not files:
                loader.set_epoch(epoch)
            return batches

        return read

    return {
        NO_THREADS: copied,
        THREADS: ahead(threads),
        ON_DEVICE: ahead(stored, on_device),
        MAPS: ahead(files, on_device),
    }


class Step:
    """Work of a device that takes about some time: the sums of a batch, and products of matrices.

    Args:
        device: where.
        seconds: of the products; they are timed first.
        size: of the square matrices.
    """

    def __init__(self, device: torch.device, seconds: float, size: int = 2048) -> None:
        self._device = device
        self._matrix = torch.randn(size, size, device=device).to(torch.bfloat16) / size**0.5
        self._products = 0
        if seconds:
            self._products = 20
            once = min(self.seconds({}, 10) for _ in range(3)) / 20
            self._products = max(1, round(seconds / once))

    def __call__(self, batch: Batch) -> Tensor:
        """Start the work; the result is on the device."""
        total = torch.zeros((), device=self._device)
        for values in batch.values():
            total = total + values.sum()
        product = self._matrix
        for _ in range(self._products):
            product = product @ self._matrix
        return total + product[0, 0]

    def seconds(self, batch: Batch, steps: int) -> float:
        """Seconds of a step whose batch is there."""
        self._wait()
        started = time.perf_counter()
        for _ in range(steps):
            self(batch)
        self._wait()
        return (time.perf_counter() - started) / steps

    def train(self, batches: Iterable[Batch]) -> float:
        """Seconds of a step of an epoch."""
        self._wait()
        started = time.perf_counter()
        count = 0
        for batch in batches:
            self(batch)
            count += 1
        self._wait()
        return (time.perf_counter() - started) / count

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def measure(opened: Mapping[str, Way], step: Step, rounds: int, warm: int = WARM) -> dict[str, float]:
    """Median seconds of a step by way, after ``warm`` epochs that are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in opened}
    turns = random.Random(0)
    for number in range(warm + rounds):
        for name, way in turns.sample(list(opened.items()), len(opened)):
            taken = step.train(way(number))
            if number >= warm:
                seconds[name].append(taken)
    return {name: statistics.median(found) for name, found in seconds.items()}


def copies(batch: Batch, device: torch.device, rounds: int) -> dict[str, float]:
    """Bytes per second of copies of a batch to a device, from memory as it comes and from pinned memory."""
    size = sum(values.nbytes for values in batch.values())
    pinned = {name: values.pin_memory() for name, values in batch.items()}
    rates = {}
    for name, source in {"pageable": batch, "pinned": pinned}.items():
        seconds = []
        for _ in range(rounds):
            torch.cuda.synchronize(device)
            started = time.perf_counter()
            for values in source.values():
                values.to(device, non_blocking=True)
            torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - started)
        rates[name] = size / statistics.median(seconds)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    arguments = parse(parser, rounds=20)
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.gpu needs a CUDA device, and torch finds none")
    torch.set_num_threads(1)
    device = torch.device("cuda")
    result = Result("gpu", "Training on a GPU", arguments)
    result.describe(
        f"{torch.cuda.get_device_name(device)}. {SAMPLES} samples of {POINTS:,} points, {len(FIELDS)} fields of which "
        f"the positions are float32 and the rest float16 in the store, all float32 in the .pt files; batches of "
        f"{BATCH} x {DRAWN:,} points, local, warm; median of {arguments.rounds} epochs in turns."
    )
    with tempfile.TemporaryDirectory() as folder:
        source = make_source(Path(folder, "source"), SAMPLES, POINTS)
        store = make_store(source, Path(folder, "store"), str(DEFAULT_CODEC))
        opened = ways(source, store, device)
        reading = measure(opened, Step(device, 0), arguments.rounds)
        step = Step(device, 1.5 * min(reading.values()))
        batch = {name: values.clone() for name, values in next(iter(opened[THREADS](0))).items()}
        alone = step.seconds(batch, 100)
        training = measure(opened, step, arguments.rounds, warm=1)
        rates = copies({name: values.cpu() for name, values in batch.items()}, device, 50)
    rows: list[list[Value]] = [
        [name, 1000 * reading[name], 1000 * training[name], training[name] / alone] for name in opened
    ]
    rows.append(["the step alone, its batch on the GPU", None, 1000 * alone, 1.0])
    result.add_table("Time of a step", ("way", "without work, ms", "with work, ms", "/ the step alone"), rows)
    rows = [[f"{name} memory", rate / 1e9] for name, rate in rates.items()]
    result.add_table("Copies of a batch to the GPU", ("from", "GB/s"), rows)
    result.add_target("4 threads and to_device / the step alone", training[ON_DEVICE] / alone, "at most", 1.05)
    result.add_target("without work: mapped .pt files / the store", reading[MAPS] / reading[ON_DEVICE], "at least", 1)
    result.save()


if __name__ == "__main__":
    main()
