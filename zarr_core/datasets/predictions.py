"""Predictions for the points of whole samples, written in the order of their sources in bounded memory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from zarr_core.datasets.batch import Slab
from zarr_core.datasets.memory_map import reserve
from zarr_core.errors import ZarrCoreError
from zarr_core.points.read.slabs import points_in_source
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.formats.vtk_xml import insert_arrays
from zarr_core.sources.recorded import RecordedSample
from zarr_core.storage import Storage
from zarr_core.storage.temporary import add_temp_suffix

if TYPE_CHECKING:
    from zarr_core.datasets.points import ZarrPointDataset

_VTK = (".vtu", ".vtp")


class Predictions:
    """Collects values for all points of one domain of a sample in a ``.npy`` file, in the order of the source.

    The file appears at the end of the block, if every point has a value. In memory are the slab and the source order, 8
    bytes per point; the values are in a map of the file.

    Args:
        dataset: over the store.
        sample: index or id of the sample.
        domain: of the points.
        path: of the file, on a local disk; an existing one is replaced.

    Raises:
        UnknownFieldError: there is no such sample or domain.
        ZarrCoreError: the order of the sample's points is not known, or the store has only some of them (a thin copy).

    Examples:
        >>> dataset = build_dataset({"kind": "point", "root": "store", "split": "train"})
        >>> with Predictions(dataset, "case_0", "surface", "pressure.npy") as predictions:
        ...     for slab in dataset.slabs("case_0", 1_000_000, "surface"):
        ...         predictions.add(slab, slab["surface_pressure"])  # a model's, of the points of the slab
        >>> predictions.sample_id
        'case_0'
    """

    def __init__(self, dataset: ZarrPointDataset, sample: str | int, domain: str, path: str | os.PathLike[str]) -> None:
        self.dataset = dataset
        self.sample_id = sample if isinstance(sample, str) else dataset.sample_ids[sample]
        self.domain = domain
        self.path = Path(path)
        self._order = dataset.source_order(self.sample_id, domain)
        in_source = points_in_source(dataset.reader, self.sample_id, domain)
        if in_source != len(self._order):
            raise ZarrCoreError(
                f"{self.sample_id}: the store has {len(self._order):,} of the {in_source:,} points of {domain!r} (a "
                "thin copy); predict on the store that it was copied from"
            )
        self._temporary = Path(add_temp_suffix(str(self.path)))
        self._values: np.ndarray | None = None
        self._added: list[tuple[int, int]] = []
        self._finished = False  # an existing file is that of other predictions

    def __enter__(self) -> Predictions:
        self._finished = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None:
                self._check_complete()
                os.replace(self._temporary, self.path)
                self._finished = True
        finally:
            self._values, self._added = None, []
            self._temporary.unlink(missing_ok=True)

    def add(self, slab: Slab, values: Tensor | np.ndarray) -> None:
        """Keep the values of the points of a slab. Those of a slab that was added before are replaced.

        Args:
            slab: from ``dataset.slabs``.
            values: (points,) or (points, components) of real numbers, on any device. The first slab decides type and
                components of the file.

        Raises:
            ZarrCoreError: the slab is of another sample or domain, or the values have another shape or type.
        """
        if (slab.sample_id, slab.domain) != (self.sample_id, self.domain):
            raise ZarrCoreError(
                f"the slab is of {slab.sample_id}, {slab.domain}; these are predictions for {self.sample_id}, "
                f"{self.domain}"
            )
        array = _as_array(values)
        points = slab.rows.stop - slab.rows.start
        if self._values is None:
            self._values = self._new_file(array)
        expected = (points, *self._values.shape[1:])
        if array.shape != expected or array.dtype != self._values.dtype:
            raise ZarrCoreError(
                f"{self.sample_id}: predictions for {points:,} points must be {expected} of {self._values.dtype}, not "
                f"{array.shape} of {array.dtype}"
            )
        self._values[self._order[slab.rows]] = array
        self._added.append((slab.rows.start, slab.rows.stop))

    @property
    def values(self) -> np.ndarray:
        """The values in the order of the source, a map of the finished file; changes of it stay in memory.

        Raises:
            ZarrCoreError: the file is not finished.
        """
        if not self._finished:
            raise ZarrCoreError(f"{self.path} is written at the end of the `with` block of its predictions")
        # Copy-on-write: write_sample takes it without a copy, and would copy one that is read-only.
        values: np.ndarray = np.load(self.path, mmap_mode="c", allow_pickle=False)
        return values

    def _new_file(self, first: np.ndarray) -> np.ndarray:
        if first.ndim not in (1, 2) or first.dtype.kind not in "fiu":
            raise ZarrCoreError(
                f"predictions must be (points,) or (points, components) of real numbers, not {first.shape} of "
                f"{first.dtype}"
            )
        self._temporary.parent.mkdir(parents=True, exist_ok=True)
        shape = (len(self._order), *first.shape[1:])
        values = np.lib.format.open_memmap(self._temporary, mode="w+", dtype=first.dtype, shape=shape)
        reserve(self._temporary)
        return values

    def _check_complete(self) -> None:
        """Raise ZarrCoreError if points have no value."""
        end = 0
        for start, stop in [*sorted(self._added), (len(self._order), len(self._order))]:
            if start > end:
                raise ZarrCoreError(
                    f"{self.sample_id}: points {end:,} to {start:,} (in stored order) of {self.domain!r} have no "
                    "predictions; add those of every slab"
                )
            end = max(end, stop)


def write_vtk(
    predictions: Mapping[str, Predictions], path: str | os.PathLike[str], source: str | os.PathLike[str]
) -> None:
    """Write a copy of the file that a sample was converted from, with predictions as further arrays.

    The copy has the mesh and the arrays of the source, byte for byte; new arrays are written in between. It takes the
    memory of a few blocks, whatever the size of the file, and needs no VTK.

    Args:
        predictions: by name of the new array; finished, and all of one domain of one sample.
        path: of the copy, on a local disk; an existing file is replaced.
        source: root of the source of the store, local path or fsspec URL.

    Raises:
        ZarrCoreError: the source has no ``.vtu`` or ``.vtp`` file of the domain, or another one than was converted; the
            file has an array of a name already; or the copy has another suffix.

    Examples:
        >>> write_vtk({"pressure_predicted": predictions}, "run_1.vtu", "/data/source")  # doctest: +SKIP
    """
    first = next(iter(predictions.values()), None)
    if first is None:
        raise ZarrCoreError("predictions is empty; pass {'name of the new array': predictions}")
    for other in predictions.values():
        if (other.sample_id, other.domain) != (first.sample_id, first.domain):
            raise ZarrCoreError(
                f"{other.sample_id}, {other.domain}: a file has the arrays of one domain of one sample, here of "
                f"{first.sample_id}, {first.domain}"
            )
    file, at = _source_file(first, source)
    target = Path(path)
    if target.suffix.lower() != Path(file.info.name).suffix.lower():
        raise ZarrCoreError(
            f"{first.sample_id}: {target} would be a copy of {file.info.name}, which readers know by its suffix: give "
            "it the same one"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(add_temp_suffix(str(target)))
    try:
        with file.local_path() as local:
            if target.exists() and target.samefile(local):
                raise ZarrCoreError(f"{first.sample_id}: {target} is the source itself; write the copy to another path")
            insert_arrays(local, temporary, at, {name: each.values for name, each in predictions.items()})
        os.replace(temporary, target)
    except ValueError as error:
        raise ZarrCoreError(f"{first.sample_id}: {file.info.name} {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _source_file(predictions: Predictions, source: str | os.PathLike[str]) -> tuple[SourceFile, str]:
    """The VTK file with the points of a domain, and whether they are its cells or points."""
    reader, sample_id = predictions.dataset.reader, predictions.sample_id
    position = reader.manifest.domains[predictions.domain].position
    recorded = reader.read_attributes(sample_id).get("source", {})
    storage = Storage(source)
    sample = RecordedSample.find(storage, sample_id, recorded)
    if sample is None or position not in sample.files:
        raise ZarrCoreError(f"{sample_id}: its files are not in {storage.url}; pass the root of the store's source")
    name, choice = sample.files[position]["name"], sample.files[position].get("choice", {})
    if not name.lower().endswith(_VTK) or choice.get("patches"):
        raise ZarrCoreError(
            f"{sample_id}: the points of {predictions.domain!r} come from {name}, which is no .vtu or .vtp file as a "
            f"whole; {predictions.path} has the values in the order of the source"
        )
    try:
        info = sample.file(position)
    except FileNotFoundError:
        raise ZarrCoreError(f"{sample_id}: {name} is no longer in {storage.url}") from None
    if info.size != sample.files[position]["size"]:
        raise ZarrCoreError(
            f"{sample_id}: {name} has {info.size:,} bytes, {sample.files[position]['size']:,} at the conversion: it is "
            "another file, whose points may be others"
        )
    if info.version != sample.files[position].get("version", info.version):
        reason = "was written again since the conversion; if its points changed, the copy has values at wrong places"
        warnings.warn(f"{sample_id}: {name} {reason}", stacklevel=3)
    return SourceFile(storage, sample.folder, info), choice.get("at", "cells")


def _as_array(values: Any) -> np.ndarray:
    """Values of any device as a NumPy array."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    # NumPy has no bfloat16; float32 holds each of its values.
    array: np.ndarray = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    return array
