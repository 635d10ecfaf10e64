"""Formats whose items are whole samples: LitData, which maps the file of an item, and MosaicML Streaming (MDS)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

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


class MDS(Whole):
    """Read by its dataset of local files, without the downloader. It wants an environment with an older NumPy."""

    without_threads = ""

    def prepare(self, samples: Samples, folder: Path) -> None:
        columns = dict.fromkeys(samples.fields, "ndarray")
        with _streaming().MDSWriter(out=str(folder), columns=columns, size_limit="64mb") as writer:
            for sample in samples.ids:
                writer.write(samples.arrays(sample))

    def _dataset(self, place: str) -> Any:
        return _streaming().LocalDataset(local=place)


def _streaming() -> Any:
    """The package of MDS. Its image datasets, which nothing here uses, need a torchvision for this very torch."""
    sys.modules.setdefault("streaming.vision", mock.MagicMock())
    import streaming

    return streaming
