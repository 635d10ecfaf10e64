"""``.npy`` files mapped into memory, kept open; from a URL they are fetched whole."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from zarr_core.shootout.formats import Format
from zarr_core.shootout.formats.files import Files
from zarr_core.shootout.formats.samples import Draws, Samples


class Window(Format):
    """Points in random order on disk, so that a draw is a slice; no checksum, no generations."""

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Link the very files."""
        for sample in samples.ids:
            (folder / sample).mkdir()
            for field in samples.fields:
                os.link(samples.folder / sample / f"{field}.npy", folder / sample / f"{field}.npy")

    def open(self, place: str | Path, draws: Draws) -> None:
        """Nothing: files are mapped when they are first read."""
        self._files, self._draws = Files(place), draws
        self._maps: dict[str, dict[str, np.ndarray]] = {}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Copy the slices."""
        arrays = self._arrays(sample)
        self.requests = self._files.requests
        return {name: self._draws.rows(array, sample, epoch, name) for name, array in arrays.items() if name != "order"}

    def _arrays(self, sample: str) -> dict[str, np.ndarray]:
        found = self._maps.get(sample)
        if found is None:
            found = {name: self._array(f"{sample}/{name}.npy") for name in self._names}
            if all(isinstance(array, np.memmap) for array in found.values()):
                self._maps[sample] = found
        return found

    @property
    def _names(self) -> list[str]:
        return list(self._draws.domains)

    def _array(self, name: str) -> np.ndarray:
        file = self._files.open(name)
        array: np.ndarray = np.load(file, mmap_mode="r" if isinstance(file, Path) else None)
        return array


class Rows(Window):
    """Points as a simulation leaves them, so that a draw is rows from everywhere."""

    remote = False

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
        rows = self._draws.rows(arrays["order"], sample, epoch, next(iter(self._draws.domains)))
        return {field: array[rows] for field, array in arrays.items() if field != "order"}

    @property
    def _names(self) -> list[str]:
        return [*self._draws.domains, "order"]
