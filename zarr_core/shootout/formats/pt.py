"""``.pt`` files, as simulations are often published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from zarr_core.shootout.formats.files import SampleFiles
from zarr_core.shootout.formats.samples import Samples


class Pt(SampleFiles):
    """One tensor per file.

    Args:
        mmap: map the files and keep them open, instead of loading each whole at every read.
    """

    def __init__(self, mmap: bool) -> None:
        self.keeps, self.remote = mmap, not mmap

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        import torch

        (folder / sample).mkdir()
        for field, array in samples.arrays(sample).items():
            torch.save(torch.from_numpy(array), folder / sample / f"{field}.pt")

    def _arrays(self, sample: str) -> Mapping[str, np.ndarray]:
        import torch

        arrays = {}
        for field in self._draws.domains:
            file = self._files.open(f"{sample}/{field}.pt")
            arrays[field] = torch.load(file, weights_only=True, mmap=self.keeps).numpy()
        return arrays
