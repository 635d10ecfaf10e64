"""Batches of a format through a DataLoader."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from traceback import format_exception
from typing import Any

import numpy as np
import pytest

from zarr_core.shootout import loading
from zarr_core.shootout.budget import MeasurementError
from zarr_core.shootout.candidates import Candidate, Loader
from zarr_core.shootout.formats import Draws, Samples
from zarr_core.shootout.formats.files import Window
from zarr_core.shootout.loading import Batches, Reading, Timer

IDS = ("s0", "s1", "s2")


class Streamed(Window):
    """A format that only streams."""

    streams = True

    def stream(self, epoch: int, worker: int, workers: int) -> Iterator[dict[str, np.ndarray]]:
        for sample in IDS[worker::workers]:
            yield self.read(sample, epoch)


class Unreadable(Window):
    """A format whose library fails."""

    def read(self, sample: str, epoch: int) -> Any:
        raise IndexError("out of range")


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    runs = {}
    for number, sample in enumerate(IDS):
        (tmp_path / "samples" / sample).mkdir(parents=True)
        rows = np.arange(10 + number, dtype=np.float32)[:, None]
        np.save(tmp_path / "samples" / sample / "volume_pressure.npy", rows)
        runs[sample] = [{"volume": [(2, 5), (0, 1)]}]
    (tmp_path / "npy").mkdir()
    Window().prepare(Samples(tmp_path / "samples"), tmp_path / "npy")
    draws = Draws(runs, {"volume": 4}, 10, {"volume_pressure": "volume"})
    return Reading(Candidate(".npy", "zarr_core.shootout.formats.files:Window"), str(tmp_path / "npy"), draws, 2)


def with_entry(reading: Reading, name: str, workers: int = 0, threads: int = 0) -> Reading:
    entry = Candidate(name, f"{__name__}:{name}")
    return Reading(entry, reading.place, reading.draws, reading.batch_size, Loader(workers, threads=threads))


def test_epochs_are_shuffled_and_batches_cross_their_border(reading: Reading) -> None:
    batches = list(itertools.islice(reading.items(), 3))
    assert [len(batch) for batch in batches] == [2, 2, 2]
    items = [item for batch in batches for item in batch]
    assert sorted(items) == sorted((sample, epoch) for epoch in (0, 1) for sample in IDS)


@pytest.mark.parametrize("streams", [False, True])
def test_a_batch_has_the_drawn_rows(reading: Reading, streams: bool) -> None:
    if streams:
        batch = next(iter(Batches(with_entry(reading, "Streamed"))))
    else:
        batch = reading.open().read_batch([("s0", 0), ("s2", 7)])
    assert batch["volume_pressure"].tolist() == [[[2.0], [3.0], [4.0], [0.0]]] * 2


def ahead() -> set[str]:
    """The threads that read batches; others, of earlier tests, may end at any time."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("zarr_core.ahead")}


def test_threads_read_the_same_batches_and_end(reading: Reading) -> None:
    with loading._loading(reading, 1.0) as (_, batches):
        alone = list(itertools.islice(batches, 20))
    threaded = dataclasses.replace(reading, loader=Loader(threads=3))
    with loading._loading(threaded, 1.0) as (_, batches):
        read = list(itertools.islice(batches, 20))
        assert ahead()
    assert list(map(str, read)) == list(map(str, alone))
    assert not ahead()


@pytest.mark.parametrize(
    ("format", "workers", "threads"), [("Window", 0, 0), ("Streamed", 0, 0), ("Streamed", 1, 0), ("Window", 0, 2)]
)
def test_rates_with_and_without_workers(reading: Reading, format: str, workers: int, threads: int) -> None:
    timed = with_entry(reading, format, workers, threads)
    timing = Timer(timed, time.monotonic() + 600, 3).epochs(cold=True)
    assert len(timing.rates) == 3
    assert min(timing.rates) > 0
    assert (timing.first is None) == bool(workers)


def test_at_least_one_repetition_is_measured_when_the_time_is_up(reading: Reading) -> None:
    assert len(Timer(reading, 0, 3).epochs().rates) == 1


@pytest.mark.parametrize(
    ("format", "workers", "threads"), [("Window", 0, 0), ("Window", 0, 2), ("Window", 2, 0), ("Streamed", 2, 0)]
)
def test_first_epochs_open_dropped_files_and_have_no_imports(
    reading: Reading, format: str, workers: int, threads: int
) -> None:
    dropped: list[str] = []
    reading = dataclasses.replace(with_entry(reading, format, workers, threads), batch_size=1, ready=reading.place)

    def drop() -> None:
        dropped.append(reading.place)

    timing = Timer(reading, time.monotonic() + 600, 2 - workers // 2).first_epochs(drop)
    assert len(timing.rates) == len(dropped) == 2 - workers // 2
    assert min(timing.rates) > 0
    assert workers == 0 or timing.from_device is None


def test_the_items_of_an_epoch_are_read_once_after_empty_batches(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(Window, "open", lambda format, place, draws: opened.append(place))
    monkeypatch.setattr(Window, "read_batch", lambda *_: {})
    reading = dataclasses.replace(reading, ready="local copy", loader=Loader(1), idle=3, batches=2)
    batches = iter(Batches(reading))
    for _ in range(3):
        assert next(batches) == {}
    assert opened == ["local copy"] * 3
    assert list(batches) == [{}] * 2
    assert opened[3:] == [reading.place]
    assert [len(batch) for batch in reading.items()] == [2, 2]


def test_imports_are_no_part_of_the_first_epoch(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    now, imported = [0.0], [False]
    read = Window.read_batch

    def importing(self: Window, items: Any) -> Any:
        now[0] += 1 if imported[0] else 100
        imported[0] = True
        return read(self, items)

    monkeypatch.setattr(Window, "read_batch", importing)
    reading = dataclasses.replace(reading, ready=reading.place)
    timing = Timer(reading, 1e9, 1, clock=lambda: now[0]).epochs(cold=True)
    assert timing.first == 2.0, "a second per batch of two samples"


def test_files_in_memory_are_not_taken_for_files_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_bytes_from_device", lambda: 104_096)
    assert loading._is_from_device(100_000, 1_000_000) is False, "a page of a library was read"
    assert loading._is_from_device(0, 1_000_000) is True
    assert loading._is_from_device(None, 1) is None


def test_a_worker_without_a_shard_ends_with_a_reason(reading: Reading) -> None:
    with pytest.raises(ValueError, match="worker 4 of 4 has nothing to read: there are fewer shards"):
        next(Batches(with_entry(reading, "Streamed"))._streamed(3, 4))


@pytest.mark.parametrize("threads", [0, 2])
def test_the_error_of_a_library_is_the_reason(reading: Reading, threads: int) -> None:
    with pytest.raises(MeasurementError, match="IndexError: out of range"):
        Timer(with_entry(reading, "Unreadable", threads=threads), float("inf"), 1).epochs()
    try:
        raise IndexError("out of range")
    except IndexError as error:  # what a DataLoader raises for its worker
        found = IndexError(f"Caught IndexError in DataLoader worker process 0.\n{''.join(format_exception(error))}")
    assert loading._reason(found) == "IndexError: out of range"
