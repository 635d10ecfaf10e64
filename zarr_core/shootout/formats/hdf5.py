"""One HDF5 file per sample, kept open; from a URL it is fetched whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.shootout.formats.files import SampleFiles
from zarr_core.shootout.formats.samples import Samples


class HDF5(SampleFiles):
    """One dataset per field, whose points lie in one piece."""

    keeps = True

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        import h5py

        with h5py.File(folder / f"{sample}.h5", "w") as file:
            for field, array in samples.arrays(sample).items():
                file.create_dataset(field, data=array, **self._options(array))

    def _options(self, array: np.ndarray) -> dict[str, Any]:
        """Arguments of the dataset of an array."""
        return {}

    def _arrays(self, sample: str) -> Mapping[str, Any]:
        import h5py

        # Without the cache of decoded chunks, which random windows would not find anything in.
        file = h5py.File(self._files.open(f"{sample}.h5"), "r", rdcc_nbytes=0)
        return dict(file.items())
