"""Loads fields of files that contain several arrays. The file that was opened last stays open for the next field."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from zarr_core.sources.arrays import suffix_of
from zarr_core.sources.formats import SUFFIXES, OpenFile, open_file
from zarr_core.sources.formats.contents import Mesh, MissingArrayError
from zarr_core.sources.formats.files import SourceFile, path_of
from zarr_core.sources.sample import SourceSample
from zarr_core.storage import Storage

if TYPE_CHECKING:
    import torch


class FieldLoader(threading.local):
    """Loads the fields of one sample after another. Each thread has one file open."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._key: object = None
        self._opened: OpenFile | None = None

    def load(self, sample: SourceSample, canonical: str) -> torch.Tensor:
        """One field, (points,) or (points, components).

        Raises:
            ValueError: the file is damaged, refused, or does not contain the field.
        """
        import torch

        if canonical not in sample.choices:
            from zarr_core.sources.tensors import load_point_tensor

            info = sample.files[canonical]
            if suffix_of(info.name) in SUFFIXES:
                raise ValueError("its arrays have names: the description needs one, as in `{file: a.npz, array: p}`")
            return load_point_tensor(self._storage, path_of(sample.folder, info.name), info)
        if suffix_of(sample.files[canonical].name) == ".pt":
            raise ValueError("a .pt file has one tensor: the description names it alone, in the sample's folder")
        choice = sample.choices[canonical]
        opened = self._open(sample, canonical)
        values = opened.values(choice)
        if choice.match:
            position = sample.choices[choice.match]
            own = opened.values(position)
            wanted = self._open(sample, choice.match).values(position)
            values = values[_rows_at(own, wanted)]
        try:
            return torch.from_numpy(values)
        except TypeError as error:
            raise ValueError(f"contains {values.dtype}, which is not supported; write it as float64") from error

    def load_mesh(self, sample: SourceSample, canonical: str) -> Mesh:
        """The mesh with this position field; raises ValueError as :meth:`load`."""
        return self._open(sample, canonical).mesh(sample.choices[canonical])

    def _open(self, sample: SourceSample, canonical: str) -> OpenFile:
        info = sample.files[canonical]
        key = sample.folder, info
        if self._opened is None or self._key != key:
            self._opened = None  # frees the memory of the other file first
            # All arrays of the file that are fields are read together.
            choices = sample.choices_of(info)
            try:
                self._opened = open_file(SourceFile(self._storage, sample.folder, info), choices.values())
            except MissingArrayError as error:
                needed = ", ".join(name for name, choice in choices.items() if error.array in choice.arrays)
                raise ValueError(f"{error}; {needed} needs it") from error
            self._key = key
        return self._opened


def _rows_at(own: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Numbers of the rows of ``own``, in the order of the equal rows of ``wanted``; raises ValueError."""
    if own.shape != wanted.shape:
        raise ValueError(f"has {len(own):,} points, the file with the positions {len(wanted):,}")
    if np.array_equal(own, wanted):
        return np.arange(len(own))
    by_own, by_wanted = np.lexsort(own.T), np.lexsort(wanted.T)
    own = own[by_own]
    if not np.array_equal(own, wanted[by_wanted]):
        raise ValueError("its points are not those of the file with the positions")
    if len(own) > 1 and (own[1:] == own[:-1]).all(axis=1).any():
        raise ValueError("several of its points have the same position, so its rows cannot be matched")
    rows = np.empty(len(own), np.int64)
    rows[by_wanted] = by_own
    return rows
