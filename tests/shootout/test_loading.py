"""Batches of a format through a DataLoader."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from traceback import format_exception
from typing import Any

import numpy as np
import pytest

from zarr_core.shootout import loading
from zarr_core.shootout.formats import Entry
from zarr_core.shootout.formats.npy import Window
from zarr_core.shootout.formats.samples import Draws, Samples
from zarr_core.shootout.loading import Reading, time_reading
from zarr_core.shootout.planner import MeasurementError

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
    return Reading(Entry(".npy", "zarr_core.shootout.formats.npy:Window"), str(tmp_path / "npy"), draws, 2)


def with_entry(reading: Reading, name: str, workers: int = 0) -> Reading:
    entry = Entry(name, f"{__name__}:{name}")
    return Reading(entry, reading.place, reading.draws, reading.batch_size, workers)


def test_epochs_are_shuffled_and_batches_cross_their_border(reading: Reading) -> None:
    batches = list(itertools.islice(loading._Batches(reading), 3))
    assert [len(batch) for batch in batches] == [2, 2, 2]
    items = [item for batch in batches for item in batch]
    assert sorted(items) == sorted((sample, epoch) for epoch in (0, 1) for sample in IDS)


@pytest.mark.parametrize("streams", [False, True])
def test_a_batch_has_the_drawn_rows(reading: Reading, streams: bool) -> None:
    if streams:
        batch = next(iter(loading._Stream(with_entry(reading, "Streamed"))))
    else:
        batch = loading._Items(reading).__getitems__([("s0", 0), ("s2", 7)])
    assert batch["volume_pressure"].tolist() == [[[2.0], [3.0], [4.0], [0.0]]] * 2


@pytest.mark.parametrize(("format", "workers"), [("Window", 0), ("Streamed", 0), ("Streamed", 1)])
def test_rates_with_and_without_workers(reading: Reading, format: str, workers: int) -> None:
    timed = with_entry(reading, format, workers)
    timing = time_reading(timed, seconds=0, repetitions=3, end=time.monotonic() + 600, cold=True)
    assert len(timing.rates) == 3
    assert min(timing.rates) > 0
    assert (timing.first is None) == bool(workers)


def test_at_least_one_repetition_is_measured_when_the_time_is_up(reading: Reading) -> None:
    assert len(time_reading(reading, seconds=0, repetitions=3, end=0).rates) == 1


def test_the_error_of_a_library_is_the_reason(reading: Reading) -> None:
    with pytest.raises(MeasurementError, match="IndexError: out of range"):
        time_reading(with_entry(reading, "Unreadable"), seconds=0, repetitions=1, end=float("inf"))
    try:
        raise IndexError("out of range")
    except IndexError as error:  # what a DataLoader raises for its worker
        found = IndexError(f"Caught IndexError in DataLoader worker process 0.\n{''.join(format_exception(error))}")
    assert loading._reason(found) == "IndexError: out of range"
