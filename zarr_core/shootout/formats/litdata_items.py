"""LitData, which reads whole items, and maps the whole file that an item lies in."""

from __future__ import annotations

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
        optimize_items(samples.arrays, samples.ids, folder, chunk_bytes="64MB")

    def open(self, place: str | Path, draws: Draws) -> None:
        self._draws, self._items = draws, self._dataset(str(place))
        each = len(self._items) // len(draws.runs)
        self._first = dict(zip(sorted(draws.runs), range(0, len(self._items), each), strict=True))

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        return self._draws.cut(self._items[self._first[sample]], sample, epoch)

    def _dataset(self, place: str) -> Any:
        """What has the items of all samples, in the order of their names."""
        from litdata import StreamingDataset

        return StreamingDataset(place, shuffle=False)


def optimize_items(make: Any, inputs: list[Any], folder: Path, **size: Any) -> None:
    """Let LitData write items, which ``make`` returns for each of the inputs."""
    from litdata import optimize

    optimize(fn=make, inputs=inputs, output_dir=str(folder), num_workers=1, verbose=False, **size)
