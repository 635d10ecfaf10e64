"""``.npy`` files mapped into memory, kept open; from a URL they are fetched whole."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from zarr_core.shootout.formats.files import SampleFiles
from zarr_core.shootout.formats.samples import Samples


class Window(SampleFiles):
    """Points in random order on disk, so that a draw is a slice; no checksum, no generations."""

    keeps = True

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        (folder / sample).mkdir()
        for field in samples.fields:
            os.link(samples.folder / sample / f"{field}.npy", folder / sample / f"{field}.npy")

    def _arrays(self, sample: str) -> Mapping[str, np.ndarray]:
        return {field: self._array(sample, field) for field in self._draws.domains}

    def _array(self, sample: str, name: str) -> np.ndarray:
        file = self._files.open(f"{sample}/{name}.npy")
        array: np.ndarray = np.load(file, mmap_mode="r" if isinstance(file, Path) else None)
        return array
