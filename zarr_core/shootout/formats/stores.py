"""Our store, read by this library, by zarr-python and by TensorStore."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from zarr_core.points.read.selection import SampleDraws
from zarr_core.points.store.manifest import ArrayColumn
from zarr_core.shootout.formats import Arrays, Draws, Format, Runs, Samples, stacked
from zarr_core.shootout.formats.files import counting


class Reader(Format):
    """A ``ZarrChunkReader``; it finds out itself which points an epoch draws.

    Args:
        settings: of the conversion that :meth:`prepare` makes.
        error_bound: of all fields but positions.
    """

    def __init__(self, settings: Mapping[str, Any] = MappingProxyType({}), error_bound: str = "") -> None:
        self._settings, self._error_bound = settings, error_bound

    def prepare(self, samples: Samples, folder: Path) -> None:
        from zarr_core.points.convert.conversion import convert
        from zarr_core.sources.description import SourceDescription

        files: dict[str, Any] = {field: f"{field}.npy" for field in samples.fields}
        kind = SourceDescription(name="shootout", samples="*", files=files)
        values = {}
        for name, array in samples.arrays(samples.ids[0]).items():
            if not kind.fields[name].field.is_position:
                values[name] = str(array.dtype)
        if self._error_bound:
            by_field: dict[str, Any] = {"max_errors": dict.fromkeys(values, self._error_bound)}
        else:
            by_field = {"field_dtypes": values}
        report = convert(kind, folder / "store", root=samples.folder, **by_field, **self._settings)
        if not report.ok:
            failed = [*report.having("quarantined"), *report.having("failed")][0]
            raise ValueError(f"{failed.sample_id} cannot be converted: {failed.reason}")

    def open(self, place: str | Path, draws: Draws) -> None:
        from zarr_core.points.read.reader import ZarrChunkReader

        self._store = f"{place}/store"
        self._objects = objects = counting(self._store)
        factory = None if objects is None else lambda _: objects
        self._reader = ZarrChunkReader(self._store, engine="direct", objects_factory=factory)
        self._selection = self._reader.selection(draws.num_points)

    def read_items(self, items: Sequence[tuple[str, int]]) -> list[dict[str, np.ndarray]]:
        """All fields of all items in flight together."""
        return self._reader.read_items(self._drawn(items))

    def read_batch(self, items: Sequence[tuple[str, int]]) -> Arrays:
        draws = self._drawn(items)
        equal = self._reader.read_batch(draws)
        batch: Arrays = stacked(self._reader.read_items(draws)) if equal is None else dict(equal)
        if self._objects is not None:
            self.requests = self._objects.requests
        return batch

    def _drawn(self, items: Sequence[tuple[str, int]]) -> list[SampleDraws]:
        return [self._reader.draws(self._selection, sample, epoch=epoch) for sample, epoch in items]


class _OpenArrays(Reader):
    """The arrays of the store in another library, kept open."""

    def open(self, place: str | Path, draws: Draws) -> None:
        super().open(place, draws)
        self._draws = draws
        self._arrays: dict[str, dict[str, Any]] = {}

    read_batch = Format.read_batch

    def read_items(self, items: Sequence[tuple[str, int]]) -> list[dict[str, np.ndarray]]:
        """The window of a draw lies in a block of chunks, which is read once."""
        blocks = []
        for sample, epoch in items:
            for field, array in self._of(sample).items():
                first, last = _block(self._draws.of(sample, epoch, field))
                blocks.append((array, slice(first, last)))
        found = iter(self._fetch(blocks))
        read = []
        for sample, epoch in items:
            item: dict[str, np.ndarray] = {}
            for field in self._of(sample):
                runs = self._draws.of(sample, epoch, field)
                start, _ = _block(runs)
                block = next(found)
                item[field] = np.concatenate([block[first - start : last - start] for first, last in runs])
            read.append(item)
        return read

    def _of(self, sample: str) -> dict[str, Any]:
        """The arrays of a sample, by field."""
        arrays = self._arrays.get(sample)
        if arrays is None:
            path = self._reader.manifest.samples[sample].relpath
            arrays = self._arrays[sample] = self._open_arrays(path, self._reader.manifest.fields)
        return arrays

    def _open_arrays(self, path: str, fields: Mapping[str, ArrayColumn]) -> dict[str, Any]:
        """Arrays of a group by field."""
        raise NotImplementedError

    def _fetch(self, blocks: Sequence[tuple[Any, slice]]) -> Sequence[np.ndarray]:
        """Rows of arrays."""
        raise NotImplementedError


def _block(runs: Runs) -> tuple[int, int]:
    """The rows from the first to the last that are drawn."""
    firsts, lasts = zip(*runs, strict=True)
    return min(firsts), max(lasts)


class ZarrPython(_OpenArrays):
    """zarr-python. On a URL, its event loop fetches all fields of a batch together.

    Local files are read one after another: decoding is Python on the one thread of its loop, which tasks make slower.
    """

    def _open_arrays(self, path: str, fields: Mapping[str, ArrayColumn]) -> dict[str, Any]:
        import zarr

        from zarr_core.storage.zarr_stores import group_place, make_store

        root, path = group_place(self._store, path)
        group = zarr.open_group(make_store(root), path=path, mode="r", zarr_format=3)
        return {field: group[column.array_name] for field, column in fields.items()}

    def _fetch(self, blocks: Sequence[tuple[Any, slice]]) -> Sequence[np.ndarray]:
        from zarr.core.sync import sync

        if self._objects is not None:
            return sync(_together(blocks))
        return [array[rows] for array, rows in blocks]


async def _together(blocks: Sequence[tuple[Any, slice]]) -> list[Any]:
    return await asyncio.gather(*[array.async_array.getitem(rows) for array, rows in blocks])


class Zarrs(ZarrPython):
    """zarr-python with the codec pipeline of zarrs."""

    remote = False

    def _open_arrays(self, path: str, fields: Mapping[str, ArrayColumn]) -> dict[str, Any]:
        import zarr
        import zarrs  # noqa: F401

        # Arrays keep the pipeline that they are opened with; other formats in this process use the usual one.
        with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
            return super()._open_arrays(path, fields)


class TensorStore(_OpenArrays):
    """TensorStore, all fields of a batch in flight together."""

    def _open_arrays(self, path: str, fields: Mapping[str, ArrayColumn]) -> dict[str, Any]:
        import tensorstore

        from zarr_core.points.read.engines.tensorstore import below, kvstore
        from zarr_core.storage import Storage

        place = kvstore(self._store, Storage(self._store))
        opening = {}
        for field, column in fields.items():
            array = below(place, f"{path}/{column.array_name}")
            spec = {"driver": "zarr3", "kvstore": array, "recheck_cached_metadata": "open"}
            opening[field] = tensorstore.open(spec, read=True, open=True)
        return {field: future.result() for field, future in opening.items()}

    def _fetch(self, blocks: Sequence[tuple[Any, slice]]) -> Sequence[np.ndarray]:
        futures = [array[rows].read() for array, rows in blocks]
        return [future.result() for future in futures]
