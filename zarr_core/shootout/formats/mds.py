"""MosaicML Streaming's format, which reads whole samples; in an environment of its own, as it wants an older NumPy."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import numpy as np

from zarr_core.shootout.formats import Format
from zarr_core.shootout.formats.samples import Draws, Samples

# Its image datasets need a torchvision that was built with this very torch; nothing of them is used here.
sys.modules.setdefault("streaming.vision", mock.MagicMock())


class MDS(Format):
    """A sample is a sample; read by its dataset of local files, without the downloader."""

    remote = False

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Write the shards."""
        from streaming import MDSWriter

        columns = dict.fromkeys(samples.fields, "ndarray")
        with MDSWriter(out=str(folder), columns=columns, size_limit="64mb") as writer:
            for sample in samples.ids:
                writer.write(samples.arrays(sample))

    def open(self, place: str | Path, draws: Draws) -> None:
        """Open the dataset."""
        from streaming import LocalDataset

        self._draws = draws
        self._items = {sample: number for number, sample in enumerate(sorted(draws.runs))}
        self._dataset = LocalDataset(local=str(place))

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Take the window of the sample."""
        arrays = self._dataset[self._items[sample]]
        return {field: self._draws.rows(array, sample, epoch, field) for field, array in arrays.items()}
