"""LitData, which reads whole items, and maps the whole file that an item lies in.

Items are samples, in files of LitData's usual size; or for a fairer match chunks of them, each in a file of its own:
with many in a file, a random item costs many times as much.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.shootout.formats import Format
from zarr_core.shootout.formats.samples import Draws, Samples


class Whole(Format):
    """A sample is an item."""

    remote = False
    without_threads = "its reader keeps the place in the one file that it reads"

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Let LitData write its chunks."""
        _optimize(samples.arrays, samples.ids, folder, chunk_bytes="64MB")

    def open(self, place: str | Path, draws: Draws) -> None:
        """Open the dataset."""
        self._draws, self._items = draws, self._dataset(str(place))
        each = len(self._items) // len(draws.runs)
        self._first = dict(zip(sorted(draws.runs), range(0, len(self._items), each), strict=True))

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Take the window of the item."""
        return self._draws.cut(self._items[self._first[sample]], sample, epoch)

    def _dataset(self, place: str) -> Any:
        """What has the items of all samples, in the order of their names."""
        from litdata import StreamingDataset

        return StreamingDataset(place, shuffle=False)


class Pieces(Whole):
    """A chunk of points, of all fields, is an item; for samples of one domain."""

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Let LitData write its chunks."""
        size = Draws.load(samples.folder.with_name("draws.json")).chunk_points
        points = len(samples.arrays(samples.ids[0])[samples.fields[0]])
        places = list(product(samples.ids, range(0, points, size)))
        _optimize(partial(_piece, samples, size), places, folder, chunk_size=1)

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Take the windows of the items."""
        size = self._draws.chunk_points
        pieces: dict[str, list[np.ndarray]] = {}
        items: dict[int, dict[str, np.ndarray]] = {}
        for first, last in self._draws.of(sample, epoch, next(iter(self._draws.domains))):
            for chunk in range(first // size, (last - 1) // size + 1):
                if chunk not in items:
                    items[chunk] = self._items[self._first[sample] + chunk]
                start = max(first - chunk * size, 0)
                for field, array in items[chunk].items():
                    pieces.setdefault(field, []).append(array[start : last - chunk * size])
        return {field: np.concatenate(found) for field, found in pieces.items()}


def _optimize(make: Any, inputs: list[Any], folder: Path, **size: Any) -> None:
    from litdata import optimize

    optimize(fn=make, inputs=inputs, output_dir=str(folder), num_workers=1, verbose=False, **size)


def _piece(samples: Samples, size: int, place: tuple[str, int]) -> dict[str, np.ndarray]:
    sample, start = place
    fields = samples.arrays(sample, mmap_mode="r")
    return {field: np.array(array[start : start + size]) for field, array in fields.items()}
