"""HDF5: datasets of numbers, from a stream. Nothing outside the file is read, and no plug-in is loaded."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import IO, Any

import h5py
import numpy as np

from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats.arrays import ArrayFile, damaged
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.left_out import note
from zarr_core.sources.limits import MAX_HDF5_OBJECTS, check_expansion

# Filters that are part of HDF5 (deflate, shuffle, fletcher32, szip, nbit, scaleoffset) or of h5py (lzf). HDF5 looks for
# any other filter in a folder of plug-ins and runs the code that it finds there.
_FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000})
# Attributes of netCDF files, and of programs that follow them: the number that stands for a missing value.
_MISSING = ("_FillValue", "missing_value")
# Those of numbers that stand for others, and what they are without effect.
_PACKED = {"scale_factor": 1, "add_offset": 0}


class Hdf5File(ArrayFile):
    """An HDF5 file; the name of an array is its path."""

    def _read(self, opened: IO[bytes], name: str) -> np.ndarray:
        with open_hdf5(opened) as file:
            dataset = _find(file, name)
            check_dataset(dataset, self._file.info.size)
            _check_written(dataset)
            values = np.asarray(dataset[()])
            _note_packing(name, dataset.attrs)
            _check_markers(name, values, dataset)
            return values

    def _shapes(self, opened: IO[bytes]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        with open_hdf5(opened) as file:
            # A dataset without values has no shape.
            return {name: (dataset.shape or (), dataset.dtype) for name, dataset in datasets(file)}


def _note_packing(name: str, attributes: Mapping[str, Any]) -> None:
    """Note the attributes of a dataset by which its numbers stand for others, if they have an effect."""
    told: list[str] = []
    has_effect = False
    for attribute, without_effect in _PACKED.items():
        if attribute in attributes:
            value = np.asarray(attributes[attribute])
            told.append(f"{attribute} {value.ravel()[0]}")
            has_effect |= bool((value != without_effect).any())
    if attributes.get("_Unsigned") in ("true", b"true"):
        told.append("_Unsigned true")
        has_effect = True
    if has_effect:
        note("attributes that tell how numbers were packed are not applied", f"{name}: {' and '.join(told)}")


def _check_markers(name: str, values: np.ndarray, dataset: Any) -> None:
    """Raise ValueError if values of a dataset equal the number that stands for a missing value."""
    markers = [np.asarray(dataset.attrs[attribute]) for attribute in _MISSING if attribute in dataset.attrs]
    if values.dtype.kind in "fiu" and dataset.fillvalue:  # netCDF's default has no attribute
        markers.append(np.asarray(dataset.fillvalue))
    for marker in markers:
        if marker.dtype.kind not in "fiu":
            continue
        if values.dtype.kind == "f":  # 1e20 of float32 is not that of float64
            marker = marker.astype(values.dtype)
        missing = np.count_nonzero(np.isin(values, marker))
        if missing:
            raise ValueError(f"{name}: {missing:,} values are missing: they equal {marker.ravel()[0]}, its marker")


def open_file(file: SourceFile, choices: Collection[ArrayChoice]) -> Hdf5File:
    """Open the file; its arrays are read one at a time."""
    return Hdf5File(file)


def check_dataset(dataset: Any, size: int) -> None:
    """Raise ValueError for a dataset that would run code, read another file, or fill the memory."""
    properties = dataset.id.get_create_plist()
    filters = {properties.get_filter(i)[0] for i in range(properties.get_nfilters())}
    if filters - _FILTERS:
        reason = f"needs the HDF5 filter {min(filters - _FILTERS)} of a plug-in, and loading it could run code"
        raise ValueError(f"rejected: {dataset.name} {reason}; store it with gzip")
    if properties.get_external_count() or dataset.is_virtual:
        raise ValueError(f"rejected: {dataset.name} takes its values from another file")
    check_expansion(dataset.size * dataset.dtype.itemsize if dataset.size else 0, size)


def _check_written(dataset: Any) -> None:
    """Raise ValueError if a program has not written all values, as one that was interrupted: HDF5 reads fill values."""
    written, expected = int(dataset.id.get_storage_size() > 0), 1
    if dataset.chunks:
        written = dataset.id.get_num_chunks()
        expected = math.prod(-(-length // chunk) for length, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    if dataset.size and written < expected:
        raise ValueError(f"{dataset.name}: {expected - written:,} of its {expected:,} chunks were never written")


def open_hdf5(opened: IO[bytes]) -> Any:
    """The file as ``h5py.File``; raises ValueError."""
    with damaged("truncated or not an HDF5 file", ValueError):
        return h5py.File(opened, "r")


def _find(file: Any, path: str) -> Any:
    group = file
    for part in filter(None, path.split("/")):
        found = _member(group, part) if isinstance(group, h5py.Group) else None
        if found is None:
            names = ", ".join(name for name, _ in datasets(file)) or "none"
            raise ValueError(f"has no dataset {path!r}; it has {names:.500}")
        group = found
    if not isinstance(group, h5py.Dataset):
        raise ValueError(f"{path!r} is a group, expected a dataset")
    return group


def _member(group: Any, name: str) -> Any:
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        raise ValueError(f"rejected: {group.name.rstrip('/')}/{name} is a link to another file")
    return None if link is None else group.get(name)


def datasets(file: Any) -> list[tuple[str, Any]]:
    """Path and dataset of every dataset of the file; raises ValueError for a link to another file."""
    found = []
    pending = [("", file)]
    seen = set()
    while pending:
        path, group = pending.pop()
        for name in group:
            item = _member(group, name)
            if isinstance(item, h5py.Dataset):
                found.append((f"{path}/{name}".lstrip("/"), item))
            elif isinstance(item, h5py.Group) and item.id.__hash__() not in seen:
                seen.add(item.id.__hash__())  # soft and hard links can form circles
                pending.append((f"{path}/{name}", item))
            if len(found) + len(seen) > MAX_HDF5_OBJECTS:
                raise ValueError(f"rejected: contains more than {MAX_HDF5_OBJECTS:,} objects")
    return sorted(found, key=lambda each: each[0])
