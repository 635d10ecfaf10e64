"""Our store, read by our engines and by zarr-python with another pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.shootout.formats import Arrays, Format, stacked
from zarr_core.shootout.formats.files import counting
from zarr_core.shootout.formats.samples import Draws, Samples


class Reader(Format):
    """A ``ZarrChunkReader``; it finds out itself which points an epoch draws.

    Args:
        settings: of the conversion that :meth:`prepare` makes; None links the store of the samples.
        options: of the reader.
    """

    def __init__(self, settings: dict[str, Any] | None = None, **options: Any) -> None:
        self._settings, self._options = settings, options

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Convert, or link the store that is there."""
        if self._settings is None:
            assert samples.store is not None
            (folder / "store").symlink_to(samples.store)
            return
        from zarr_core.points.convert.conversion import convert
        from zarr_core.sources.description import SourceDescription

        files: dict[str, Any] = {field: f"{field}.npy" for field in samples.fields}
        kind = SourceDescription(name="shootout", samples="*", files=files)
        dtypes = {}
        for name, array in samples.arrays(samples.ids[0]).items():
            if not kind.fields[name].field.is_position:
                dtypes[name] = str(array.dtype)
        report = convert(kind, folder / "store", root=samples.folder, field_dtypes=dtypes, **self._settings)
        if not report.ok:
            failed = next(result for result in report.results if result.status != "converted")
            raise ValueError(f"{failed.sample_id} cannot be converted: {failed.reason}")

    def open(self, place: str | Path, draws: Draws) -> None:
        """Read the manifest."""
        from zarr_core.points.read.reader import ZarrChunkReader

        options = dict(self._options)
        self._store = f"{place}/store"
        self._objects = counting(self._store)
        if self._objects is not None and options.get("engine", "direct") == "direct":
            options["objects_factory"] = lambda _: self._objects
        self._reader = ZarrChunkReader(self._store, **options)
        self._selection = self._reader.selection(draws.num_points)

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """See :class:`Format`."""
        (item,) = self._reader.read_items([self._reader.draws(self._selection, sample, epoch=epoch)])
        return item

    def read_batch(self, items: Sequence[tuple[str, int]]) -> Arrays:
        """All fields of all items in flight together, decoded into the arrays of the batch."""
        reader = self._reader
        draws = [reader.draws(self._selection, sample, epoch=epoch) for sample, epoch in items]
        equal = reader.read_batch(draws)
        batch: Arrays = stacked(reader.read_items(draws)) if equal is None else dict(equal)
        if self._objects is not None:
            self.requests = self._objects.requests
        return batch


class Zarrs(Reader):
    """zarr-python with the codec pipeline of zarrs, arrays kept open."""

    remote = False

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        super().__init__(settings, engine="zarr")

    def open(self, place: str | Path, draws: Draws) -> None:
        """Read the manifest."""
        import zarrs  # noqa: F401

        super().open(place, draws)
        self._draws = draws
        self._arrays: dict[str, dict[str, Any]] = {}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """One slice per field and run."""
        import zarr

        if sample not in self._arrays:
            path = self._reader.manifest.samples[sample].relpath
            columns = self._reader.manifest.fields
            # Arrays keep the pipeline that they are opened with; other formats in this process use the usual one.
            with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
                group = zarr.open_group(self._store, path=path, mode="r", zarr_format=3)
                self._arrays[sample] = {name: group[column.array_name] for name, column in columns.items()}
        return self._draws.cut(self._arrays[sample], sample, epoch)

    def read_batch(self, items: Sequence[tuple[str, int]]) -> Arrays:
        """One item after another."""
        return Format.read_batch(self, items)
