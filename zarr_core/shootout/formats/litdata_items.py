"""LitData, which reads whole items, and maps the whole file that an item lies in.

Items are samples, in files of LitData's usual size; or for a fairer match chunks of them, each in a file of its own:
with many in a file, a random item costs many times as much.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.shootout.formats import Format
from zarr_core.shootout.formats.samples import Draws, Samples


class Whole(Format):
    """A sample is an item."""

    remote = False

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Let LitData write its chunks."""
        _optimize(samples.arrays, samples.ids, folder, chunk_bytes="64MB")

    def open(self, place: str | Path, draws: Draws) -> None:
        """Open the dataset."""
        from litdata import StreamingDataset

        self._draws = draws
        self._items = {sample: number for number, sample in enumerate(sorted(draws.runs))}
        self._dataset = StreamingDataset(str(place), shuffle=False)

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Take the window of the item."""
        arrays = self._dataset[self._items[sample]]
        return {field: self._draws.rows(array, sample, epoch, field) for field, array in arrays.items()}


class Pieces(Format):
    """A chunk of points, of all fields, is an item; for samples of one domain."""

    remote = False

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Let LitData write its chunks."""
        draws = Draws.load(samples.folder.with_name("draws.json"))
        points = len(samples.arrays(samples.ids[0])[samples.fields[0]])
        places = [(sample, start) for sample in samples.ids for start in range(0, points, draws.chunk_points)]
        _optimize(partial(_piece, samples, draws.chunk_points), places, folder, chunk_size=1)

    def open(self, place: str | Path, draws: Draws) -> None:
        """Open the dataset."""
        from litdata import StreamingDataset

        self._draws = draws
        self._dataset = StreamingDataset(str(place), shuffle=False)
        each = len(self._dataset) // len(draws.runs)
        self._first = {sample: number * each for number, sample in enumerate(sorted(draws.runs))}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Take the windows of the items."""
        size = self._draws.chunk_points
        pieces = []
        items: dict[int, dict[str, np.ndarray]] = {}
        for first, last in self._draws.of(sample, epoch, next(iter(self._draws.domains))):
            for chunk in range(first // size, (last - 1) // size + 1):
                item = items.get(chunk)
                if item is None:
                    item = items[chunk] = self._dataset[self._first[sample] + chunk]
                start = max(first - chunk * size, 0)
                pieces.append({field: array[start : last - chunk * size] for field, array in item.items()})
        return {field: np.concatenate([piece[field] for piece in pieces]) for field in pieces[0]}


def _optimize(make: Any, inputs: list[Any], folder: Path, **size: Any) -> None:
    from litdata import optimize

    optimize(fn=make, inputs=inputs, output_dir=str(folder), num_workers=1, verbose=False, **size)


def _piece(samples: Samples, size: int, place: tuple[str, int]) -> dict[str, np.ndarray]:
    sample, start = place
    files = {field: samples.folder / sample / f"{field}.npy" for field in samples.fields}
    return {field: np.array(np.load(path, mmap_mode="r")[start : start + size]) for field, path in files.items()}
