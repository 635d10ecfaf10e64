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
        arrays = {}
        for field in self._draws.domains:
            file = self._files.open(f"{sample}/{field}.npy")
            arrays[field] = np.load(file, mmap_mode="r" if isinstance(file, Path) else None)
        return arrays
