"""Our store, read by our engines and by zarr-python with another pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rivals.samples import Draws, Samples


class Reader:
    """A ``ZarrChunkReader``; it finds out itself which points an epoch draws."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def prepare(self, samples: Samples, folder: Path) -> None:
        """The store is there already."""
        (folder / "store").symlink_to(samples.store)

    def open(self, folder: Path, draws: Draws) -> None:
        """Read the manifest."""
        from zarr_core.points.reader import ZarrChunkReader

        self._reader = ZarrChunkReader(folder / "store", **self._options)
        self._num_points = {"volume": draws.num_points}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """See :class:`benchmarks.rivals.Rival`."""
        return self._reader.read_sample(sample, self._num_points, epoch=epoch)


class Mapped(Reader):
    """With files mapped into memory."""

    def __init__(self) -> None:
        from benchmarks.mapped import MappedObjects

        super().__init__(objects_factory=MappedObjects)


class Zarrs(Reader):
    """zarr-python with the codec pipeline of zarrs, arrays kept open."""

    def __init__(self) -> None:
        super().__init__(engine="zarr")

    def open(self, folder: Path, draws: Draws) -> None:
        """Choose the pipeline."""
        import zarr
        import zarrs  # noqa: F401

        super().open(folder, draws)
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
        self._draws = draws
        self._folder = folder / "store"
        self._arrays: dict[str, dict[str, Any]] = {}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """One slice per field and run."""
        import zarr

        if sample not in self._arrays:
            path = self._reader.manifest.samples[sample].relpath
            group = zarr.open_group(self._folder, path=path, mode="r", zarr_format=3)
            columns = self._reader.manifest.fields
            self._arrays[sample] = {name: group[column.array_name] for name, column in columns.items()}
        return {name: self._draws.rows(array, sample, epoch) for name, array in self._arrays[sample].items()}
