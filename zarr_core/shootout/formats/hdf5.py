"""One HDF5 file per sample, kept open, with our chunk sizes; from a URL it is fetched whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.shootout.formats import Format
from zarr_core.shootout.formats.files import Files
from zarr_core.shootout.formats.samples import Draws, Samples

_CHUNK_POINTS = 16_384


class HDF5(Format):
    """One dataset per field.

    Args:
        compression: None, or a filter that h5py brings along; with it come byte shuffling and checksums, as in ours.
    """

    def __init__(self, compression: str | None) -> None:
        self._compression = compression

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Write the files; without compression the points lie in one piece."""
        import h5py

        for sample in samples.ids:
            with h5py.File(folder / f"{sample}.h5", "w") as file:
                for field, array in samples.arrays(sample).items():
                    options: dict[str, Any] = {}
                    if self._compression:
                        chunks = (min(_CHUNK_POINTS, len(array)), array.shape[1])
                        options = {
                            "chunks": chunks,
                            "compression": self._compression,
                            "shuffle": True,
                            "fletcher32": True,
                        }
                    file.create_dataset(field, data=array, **options)

    def open(self, place: str | Path, draws: Draws) -> None:
        """Nothing: files are opened when they are first read."""
        self._at, self._draws = Files(place), draws
        self._files: dict[str, dict[str, Any]] = {}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """One slice per field and run."""
        import h5py

        found = self._files.get(sample)
        if found is None:
            at = self._at.open(f"{sample}.h5")
            # Without the cache of decoded chunks, which random windows would not find anything in.
            file = h5py.File(at, "r", rdcc_nbytes=0)
            found = {field: file[field] for field in file}
            if isinstance(at, Path):
                self._files[sample] = found
        self.requests = self._at.requests
        return {field: self._draws.rows(dataset, sample, epoch, field) for field, dataset in found.items()}
