"""WebDataset, whose tar files are read from the front; a tar of each sample lets it find one."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from benchmarks.rivals.samples import Draws, Samples


class WebDataset:
    """``SAMPLE.tar`` with a ``.npy`` file of each field."""

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Write the tars."""
        from webdataset import TarWriter

        for sample in samples.ids:
            with TarWriter(str(folder / f"{sample}.tar")) as writer:
                arrays = samples.arrays(sample)
                writer.write({"__key__": sample, **{f"{name}.npy": array for name, array in arrays.items()}})

    def open(self, folder: Path, draws: Draws) -> None:
        """Tars are opened for every read."""
        self._folder, self._draws = folder, draws

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Take the windows of what the tar holds."""
        from webdataset import WebDataset as Dataset

        # All of the one tar, whichever worker this is.
        options = {"shardshuffle": False, "empty_check": False, "nodesplitter": None, "workersplitter": None}
        (found,) = Dataset(str(self._folder / f"{sample}.tar"), **options)
        return {
            name.removesuffix(".npy"): self._draws.rows(np.load(io.BytesIO(content)), sample, epoch)
            for name, content in found.items()
            if name.endswith(".npy")
        }
