"""The formats that take part, the settings of a store, and who reads its batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from zarr_core.format.codecs import BOUNDED_CODEC, Codec
from zarr_core.points.store.settings import ConversionSettings, Layout
from zarr_core.shootout.formats import Entry

OURS = "zarr_core"
COLUMNS = "zarr_core, column-major copy"
LOSSY = "zarr_core, error bound 1e-3 std, lossy"
_HOME = "zarr_core.shootout.formats"
_CODECS = ("none", "blosc-lz4", "blosc-zstd:1", "zstd:3")
_STORE: dict[str, Any] = {"copy": "store", "is_store": True}


@dataclass(frozen=True)
class Candidate:
    """A format with its settings.

    Attributes:
        entry: what reads it, and writes it.
        codec, chunk: settings of a store: compressor, and units per chunk; "" and 0 for other formats.
        unit: "points" or "features".
        layout: of a point store; else "".
    """

    entry: Entry
    codec: str = ""
    chunk: int = 0
    unit: str = "points"
    layout: str = ""

    @property
    def format(self) -> str:
        """Name of the format."""
        return self.entry.name

    @property
    def copy(self) -> str:
        """Name of the folder that holds its bytes."""
        name = (self.entry.copy or self.entry.name).replace(" ", "-").replace(",", "").strip(".")
        if not self.codec:
            return name
        return "-".join(filter(None, (name, self.layout, self.codec.replace(":", "-"), str(self.chunk))))

    @property
    def label(self) -> str:
        """Format and settings."""
        return f"{self.format}, {self.settings}" if self.codec else self.format

    @property
    def settings(self) -> str:
        """Settings of a store."""
        return store_settings(self.codec, self.chunk, self.unit, self.layout)


@dataclass(frozen=True)
class Loader:
    """Who reads the batches: worker processes, threads of the trainer's process, or the trainer itself.

    Attributes:
        workers: ``num_workers`` of a DataLoader.
        prefetch: batches that each worker or thread reads ahead: ``prefetch_factor``.
        pin: whether batches are copied to page-locked memory.
        threads: ``num_threads`` of a ``ResumableLoader``, which has no workers then.
    """

    workers: int = 0
    prefetch: int = 2
    pin: bool = False
    threads: int = 0

    @property
    def parallel(self) -> int:
        """Batches that are read at the same time, ahead of the trainer; 0 if the trainer reads each itself."""
        return self.workers or self.threads

    @property
    def words(self) -> str:
        """For a person; ``prefetch_factor`` only if it is not PyTorch's default."""
        name = "thread" if self.threads else "worker"
        text = f"{self.parallel or 'no'} {name}{'s' * (self.parallel != 1)}"
        if self.parallel and self.prefetch != 2:
            text += f", prefetch_factor {self.prefetch}"
        return text + ", pinned memory" * self.pin

    def call(self, batch_size: int) -> str:
        """A line of Python."""
        more = f", prefetch_factor={self.prefetch}" * (self.parallel > 0) + ", pin_memory=True" * self.pin
        if self.threads:
            batches = f"EpochBatchSampler.of(dataset, batch_size={batch_size})"
            return f"ResumableLoader(dataset, {batches}, num_threads={self.threads}{more})"
        return f"DataLoader(dataset, batch_size={batch_size}, num_workers={self.workers}{more})"


#: Batches are read by the trainer's process.
NO_WORKERS = Loader()

#: Formats of samples of points, in the order of their importance.
ENTRIES = (
    Entry(OURS, f"{_HOME}.stores:Reader", **_STORE),
    Entry(".npy", f"{_HOME}.files:Window"),
    Entry(".pt", f"{_HOME}.files:Pt", {"mmap": False}),
    Entry("WebDataset", f"{_HOME}.tars:WebDataset", {}, "webdataset", export="webdataset"),
    Entry("HDF5", f"{_HOME}.files:HDF5", {}, "h5py"),
    Entry("zarr-python", f"{_HOME}.stores:ZarrPython", **_STORE),
    Entry("zarr-python, zarrs pipeline", f"{_HOME}.stores:Zarrs", {}, "zarrs", **_STORE),
    Entry("TensorStore", f"{_HOME}.stores:TensorStore", {}, "tensorstore", **_STORE),
    Entry(".pt, memory map", f"{_HOME}.files:Pt", {"mmap": True}, copy=".pt"),
    Entry("pickle", f"{_HOME}.files:Pickle"),
    Entry("tar shards, indexed", f"{_HOME}.tars:IndexedTars", export="webdataset"),
    Entry("LitData", f"{_HOME}.items:Whole", {}, "litdata"),
    Entry("MDS", f"{_HOME}.items:MDS", {}, "streaming"),
)
#: A setting of a store that changes its values, so that it is never recommended; positions are as in the others.
BOUNDED = Entry(
    LOSSY, f"{_HOME}.stores:Reader", {"error_bound": "1e-3std"}, BOUNDED_CODEC, copy="bounded", is_store=True
)
#: Formats of a wide matrix, in the order of their importance.
MATRIX_ENTRIES = (
    Entry(OURS, f"{_HOME}.matrices:Matrix", **_STORE),
    Entry(".npy", f"{_HOME}.matrices:Npy", export="npy"),
    Entry("h5ad", f"{_HOME}.matrices:H5ad", {}, "h5py", export="h5ad"),
    Entry("Parquet", f"{_HOME}.matrices:Parquet", {}, "pyarrow", export="parquet"),
    Entry("zarr-python", f"{_HOME}.matrices:ZarrPython", **_STORE),
    # Whole samples are never read from the column-major copy.
    Entry(
        COLUMNS,
        f"{_HOME}.matrices:Matrix",
        {"columns": True},
        copy="columns",
        is_store=True,
        reads=("selected", "features"),
    ),
)


def store_settings(codec: str, chunk: int, unit: str, layout: str = "") -> str:
    """Settings of a store in words."""
    return ", ".join(filter(None, (layout, codec, f"{chunk:,} {unit}")))


def candidate(entry: Entry, codec: str, chunk: int, unit: str, layout: Layout = ConversionSettings.layout) -> Candidate:
    """A format; the settings are ignored unless it is a store, and the layout unless this library reads its points."""
    if not entry.is_store:
        return Candidate(entry, unit=unit)
    codec = str(Codec.parse(codec))
    settings: dict[str, Any] = {"codec": codec, f"chunk_{unit}": chunk}
    if unit == "points":
        # Other libraries read a folder faster than an archive.
        settings["layout"] = layout = layout if entry.name in (OURS, LOSSY) else "directory"
    chosen = replace(entry, arguments={**entry.arguments, "settings": settings})
    return Candidate(chosen, codec, chunk, unit, settings.get("layout", ""))


def codecs(current: str) -> list[str]:
    """Codecs to compare, the current one first."""
    return list(dict.fromkeys(str(Codec.parse(codec)) for codec in (current, *_CODECS)))


def chunk_sizes(largest: int, *sizes: int) -> list[int]:
    """Chunk sizes to compare, the first one first: at least 1, and at most what the largest sample has."""
    return list(dict.fromkeys(max(1, min(size, largest)) for size in sizes))
