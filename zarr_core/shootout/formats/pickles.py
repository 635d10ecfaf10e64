"""Pickled samples, the usual way to cache Python objects."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from zarr_core.shootout.formats import Format
from zarr_core.shootout.formats.files import Files
from zarr_core.shootout.formats.samples import Draws, Samples


class Pickle(Format):
    """One file per sample: a dict of NumPy arrays."""

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Write the files."""
        for sample in samples.ids:
            (folder / f"{sample}.pkl").write_bytes(pickle.dumps(samples.arrays(sample), pickle.HIGHEST_PROTOCOL))

    def open(self, place: str | Path, draws: Draws) -> None:
        """Nothing is kept."""
        self._files, self._draws = Files(place), draws

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Load all, and take the window."""
        found = self._files.open(f"{sample}.pkl")
        # The shootout wrote these very files; pickles of others must not be loaded.
        arrays = pickle.loads(found.read_bytes() if isinstance(found, Path) else found.getbuffer())
        self.requests = self._files.requests
        return {field: self._draws.rows(array, sample, epoch, field) for field, array in arrays.items()}
