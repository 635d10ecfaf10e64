"""Formats with files for each sample, below a folder or a URL, from which they are fetched whole."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.shootout.formats import Draws, Format, Samples
from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import CountingObjects, open_objects


class Files:
    """Files of one format, for libraries that open paths and file objects.

    Args:
        place: a folder, or a URL.

    Attributes:
        remote: whether the place is a URL.
        requests: files fetched from the URL so far.
    """

    def __init__(self, place: str | Path) -> None:
        self._storage = Storage(str(place))
        self.remote = not self._storage.is_local
        self.requests = 0

    def open(self, name: str) -> Path | io.BytesIO:
        """The path of a local file; else its content, fetched whole."""
        if not self.remote:
            return Path(self._storage.location, name)
        self.requests += 1
        return io.BytesIO(self._storage.read(name))

    def names(self, suffix: str) -> list[str]:
        """Paths of the files with a suffix, relative and sorted."""
        return [name for name in sorted(self._storage.list()) if name.endswith(suffix)]


def counting(place: str | Path) -> CountingObjects | None:
    """The objects below a URL, which count their requests; None for local files, which are not counted."""
    return CountingObjects(open_objects(str(place))) if "://" in str(place) else None


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


class HDF5(SampleFiles):
    """A file per sample, kept open, with a dataset per field whose points lie in one piece."""

    keeps = True

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        import h5py

        with h5py.File(folder / f"{sample}.h5", "w") as file:
            for field, array in samples.arrays(sample).items():
                file.create_dataset(field, data=array)

    def _arrays(self, sample: str) -> Mapping[str, Any]:
        import h5py

        # Without the cache of decoded chunks, which random windows would not find anything in.
        file = h5py.File(self._files.open(f"{sample}.h5"), "r", rdcc_nbytes=0)
        return dict(file.items())


class Window(SampleFiles):
    """``.npy`` files mapped into memory, in random order, so that a draw is a slice; no checksum, no generations."""

    keeps = True

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        (folder / sample).mkdir()
        for field in samples.fields:
            os.link(samples.folder / sample / f"{field}.npy", folder / sample / f"{field}.npy")

    def _arrays(self, sample: str) -> Mapping[str, np.ndarray]:
        arrays = {}
        for field in self._draws.domains:
            file = self._files.open(f"{sample}/{field}.npy")
            arrays[field] = np.load(file, mmap_mode="r" if isinstance(file, Path) else None)
        return arrays


class Pt(SampleFiles):
    """``.pt`` files with one tensor each, as simulations are often published.

    Args:
        mmap: map the files and keep them open, instead of loading each whole at every read.
    """

    def __init__(self, mmap: bool) -> None:
        self.keeps, self.remote = mmap, not mmap

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        import torch

        (folder / sample).mkdir()
        for field, array in samples.arrays(sample).items():
            torch.save(torch.from_numpy(array), folder / sample / f"{field}.pt")

    def _arrays(self, sample: str) -> Mapping[str, np.ndarray]:
        import torch

        arrays = {}
        for field in self._draws.domains:
            file = self._files.open(f"{sample}/{field}.pt")
            arrays[field] = torch.load(file, weights_only=True, mmap=self.keeps).numpy()
        return arrays


class _PlainArrays(pickle.Unpickler):
    """Loads nothing but NumPy arrays in plain containers: who can write to a tier must not run code here."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError for anything that no array needs."""
        if module.partition(".")[0] != "numpy" or name not in ("_frombuffer", "_reconstruct", "dtype", "ndarray"):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of an array")
        return super().find_class(module, name)


class Pickle(SampleFiles):
    """A file per sample, with a dict of NumPy arrays: the usual way to cache Python objects."""

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        (folder / f"{sample}.pkl").write_bytes(pickle.dumps(samples.arrays(sample), pickle.HIGHEST_PROTOCOL))

    def _arrays(self, sample: str) -> Mapping[str, Any]:
        found = self._files.open(f"{sample}.pkl")
        file = io.BytesIO(found.read_bytes()) if isinstance(found, Path) else found
        arrays: dict[str, Any] = _PlainArrays(file).load()
        return arrays
