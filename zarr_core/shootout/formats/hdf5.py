"""One HDF5 file per sample, kept open, with our chunk sizes; from a URL it is fetched whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zarr_core.shootout.formats.files import SampleFiles
from zarr_core.shootout.formats.samples import Samples

_CHUNK_POINTS = 16_384


class HDF5(SampleFiles):
    """One dataset per field; without compression the points lie in one piece.

    Args:
        compression: None, or a filter that h5py brings along; with it come byte shuffling and checksums, as in ours.
    """

    keeps = True

    def __init__(self, compression: str | None) -> None:
        self._compression = compression

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        import h5py

        with h5py.File(folder / f"{sample}.h5", "w") as file:
            for field, array in samples.arrays(sample).items():
                options: dict[str, Any] = {}
                if self._compression:
                    chunks = (min(_CHUNK_POINTS, len(array)), array.shape[1])
                    options = {"chunks": chunks, "compression": self._compression, "shuffle": True, "fletcher32": True}
                file.create_dataset(field, data=array, **options)

    def _arrays(self, sample: str) -> Mapping[str, Any]:
        import h5py

        # Without the cache of decoded chunks, which random windows would not find anything in.
        file = h5py.File(self._files.open(f"{sample}.h5"), "r", rdcc_nbytes=0)
        return dict(file.items())
