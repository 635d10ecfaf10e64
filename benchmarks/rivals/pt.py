"""``.pt`` files, as simulations are often published."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.rivals.samples import Draws, Samples


class Pt:
    """One tensor per file.

    Args:
        mmap: map the files and keep them open, instead of loading each whole at every read.
    """

    def __init__(self, mmap: bool) -> None:
        self._mmap = mmap

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Save the tensors."""
        import torch

        for sample in samples.ids:
            (folder / sample).mkdir()
            for field, array in samples.arrays(sample).items():
                torch.save(torch.from_numpy(array), folder / sample / f"{field}.pt")

    def open(self, folder: Path, draws: Draws) -> None:
        """Nothing is kept but maps."""
        self._folder, self._draws = folder, draws
        self._maps: dict[str, dict[str, np.ndarray]] = {}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Take the window."""
        arrays = self._maps.get(sample)
        if arrays is None:
            arrays = self._load(sample)
            if self._mmap:
                self._maps[sample] = arrays
        return {field: self._draws.rows(array, sample, epoch) for field, array in arrays.items()}

    def _load(self, sample: str) -> dict[str, np.ndarray]:
        import torch

        files = (self._folder / sample).iterdir()
        return {path.stem: torch.load(path, weights_only=True, mmap=self._mmap).numpy() for path in files}
