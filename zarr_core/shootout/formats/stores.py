"""Our store, read by our engines and by zarr-python with another pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.shootout.formats import Arrays, Format
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
        first = samples.arrays(samples.ids[0])
        dtypes = {name: str(array.dtype) for name, array in first.items() if not kind.fields[name].field.is_position}
        report = convert(kind, folder / "store", root=samples.folder, field_dtypes=dtypes, **self._settings)
        if not report.ok:
            failed = next(result for result in report.results if result.status != "converted")
            raise ValueError(f"{failed.sample_id} cannot be converted: {failed.reason}")

    def open(self, place: str | Path, draws: Draws) -> None:
        """Read the manifest."""
        from zarr_core.points.read.reader import ZarrChunkReader

        options = dict(self._options)
        factory, self._counts = counting(place)
        if options.get("engine", "direct") == "direct":
            options["objects_factory"] = factory
        self._store = f"{place}/store"
        self._reader = ZarrChunkReader(self._store, **options)
        self._num_points = dict(draws.num_points)

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """See :class:`Format`."""
        return self._reader.read_sample(sample, self._num_points, epoch=epoch)

    def read_batch(self, items: Sequence[tuple[str, int]]) -> Arrays:
        """All fields of all items in flight together, decoded into the arrays of the batch."""
        reader = self._reader
        plans = [reader.field_reads(sample, self._num_points, epoch=epoch) for sample, epoch in items]
        batch: Arrays = {}
        out: dict[tuple[int, str], np.ndarray] = {}
        for name in plans[0]:
            reads = [plan[name] for plan in plans]
            arrays: np.ndarray | list[np.ndarray]
            if len({(read.shape, str(read.dtype)) for read in reads}) == 1:
                arrays = np.empty((len(reads), *reads[0].shape), reads[0].dtype)
            else:
                arrays = [np.empty(read.shape, read.dtype) for read in reads]
            batch[name] = arrays
            out |= {(number, name): array for number, array in enumerate(arrays)}
        keys = [(number, name) for number, plan in enumerate(plans) for name in plan]
        reader.execute([plans[number][name] for number, name in keys], [out[key] for key in keys])
        if self._counts:
            self.requests = sum(count.requests for count in self._counts)
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
        return {name: self._draws.rows(array, sample, epoch, name) for name, array in self._arrays[sample].items()}

    def read_batch(self, items: Sequence[tuple[str, int]]) -> Arrays:
        """One item after another."""
        return Format.read_batch(self, items)
