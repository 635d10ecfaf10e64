"""Ways to read a draw from local disk, each with the same three methods: this library, and common alternatives.

A rival is prepared with samples whose points are already in random order, as our stores hold them, so that each may
read a draw as the window that it is. One that cannot read a part of a sample reads all of it. Modules of rivals import
their packages and zarr_core inside functions, so that a package may live in an environment of its own.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.rivals.samples import Draws, Samples

UNCOMPRESSED, COMPRESSED = "none", "blosc-lz4"


class Rival(Protocol):
    """One way to keep samples and to read draws of them."""

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Write the samples into an empty folder."""
        ...

    def open(self, folder: Path, draws: Draws) -> None:
        """Get ready to read, in this process."""
        ...

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """The drawn points of each field, (points, dim), in memory."""
        ...


class Entry(NamedTuple):
    """A rival that there is.

    Attributes:
        name: in tables.
        factory: "module:class" below this package.
        arguments: of the class.
        package: what must be installed for it.
        codecs: of the stores that it can read; only ours and HDF5 keep chunks compressed on a local disk.
    """

    name: str
    factory: str
    arguments: dict[str, Any]
    package: str | None = None
    codecs: tuple[str, ...] = (UNCOMPRESSED,)

    def make(self) -> Rival:
        """The rival."""
        module, _, name = self.factory.partition(":")
        made: Rival = getattr(importlib.import_module(f"{__name__}.{module}"), name)(**self.arguments)
        return made


_BOTH = (UNCOMPRESSED, COMPRESSED)
DIRECT, LITDATA, LITDATA_PIECES, NPY, MDS = "zarr_core", "LitData", "LitData, chunks as items", ".npy memmap", "MDS"
RIVALS = [
    Entry(DIRECT, "stores:Reader", {"engine": "direct"}, None, _BOTH),
    Entry("zarr_core, mapped", "stores:Mapped", {}, None, _BOTH),
    Entry("zarr-python", "stores:Reader", {"engine": "zarr"}, None, _BOTH),
    Entry("zarr-python, zarrs pipeline", "stores:Zarrs", {}, "zarrs", _BOTH),
    Entry("TensorStore", "stores:Reader", {"engine": "tensorstore"}, "tensorstore", _BOTH),
    Entry("HDF5", "hdf5:HDF5", {"compression": None}, "h5py"),
    Entry("HDF5, lzf", "hdf5:HDF5", {"compression": "lzf"}, "h5py", (COMPRESSED,)),
    Entry(NPY, "npy:Window", {}),
    Entry(".npy memmap, not shuffled", "npy:Rows", {}),
    Entry(".pt mmap", "pt:Pt", {"mmap": True}),
    Entry(".pt load", "pt:Pt", {"mmap": False}),
    Entry(LITDATA_PIECES, "litdata_items:Pieces", {}, "litdata"),
    Entry(LITDATA, "litdata_items:Whole", {}, "litdata"),
    Entry(MDS, "mds:MDS", {}, "streaming"),
    Entry("WebDataset", "tars:WebDataset", {}, "webdataset"),
]
