"""Loads fields of files that contain several arrays. The file that was opened last stays open for the next field."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats import OpenFile, open_file
from zarr_core.sources.formats.contents import Mesh, MissingArrayError
from zarr_core.sources.formats.files import SourceFile, path_of
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SampleFiles:
    """The files of one sample.

    Attributes:
        storage: the source.
        folder: of the sample, below the root.
        files: of all its fields, by canonical name.
        choices: arrays of the fields whose files contain several; those of one file are read together.
    """

    storage: Storage
    folder: str
    files: Mapping[str, FileInfo]
    choices: Mapping[str, ArrayChoice]

    def in_file_of(self, canonical: str) -> dict[str, ArrayChoice]:
        """The fields that lie in the file of this one."""
        info = self.files[canonical]
        return {name: choice for name, choice in self.choices.items() if self.files.get(name) == info}


class FieldLoader(threading.local):
    """Loads the fields of one sample after another. Each thread has one file open."""

    def __init__(self) -> None:
        self._key: object = None
        self._opened: OpenFile | None = None

    def load(self, sample: SampleFiles, canonical: str) -> torch.Tensor:
        """One field, (points,) or (points, components).

        Raises:
            ValueError: the file is damaged, refused, or does not contain the field.
        """
        import torch

        if canonical not in sample.choices:
            from zarr_core.sources.tensors import load_point_tensor

            info = sample.files[canonical]
            return load_point_tensor(sample.storage, path_of(sample.folder, info.name), info)
        choice = sample.choices[canonical]
        opened = self._open(sample, canonical)
        values = opened.values(choice)
        if choice.match:
            position = sample.choices[choice.match]
            own = opened.values(position)
            wanted = self._open(sample, choice.match).values(position)
            values = values[_rows_at(own, wanted)]
        return torch.from_numpy(values)

    def load_mesh(self, sample: SampleFiles, canonical: str) -> Mesh:
        """The mesh with this position field; raises ValueError as :meth:`load`."""
        return self._open(sample, canonical).mesh(sample.choices[canonical])

    def _open(self, sample: SampleFiles, canonical: str) -> OpenFile:
        info = sample.files[canonical]
        key = sample.storage.root, sample.folder, info
        if self._opened is None or self._key != key:
            self._opened = None  # frees the memory of the other file first
            choices = sample.in_file_of(canonical)
            try:
                self._opened = open_file(SourceFile(sample.storage, sample.folder, info), choices.values())
            except MissingArrayError as error:  # all arrays of the file are looked up when it is opened
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
