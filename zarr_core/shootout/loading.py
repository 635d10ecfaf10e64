"""Reads batches of a format with a DataLoader, or in threads as ``ResumableLoader`` does, and times them."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from zarr_core._util.threads import map_in_threads
from zarr_core.shootout.budget import MeasurementError
from zarr_core.shootout.candidates import NO_WORKERS, Candidate, Loader
from zarr_core.shootout.formats import Format, stacked

# Bytes read from a device, as a share of the bytes of the batches, from which files were not in memory. Compression and
# values that are all equal make it small.
_LEAST_FROM_DEVICE = 0.05


@dataclass(frozen=True)
class Reading:
    """What to read, and how.

    Attributes:
        candidate: the format.
        place: a prepared folder or URL.
        draws: what to read; ``ids`` are the items of an epoch.
        batch_size: items per batch.
        loader: who reads them.
        idle: empty batches that each worker begins with.
        batches: of all workers after that; None for no end.
        ready: a local copy of the same files. A process that times a first epoch reads an item of it before, so that
            imports are not part of the time; "" if no first epoch is timed.
    """

    candidate: Candidate
    place: str
    draws: Any
    batch_size: int
    loader: Loader = NO_WORKERS
    ready: str = ""
    idle: int = 0
    batches: int | None = None

    @property
    def epoch(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.draws.ids) // self.batch_size)

    def items(self) -> Iterator[list[tuple[Any, int]]]:
        """Items of each batch, with their epochs; shuffled."""
        endless = _shuffled(list(self.draws.ids))
        for _ in itertools.islice(itertools.count(), self.batches):
            yield list(itertools.islice(endless, self.batch_size))

    def open(self) -> Format:
        """The format, opened in this process."""
        made = self.candidate.make()
        made.open(self.place, self.draws)
        return made

    def get_ready(self) -> dict[str, Any]:
        """Import what the format needs: read an item of the local copy. An empty batch."""
        made = replace(self, place=self.ready).open()
        if made.streams:
            next(made.stream(0, 0, 1))
        else:
            made.read_batch([(self.draws.ids[0], 0)])
        return {}


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


class Batches(IterableDataset[Any]):
    """Batches of a format, which is opened once: of shuffled items, an epoch after the other, or as it streams them.

    Each worker reads its share of them.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    @cached_property
    def format(self) -> Format:
        """The format, opened in the process that first asks for it."""
        return self.reading.open()

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        for _ in range(self.reading.idle):
            yield self.reading.get_ready()
        if self.format.streams:
            streamed = self._streamed(number, workers)
            for _ in itertools.islice(itertools.count(), number, self.reading.batches, workers):
                yield stacked(list(itertools.islice(streamed, self.reading.batch_size)))
        else:
            for items in itertools.islice(self.reading.items(), number, None, workers):
                yield self.format.read_batch(items)

    def _streamed(self, number: int, workers: int) -> Iterator[Any]:
        for epoch in itertools.count():
            empty = True
            for item in self.format.stream(epoch, number, workers):
                empty = False
                yield item
            if empty:
                raise ValueError(f"worker {number + 1} of {workers} has nothing to read: there are fewer shards")

    def in_threads(self) -> Iterator[Any]:
        """Batches as ``ResumableLoader(num_threads=...)`` reads them, with a format that threads share."""
        opened, loader = self.format, self.reading.loader

        def fetch(items: Any) -> Any:
            batch = _tensors(opened.read_batch(items))
            return pin_memory(batch) if loader.pin else batch  # type: ignore[no-untyped-call]

        batches: Any = self.reading.items()
        yield from map_in_threads(fetch, batches, loader.threads, loader.threads * loader.prefetch)


def _shuffled(ids: list[Any]) -> Iterator[tuple[Any, int]]:
    for epoch in itertools.count():
        for number in np.random.default_rng(epoch).permutation(len(ids)).tolist():
            yield ids[number], epoch


def _tensors(batch: Any) -> dict[str, Any]:
    """Arrays of a batch as tensors of the same memory."""
    tensors: dict[str, Any] = {}
    for name, arrays in batch.items():
        whole = isinstance(arrays, np.ndarray)
        tensors[name] = torch.from_numpy(arrays) if whole else list(map(torch.from_numpy, arrays))
    return tensors


@dataclass(frozen=True)
class Timer:
    """Times batches of a reading. Its methods raise MeasurementError if the format cannot be read, with the reason.

    Attributes:
        reading: what and how. Nothing of it was opened in this process before.
        end: time of the clock at which to stop; at least one repetition is measured.
        repetitions: number of repetitions.
        seconds: of a repetition, which is at least one batch.
        clock: monotonic time in seconds.
    """

    reading: Reading
    end: float
    repetitions: int
    seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def epochs(self, cold: bool = False) -> Timing:
        """Time the first epoch and repetitions in later ones.

        Args:
            cold: whether the first epoch is timed; with workers it contains their start, and is not.
        """
        reading, clock = self.reading, self.clock
        with _loading(reading, max(self.end - clock(), 1.0)) as (dataset, batches):
            if cold and reading.ready:
                reading.get_ready()
            first, from_device = self._warm_up(batches)
            opened = None if reading.loader.workers else dataset.format
            before = opened.requests if opened else None
            rates: list[float] = []
            read = 0
            while len(rates) < self.repetitions and (not rates or clock() < self.end):
                started, count = clock(), 0
                while clock() - started < self.seconds or not count:
                    next(batches)
                    count += 1
                rates.append(count * reading.batch_size / (clock() - started))
                read += count * reading.batch_size
            after = opened.requests if opened else None
            requests = None if before is None or after is None else (after - before) / read
            return Timing(first if cold and not reading.loader.workers else None, rates, requests, from_device)

    def _warm_up(self, batches: Iterator[Any]) -> tuple[float, bool | None]:
        """Read an epoch, and what is prefetched; its samples per second, and whether it was read from a device."""
        device, started = _bytes_from_device(), self.clock()
        done = size = 0
        while done < self.reading.epoch and (done < 1 or self.clock() < self.end):
            size += _size(next(batches))
            done += 1
        rate = done * self.reading.batch_size / (self.clock() - started)
        from_device = _is_from_device(device, size)
        loader = self.reading.loader
        while done < 2 * loader.parallel * loader.prefetch and self.clock() < self.end:
            next(batches)
            done += 1
        return rate, from_device

    def first_epochs(self, drop: Callable[[], object]) -> Timing:
        """Time several first epochs, in each of which the files are opened again; without the start of workers.

        Args:
            drop: called before each of them; drops the files from memory.
        """
        rates: list[float] = []
        from_device: list[bool | None] = []
        longest = 0.0
        while len(rates) < self.repetitions and (not rates or self.clock() + longest < self.end):
            started = self.clock()
            drop()
            rate, of_device = self._first_epoch(max(self.end - started, 2 * longest, 1.0))
            rates.append(rate)
            from_device.append(of_device)
            longest = max(longest, self.clock() - started)
        return Timing(None, rates, None, None if None in from_device else all(from_device))

    def _first_epoch(self, left: float) -> tuple[float, bool | None]:
        """Its samples per second, and whether it was read from a device. Nothing of it stays open."""
        workers, prefetch = self.reading.loader.workers, self.reading.loader.prefetch
        # The loader requests this number of batches at its start. They are empty, and as many follow: when the first
        # have arrived, every worker is ready, and has not opened a file.
        requested = workers * prefetch
        reading = replace(self.reading, idle=2 * prefetch * (workers > 0), batches=self.reading.epoch)
        with _loading(reading, left) as (_, batches):
            if not workers:
                reading.get_ready()
            for _ in range(requested):
                next(batches)
            device, started = _bytes_from_device(), self.clock()
            for _ in range(requested):
                next(batches)
            size = 0
            for _ in range(reading.epoch):
                size += _size(next(batches))
            rate = reading.epoch * reading.batch_size / (self.clock() - started)
            return rate, None if workers else _is_from_device(device, size)


@contextmanager
def _loading(reading: Reading, left: float) -> Iterator[tuple[Batches, Iterator[Any]]]:
    """The dataset, and batches of it; workers, whose batch may take ``left`` seconds, and threads end with the context.

    Raises MeasurementError if the format cannot be read, with the reason.
    """
    workers, in_threads = reading.loader.workers, reading.loader.threads > 0
    options: dict[str, Any] = {}
    if workers:
        # A plain fork hangs after a remote filesystem was used.
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["torch", "zarr_core.shootout.loading", "zarr_core.points.read.reader"])
        # A worker that starts slowly, or a batch that does not come, must not use up more than the budget.
        options = {"multiprocessing_context": context, "prefetch_factor": reading.loader.prefetch, "timeout": left}
    dataset = Batches(reading)
    iterator: Any
    if in_threads:
        iterator = dataset.in_threads()
    else:
        options |= {"batch_size": None, "num_workers": workers, "pin_memory": reading.loader.pin}
        iterator = iter(DataLoader(dataset, collate_fn=_tensors, **options))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield dataset, iterator
    # A format is another library, which may raise anything; one of them must not end the others.
    except Exception as error:
        raise MeasurementError(_reason(error)) from error
    finally:
        torch.set_num_threads(threads)
        if in_threads:
            iterator.close()
        elif workers:
            iterator._shutdown_workers()


def _reason(error: Exception) -> str:
    if "in DataLoader worker process" in str(error):  # the text is the traceback of the worker
        return str(error).rstrip().rpartition("\n")[2]
    return f"{type(error).__name__}: {error}"


def _size(batch: Any) -> int:
    """Bytes of a batch."""
    size = 0
    for tensors in batch.values():
        for tensor in tensors:
            size += tensor.nbytes
    return size


def _is_from_device(before: int | None, size: int) -> bool | None:
    """Whether batches of that size were read from a device, at least in part, and not only a page of a library."""
    after = _bytes_from_device()
    return None if before is None or after is None else after - before > _LEAST_FROM_DEVICE * size


def _bytes_from_device() -> int | None:
    """Bytes that this process has caused to be read from block devices; None where the system does not count them."""
    try:
        _, found, text = Path("/proc/self/io").read_text().partition("\nread_bytes:")
    except OSError:
        return None
    return int(text.split()[0]) if found else None
