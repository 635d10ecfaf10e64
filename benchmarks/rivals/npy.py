"""``.npy`` files mapped into memory, kept open."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from benchmarks.rivals.samples import Draws, Samples


class Window:
    """Points in random order on disk, so that a draw is a slice; no checksum, no generations."""

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Link the very files."""
        for sample in samples.ids:
            (folder / sample).mkdir()
            for field in samples.fields:
                os.link(samples.folder / sample / f"{field}.npy", folder / sample / f"{field}.npy")

    def open(self, folder: Path, draws: Draws) -> None:
        """Nothing: files are mapped when they are first read."""
        self._folder, self._draws = folder, draws
        self._maps: dict[str, dict[str, np.ndarray]] = {}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Copy the slices."""
        return {
            field: self._draws.rows(array, sample, epoch)
            for field, array in self._arrays(sample).items()
            if field != "order"
        }

    def _arrays(self, sample: str) -> dict[str, np.ndarray]:
        found = self._maps.get(sample)
        if found is None:
            files = (self._folder / sample).iterdir()
            found = self._maps[sample] = {path.stem: np.load(path, mmap_mode="r") for path in files}
        return found


class Rows(Window):
    """Points as a simulation leaves them, so that a draw is rows from everywhere."""

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Put the points into another order, and note which row is where."""
        for number, sample in enumerate(samples.ids):
            (folder / sample).mkdir()
            arrays = samples.arrays(sample)
            order = np.random.default_rng(number).permutation(len(arrays[samples.fields[0]]))
            np.save(folder / sample / "order.npy", order)
            for field, array in arrays.items():
                scattered = np.empty_like(array)
                scattered[order] = array
                np.save(folder / sample / f"{field}.npy", scattered)

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Gather the rows."""
        arrays = self._arrays(sample)
        rows = self._draws.rows(arrays["order"], sample, epoch)
        return {field: array[rows] for field, array in arrays.items() if field != "order"}
