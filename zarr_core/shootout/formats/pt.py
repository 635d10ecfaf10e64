"""``.pt`` files, as simulations are often published."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zarr_core.shootout.formats import Format
from zarr_core.shootout.formats.files import Files
from zarr_core.shootout.formats.samples import Draws, Samples


class Pt(Format):
    """One tensor per file.

    Args:
        mmap: map the files and keep them open, instead of loading each whole at every read.
    """

    def __init__(self, mmap: bool) -> None:
        self._mmap = mmap
        self.remote = not mmap

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Save the tensors."""
        import torch

        for sample in samples.ids:
            (folder / sample).mkdir()
            for field, array in samples.arrays(sample).items():
                torch.save(torch.from_numpy(array), folder / sample / f"{field}.pt")

    def open(self, place: str | Path, draws: Draws) -> None:
        """Nothing is kept but maps."""
        self._files, self._draws = Files(place), draws
        self._maps: dict[str, dict[str, np.ndarray]] = {}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Take the window."""
        arrays = self._maps.get(sample)
        if arrays is None:
            arrays = self._load(sample)
            if self._mmap:
                self._maps[sample] = arrays
        self.requests = self._files.requests
        return {field: self._draws.rows(array, sample, epoch, field) for field, array in arrays.items()}

    def _load(self, sample: str) -> dict[str, np.ndarray]:
        import torch

        return {
            field: torch.load(self._files.open(f"{sample}/{field}.pt"), weights_only=True, mmap=self._mmap).numpy()
            for field in self._draws.domains
        }
