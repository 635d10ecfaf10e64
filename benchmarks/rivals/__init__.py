"""Ways to read a draw from local disk: the formats of the shootout, and some that only a benchmark needs."""

from __future__ import annotations

from dataclasses import dataclass

from zarr_core.shootout.candidates import Candidate

UNCOMPRESSED, COMPRESSED = "none", "blosc-lz4"


@dataclass(frozen=True)
class Rival(Candidate):
    """A format of the benchmark.

    Attributes:
        codecs: of the stores that it can read; only ours and HDF5 keep chunks compressed on a local disk.
    """

    codecs: tuple[str, ...] = (UNCOMPRESSED,)


_BOTH = (UNCOMPRESSED, COMPRESSED)
_FORMATS = "zarr_core.shootout.formats"
DIRECT, LITDATA, LITDATA_PIECES, NPY, MDS = "zarr_core", "LitData", "LitData, chunks as items", ".npy memmap", "MDS"
RIVALS = [
    Rival(DIRECT, f"{_FORMATS}.stores:Reader", {}, None, _BOTH),
    Rival("zarr-python", f"{_FORMATS}.stores:ZarrPython", {}, None, _BOTH),
    Rival("zarr-python, zarrs pipeline", f"{_FORMATS}.stores:Zarrs", {}, "zarrs", _BOTH),
    Rival("TensorStore", f"{_FORMATS}.stores:TensorStore", {}, "tensorstore", _BOTH),
    Rival("HDF5", f"{_FORMATS}.files:HDF5", {}, "h5py"),
    Rival("HDF5, lzf", "benchmarks.rivals.formats:CompressedHDF5", {}, "h5py", (COMPRESSED,)),
    Rival(NPY, f"{_FORMATS}.files:Window"),
    Rival(".npy memmap, not shuffled", "benchmarks.rivals.formats:Rows"),
    Rival(".pt mmap", f"{_FORMATS}.files:Pt", {"mmap": True}),
    Rival(".pt load", f"{_FORMATS}.files:Pt", {"mmap": False}),
    Rival(LITDATA_PIECES, "benchmarks.rivals.formats:Pieces", {}, "litdata"),
    Rival(LITDATA, f"{_FORMATS}.shards:Whole", {}, "litdata"),
    Rival("Lance", "benchmarks.rivals.formats:Lance", {}, "lance"),
    Rival(MDS, f"{_FORMATS}.shards:MDS", {}, "streaming"),
    Rival("WebDataset", "benchmarks.rivals.formats:TarPerSample", {}, "webdataset"),
]
