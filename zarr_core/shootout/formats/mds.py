"""MosaicML Streaming's format, which reads whole samples; in an environment of its own, as it wants an older NumPy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

from zarr_core.shootout.formats.litdata_items import Whole
from zarr_core.shootout.formats.samples import Samples

# Its image datasets need a torchvision that was built with this very torch; nothing of them is used here.
sys.modules.setdefault("streaming.vision", mock.MagicMock())


class MDS(Whole):
    """A sample is an item; read by its dataset of local files, without the downloader."""

    without_threads = ""

    def prepare(self, samples: Samples, folder: Path) -> None:
        from streaming import MDSWriter

        columns = dict.fromkeys(samples.fields, "ndarray")
        with MDSWriter(out=str(folder), columns=columns, size_limit="64mb") as writer:
            for sample in samples.ids:
                writer.write(samples.arrays(sample))

    def _dataset(self, place: str) -> Any:
        from streaming import LocalDataset

        return LocalDataset(local=place)
