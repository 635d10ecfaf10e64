"""Reads batches of a format with a DataLoader, and times them."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from zarr_core.shootout.formats import Arrays, Entry, Format, stacked
from zarr_core.shootout.planner import MeasurementError


@dataclass(frozen=True)
class Reading:
    """What to read, and how.

    Attributes:
        entry: the format.
        place: a prepared folder or URL.
        draws: what to read; ``ids`` are the items of an epoch.
        batch_size: items per batch.
        workers, prefetch: of the DataLoader; prefetch is its ``prefetch_factor``.
        pin: whether batches are copied to page-locked memory.
    """

    entry: Entry
    place: str
    draws: Any
    batch_size: int
    workers: int = 0
    prefetch: int = 2
    pin: bool = False


@dataclass
class Timing:
    """Samples per second.

    Attributes:
        first: of the first epoch, with everything that is read once; None if it was not measured.
        rates: of repetitions in later epochs.
        requests: to the URL per sample of later epochs; None where they are not counted.
        from_device: whether the first epoch read anything from a block device; None where the system does not count it.
    """

    first: float | None
    rates: list[float]
    requests: float | None = None
    from_device: bool | None = None


class _Items(Dataset[Any]):
    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.format: Format | None = None

    def __getitems__(self, items: list[tuple[Any, int]]) -> Any:
        if self.format is None:
            self.format = _open(self.reading)
        return _tensors(self.format.read_batch(items))


class _Stream(IterableDataset[Any]):
    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.format: Format | None = None

    def __iter__(self) -> Iterator[Any]:
        if self.format is None:
            self.format = _open(self.reading)
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        endless = itertools.chain.from_iterable(
            self.format.stream(epoch, number, workers) for epoch in itertools.count()
        )
        while batch := list(itertools.islice(endless, self.reading.batch_size)):
            yield _tensors(stacked(batch))


class _Batches(Sampler[list[tuple[Any, int]]]):
    """Batches of shuffled items without end, an epoch after the other."""

    def __init__(self, reading: Reading) -> None:
        self.ids, self.size = list(reading.draws.ids), reading.batch_size

    def __iter__(self) -> Iterator[list[tuple[Any, int]]]:
        def items() -> Iterator[tuple[Any, int]]:
            for epoch in itertools.count():
                for number in np.random.default_rng(epoch).permutation(len(self.ids)).tolist():
                    yield self.ids[number], epoch

        endless = items()
        while True:
            yield list(itertools.islice(endless, self.size))


def _open(reading: Reading) -> Format:
    made = reading.entry.make()
    made.open(reading.place, reading.draws)
    return made


def _tensors(batch: Arrays) -> dict[str, Any]:
    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array)

    return {
        name: tensor(arrays) if isinstance(arrays, np.ndarray) else [tensor(array) for array in arrays]
        for name, arrays in batch.items()
    }


def _as_it_is(batch: Any) -> Any:
    return batch


def time_reading(
    reading: Reading,
    *,
    seconds: float,
    repetitions: int,
    end: float,
    cold: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Timing:
    """Time the first epoch and repetitions in later ones.

    Args:
        reading: what and how. Nothing of it was opened in this process before.
        seconds: of a repetition, which is at least one batch.
        repetitions: number of repetitions.
        end: time of the clock at which to stop; at least one repetition is measured.
        cold: whether the first epoch is timed; with workers it contains their start, and is not.
        clock: monotonic time in seconds.

    Raises:
        MeasurementError: the format cannot be read, with the reason.
    """
    dataset: Any = (_Stream if reading.entry.make().streams else _Items)(reading)
    options: dict[str, Any] = {}
    if reading.workers:
        # A plain fork hangs after a remote filesystem was used.
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["torch", "zarr_core.shootout.loading", "zarr_core.points.reader"])
        # A worker that starts slowly, or a batch that does not come, must not use up more than the budget.
        left = max(end - clock(), 1.0)
        options = {"multiprocessing_context": context, "prefetch_factor": reading.prefetch, "timeout": left}
    if isinstance(dataset, _Items):
        options["batch_sampler"] = _Batches(reading)
    else:
        options["batch_size"] = None
    loader: Any = DataLoader(
        dataset, num_workers=reading.workers, pin_memory=reading.pin, collate_fn=_as_it_is, **options
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    batches = iter(loader)
    try:
        return _timed(reading, dataset, batches, seconds, repetitions, end, cold, clock)
    # A format is another library, which may raise anything; one of them must not end the others.
    except Exception as error:
        raise MeasurementError(_reason(error)) from error
    finally:
        torch.set_num_threads(threads)
        if reading.workers:
            batches._shutdown_workers()


def _reason(error: Exception) -> str:
    if "in DataLoader worker process" in str(error):  # the text is the traceback of the worker
        return str(error).rstrip().rpartition("\n")[2]
    return f"{type(error).__name__}: {error}"


def _timed(
    reading: Reading,
    dataset: Any,
    batches: Iterator[Any],
    seconds: float,
    repetitions: int,
    end: float,
    cold: bool,
    clock: Callable[[], float],
) -> Timing:
    epoch = -(-len(reading.draws.ids) // reading.batch_size)
    device, started = _bytes_from_device(), clock()
    warm_up = max(epoch, 2 * reading.workers * reading.prefetch)
    done = 0
    while done < warm_up and (done < 1 or clock() < end):
        next(batches)
        done += 1
    took = clock() - started
    first = done * reading.batch_size / took if cold and not reading.workers else None
    after_first = _bytes_from_device()
    from_device = None if device is None or after_first is None else after_first > device
    opened = dataset.format
    before = opened.requests if opened else None
    rates: list[float] = []
    read = 0
    while len(rates) < repetitions and (not rates or clock() < end):
        started, count = clock(), 0
        while (passed := clock() - started) < seconds or not count:
            next(batches)
            count += 1
        passed = clock() - started
        rates.append(count * reading.batch_size / passed)
        read += count * reading.batch_size
    after = opened.requests if opened else None
    requests = (after - before) / read if before is not None and after is not None else None
    return Timing(first, rates, requests, from_device)


def _bytes_from_device() -> int | None:
    """Bytes that this process has caused to be read from block devices; None where the system does not count them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)
