"""Formats with files for each sample, and files of a folder or below a URL."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core.shootout.formats import Format
from zarr_core.shootout.formats.samples import Draws, Samples

if TYPE_CHECKING:
    from zarr_core.storage import Storage
    from zarr_core.storage.byte_ranges import CountingObjects


class Files:
    """Files of one format, for libraries that open paths and file objects.

    Args:
        place: a folder, or a URL.

    Attributes:
        remote: whether the place is a URL.
        requests: files fetched from the URL so far.
    """

    def __init__(self, place: str | Path) -> None:
        self.remote = "://" in str(place)
        self._place = str(place)
        self.requests = 0

    @cached_property
    def _storage(self) -> Storage:
        from zarr_core.storage import Storage

        return Storage(self._place)

    def open(self, name: str) -> Path | io.BytesIO:
        """The path of a local file; else its content, fetched whole."""
        if not self.remote:
            return Path(self._place, name)
        self.requests += 1
        return io.BytesIO(self._storage.read(name))

    def names(self, suffix: str) -> list[str]:
        """Paths of the files with a suffix, relative and sorted."""
        return [name for name in sorted(self._storage.list()) if name.endswith(suffix)]


class SampleFiles(Format):
    """A format that opens the fields of a sample as arrays, or as what is sliced like them.

    Attributes:
        keeps: whether local arrays stay open.
    """

    keeps = False

    def prepare(self, samples: Samples, folder: Path) -> None:
        for sample in samples.ids:
            self._write(samples, sample, folder)

    def open(self, place: str | Path, draws: Draws) -> None:
        """Nothing: files are opened when they are first read."""
        self._files, self._draws = Files(place), draws
        self._kept: dict[str, Mapping[str, Any]] = {}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        return self._draws.cut(self._opened(sample), sample, epoch)

    def _opened(self, sample: str) -> Mapping[str, Any]:
        arrays = self._kept.get(sample)
        if arrays is None:
            arrays = self._arrays(sample)
            self.requests = self._files.requests
            if self.keeps and not self._files.remote:
                self._kept[sample] = arrays
        return arrays

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        raise NotImplementedError

    def _arrays(self, sample: str) -> Mapping[str, Any]:
        """The fields of a sample, (points, dim)."""
        raise NotImplementedError


def counting(place: str | Path) -> CountingObjects | None:
    """The objects below a URL, which count their requests; None for local files, which are not counted."""
    from zarr_core.storage.byte_ranges import CountingObjects, open_objects

    return CountingObjects(open_objects(str(place))) if "://" in str(place) else None
