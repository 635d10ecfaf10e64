"""Pickled samples, the usual way to cache Python objects."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.shootout.formats import Format
from zarr_core.shootout.formats.files import Files
from zarr_core.shootout.formats.samples import Draws, Samples


class _Arrays(pickle.Unpickler):
    """Loads nothing but NumPy arrays in plain containers: who can write to a tier must not run code here."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError for anything that no array needs."""
        if module.partition(".")[0] != "numpy" or name not in ("_frombuffer", "_reconstruct", "dtype", "ndarray"):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of an array")
        return super().find_class(module, name)


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
        arrays = _Arrays(io.BytesIO(found.read_bytes()) if isinstance(found, Path) else found).load()
        self.requests = self._files.requests
        return {field: self._draws.rows(array, sample, epoch, field) for field, array in arrays.items()}
