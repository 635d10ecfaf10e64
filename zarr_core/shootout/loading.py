"""Reads batches of a format with a DataLoader, and times them."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from zarr_core.shootout.formats import Arrays, Entry, Format, stacked
from zarr_core.shootout.planner import MeasurementError

# Bytes read from a device, as a share of the bytes of the batches, from which files were not in memory. Compression and
# values that are all equal make it small.
_LEAST_FROM_DEVICE = 0.05


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
        ready: a local copy of the same files. A process that times a first epoch reads an item of it before, so that
            imports are not part of the time; "" if no first epoch is timed.
    """

    entry: Entry
    place: str
    draws: Any
    batch_size: int
    workers: int = 0
    prefetch: int = 2
    pin: bool = False
    ready: str = ""

    @property
    def epoch(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.draws.ids) // self.batch_size)


@dataclass
class Timing:
    """Samples per second.

    Attributes:
        first: of the first epoch, with everything that is read once; None if it was not measured.
        rates: of repetitions in later epochs, or of several first epochs.
        requests: to the URL per sample of later epochs; None where they are not counted.
        from_device: whether the first epoch, in this process, read its batches from a block device; None if unknown.
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
        if not items:
            return _get_ready(self.reading)
        if self.format is None:
            self.format = _open(self.reading)
        return _tensors(self.format.read_batch(items))


class _Stream(IterableDataset[Any]):
    """Batches of a format that streams.

    Args:
        reading: what and how.
        idle: empty batches that each worker begins with.
        batches: of all workers after that; None for no end.
    """

    def __init__(self, reading: Reading, idle: int = 0, batches: int | None = None) -> None:
        self.reading, self.idle, self.batches = reading, idle, batches
        self.format: Format | None = None

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        for _ in range(self.idle):
            yield _get_ready(self.reading)
        if self.format is None:
            self.format = _open(self.reading)
        endless = self._items(self.format, number, workers)
        own = itertools.count() if self.batches is None else range(number, self.batches, workers)
        for _ in own:
            yield _tensors(stacked(list(itertools.islice(endless, self.reading.batch_size))))

    @staticmethod
    def _items(opened: Format, number: int, workers: int) -> Iterator[Any]:
        for epoch in itertools.count():
            empty = True
            for item in opened.stream(epoch, number, workers):
                empty = False
                yield item
            if empty:
                raise ValueError(f"worker {number + 1} of {workers} has nothing to read: there are fewer shards")


class _Batches(Sampler[list[tuple[Any, int]]]):
    """Batches of shuffled items, an epoch after the other.

    Args:
        reading: what and how.
        idle: empty batches at the beginning.
        batches: after that; None for no end.
    """

    def __init__(self, reading: Reading, idle: int = 0, batches: int | None = None) -> None:
        self.ids, self.size = list(reading.draws.ids), reading.batch_size
        self.idle, self.batches = idle, batches

    def __iter__(self) -> Iterator[list[tuple[Any, int]]]:
        def items() -> Iterator[tuple[Any, int]]:
            for epoch in itertools.count():
                for number in np.random.default_rng(epoch).permutation(len(self.ids)).tolist():
                    yield self.ids[number], epoch

        endless = items()
        for _ in range(self.idle):
            yield []
        for _ in itertools.count() if self.batches is None else range(self.batches):
            yield list(itertools.islice(endless, self.size))


def _get_ready(reading: Reading) -> dict[str, Any]:
    """Import what the format needs: read an item of the local copy. An empty batch."""
    made = reading.entry.make()
    made.open(reading.ready, reading.draws)
    if made.streams:
        next(made.stream(0, 0, 1))
    else:
        made.read_batch([(reading.draws.ids[0], 0)])
    return {}


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
    with _loading(reading, max(end - clock(), 1.0)) as (dataset, batches):
        if cold and reading.ready:
            _get_ready(reading)
        return _timed(reading, dataset, batches, seconds, repetitions, end, cold, clock)


def time_first_epochs(
    reading: Reading,
    *,
    drop: Callable[[], object],
    repetitions: int,
    end: float,
    clock: Callable[[], float] = time.monotonic,
) -> Timing:
    """Time several first epochs, in each of which the files are opened again; without the start of workers.

    Args:
        reading: what and how; it has ``ready``.
        drop: called before each of them; drops the files from memory.
        repetitions: number of epochs.
        end: time of the clock at which to stop; at least one epoch is measured.
        clock: monotonic time in seconds.

    Raises:
        MeasurementError: the format cannot be read, with the reason.
    """
    rates: list[float] = []
    from_device: list[bool | None] = []
    longest = 0.0
    while len(rates) < repetitions and (not rates or clock() + longest < end):
        started = clock()
        drop()
        rate, of_device = _first_epoch(reading, max(end - started, 2 * longest, 1.0), clock)
        rates.append(rate)
        from_device.append(of_device)
        longest = max(longest, clock() - started)
    return Timing(None, rates, None, None if None in from_device else all(from_device))


def _first_epoch(reading: Reading, left: float, clock: Callable[[], float]) -> tuple[float, bool | None]:
    """Its samples per second, and whether it was read from a device. Nothing of it stays open."""
    # The loader requests that many batches at its start. They are empty, and as many follow: when the first ones have
    # arrived, every worker is ready, and has not opened a file.
    requested = reading.workers * reading.prefetch
    with _loading(reading, left, 2 * reading.prefetch, reading.epoch) as (_, batches):
        if not reading.workers:
            _get_ready(reading)
        for _ in range(requested):
            next(batches)
        device, started = _bytes_from_device(), clock()
        for _ in range(requested):
            next(batches)
        size = sum(_size(next(batches)) for _ in range(reading.epoch))
        rate = reading.epoch * reading.batch_size / (clock() - started)
        return rate, None if reading.workers else _is_from_device(device, size)


@contextmanager
def _loading(
    reading: Reading, left: float, idle: int = 0, batches: int | None = None
) -> Iterator[tuple[Any, Iterator[Any]]]:
    """The dataset, and batches of a DataLoader; its workers end with the context.

    Args:
        reading: what and how.
        left: seconds that a batch of workers may take.
        idle: empty batches that each worker begins with.
        batches: after that; None for no end.

    Raises:
        MeasurementError: the format cannot be read, with the reason.
    """
    options: dict[str, Any] = {}
    if reading.workers:
        # A plain fork hangs after a remote filesystem was used.
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["torch", "zarr_core.shootout.loading", "zarr_core.points.read.reader"])
        # A worker that starts slowly, or a batch that does not come, must not use up more than the budget.
        options = {"multiprocessing_context": context, "prefetch_factor": reading.prefetch, "timeout": left}
    else:
        idle = 0
    dataset: Any
    if reading.entry.make().streams:
        dataset = _Stream(reading, idle, batches)
        options["batch_size"] = None
    else:
        dataset = _Items(reading)
        options["batch_sampler"] = _Batches(reading, idle * reading.workers, batches)
    loader: Any = DataLoader(
        dataset, num_workers=reading.workers, pin_memory=reading.pin, collate_fn=_as_it_is, **options
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    iterator = iter(loader)
    try:
        yield dataset, iterator
    # A format is another library, which may raise anything; one of them must not end the others.
    except Exception as error:
        raise MeasurementError(_reason(error)) from error
    finally:
        torch.set_num_threads(threads)
        if reading.workers:
            iterator._shutdown_workers()


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
    device, started = _bytes_from_device(), clock()
    warm_up = max(reading.epoch, 2 * reading.workers * reading.prefetch)
    done = size = 0
    while done < warm_up and (done < 1 or clock() < end):
        size += _size(next(batches))
        done += 1
    took = clock() - started
    first = done * reading.batch_size / took if cold and not reading.workers else None
    from_device = _is_from_device(device, size)
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


def _size(batch: Any) -> int:
    """Bytes of a batch."""
    return sum(tensor.nbytes for tensors in batch.values() for tensor in tensors)


def _is_from_device(before: int | None, size: int) -> bool | None:
    """Whether batches of that size were read from a device, at least in part, and not only a page of a library.

    Args:
        before: :func:`_bytes_from_device` before they were read.
        size: of the batches in bytes.
    """
    after = _bytes_from_device()
    return None if before is None or after is None else after - before > _LEAST_FROM_DEVICE * size


def _bytes_from_device() -> int | None:
    """Bytes that this process has caused to be read from block devices; None where the system does not count them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), None)
