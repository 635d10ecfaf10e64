"""The formats that take part, the settings of a store, and who reads its batches."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pkgutil import resolve_name
from typing import Any

from zarr_core.format.codecs import BOUNDED_CODEC, Codec
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.shootout.formats import Format

OURS = "zarr_core"
COLUMNS = "zarr_core, column-major copy"
LOSSY = "zarr_core, error bound 1e-3 std, lossy"
_HOME = "zarr_core.shootout.formats"
_CODECS = ("none", "blosc-lz4", "blosc-zstd:1", "zstd:3")
_STORE: dict[str, Any] = {"folder": "store", "is_store": True}
_TARS: dict[str, Any] = {"folder": "webdataset", "export": "webdataset"}


@dataclass(frozen=True)
class Candidate:
    """A format, what it needs, and the settings of a store.

    Attributes:
        name: in tables.
        factory: "module:class".
        arguments: of the class.
        package: what must be installed for it.
        folder: name of the folder that holds its bytes; formats that read the same bytes share it. By default its name.
        is_store: whether it reads a store, which has settings.
        export: format of ``zarr-core export`` that writes it, if there is one.
        reads: the only draws that it is measured with; all if empty.
        unit: "points" or "features".
        codec, chunk: settings of a store: compressor, and units per chunk; "" and 0 for other formats.
        layout: of a point store; else "".
    """

    name: str
    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    package: str | None = None
    _: KW_ONLY
    folder: str = ""
    is_store: bool = False
    export: str = ""
    reads: tuple[str, ...] = ()
    unit: str = "points"
    codec: str = ""
    chunk: int = 0
    layout: str = ""

    def with_settings(self, codec: str, chunk: int, layout: str = ConversionSettings.layout) -> Candidate:
        """A store with these settings, of which a matrix has no layout; other formats stay as they are."""
        if not self.is_store:
            return self
        if self.unit == "features":
            layout = ""
        elif self.name not in (OURS, LOSSY):  # other libraries read a folder faster than an archive
            layout = "directory"
        return replace(self, codec=str(Codec.parse(codec)), chunk=chunk, layout=layout)

    @property
    def installed(self) -> bool:
        """Whether its package can be imported here."""
        return self.package is None or importlib.util.find_spec(self.package) is not None

    def make(self) -> Format:
        """The format, which prepares a store with the settings."""
        arguments = dict(self.arguments)
        if self.codec:
            layout = {"layout": self.layout} if self.layout else {}
            arguments["settings"] = {"codec": self.codec, f"chunk_{self.unit}": self.chunk, **layout}
        made: Format = resolve_name(self.factory)(**arguments)
        return made

    @property
    def copy(self) -> str:
        """Name of the folder that holds its bytes with these settings."""
        name = (self.folder or self.name).replace(" ", "-").replace(",", "").strip(".")
        if not self.codec:
            return name
        return "-".join(filter(None, (name, self.layout, self.codec.replace(":", "-"), str(self.chunk))))

    @property
    def settings(self) -> str:
        """Settings of a store in words; "" for other formats."""
        chunk = f"{self.chunk:,} {self.unit}" if self.codec else ""
        return ", ".join(filter(None, (self.layout, self.codec, chunk)))

    @property
    def label(self) -> str:
        """Format and settings."""
        return f"{self.name}, {self.settings}".removesuffix(", ")


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
    Candidate(OURS, f"{_HOME}.stores:Reader", **_STORE),
    Candidate(".npy", f"{_HOME}.files:Window"),
    Candidate(".pt", f"{_HOME}.files:Pt", {"mmap": False}),
    Candidate("WebDataset", f"{_HOME}.shards:WebDataset", {}, "webdataset", **_TARS),
    Candidate("HDF5", f"{_HOME}.files:HDF5", {}, "h5py"),
    Candidate("zarr-python", f"{_HOME}.stores:ZarrPython", **_STORE),
    Candidate("zarr-python, zarrs pipeline", f"{_HOME}.stores:Zarrs", {}, "zarrs", **_STORE),
    Candidate("TensorStore", f"{_HOME}.stores:TensorStore", {}, "tensorstore", **_STORE),
    Candidate(".pt, memory map", f"{_HOME}.files:Pt", {"mmap": True}, folder=".pt"),
    Candidate("pickle", f"{_HOME}.files:Pickle"),
    Candidate("tar shards, indexed", f"{_HOME}.shards:IndexedTars", **_TARS),
    Candidate("LitData", f"{_HOME}.shards:Whole", {}, "litdata"),
    Candidate("MDS", f"{_HOME}.shards:MDS", {}, "streaming"),
)
#: A setting of a store that changes its values, so that it is never recommended; positions are as in the others.
BOUNDED = Candidate(
    LOSSY, f"{_HOME}.stores:Reader", {"error_bound": "1e-3std"}, BOUNDED_CODEC, folder="bounded", is_store=True
)
#: Formats of a wide matrix, in the order of their importance.
MATRIX_ENTRIES = (
    Candidate(OURS, f"{_HOME}.matrices:Matrix", **_STORE, unit="features"),
    Candidate(".npy", f"{_HOME}.matrices:Npy", export="npy", unit="features"),
    Candidate("h5ad", f"{_HOME}.matrices:H5ad", {}, "h5py", export="h5ad", unit="features"),
    Candidate("Parquet", f"{_HOME}.matrices:Parquet", {}, "pyarrow", export="parquet", unit="features"),
    Candidate("zarr-python", f"{_HOME}.matrices:ZarrPython", **_STORE, unit="features"),
    # Whole samples are never read from the column-major copy.
    Candidate(
        COLUMNS,
        f"{_HOME}.matrices:Matrix",
        {"columns": True},
        folder="columns",
        is_store=True,
        reads=("selected", "features"),
        unit="features",
    ),
)


def codecs(current: str) -> list[str]:
    """Codecs to compare, the current one first."""
    return list(dict.fromkeys(str(Codec.parse(codec)) for codec in (current, *_CODECS)))


def chunk_sizes(largest: int, *sizes: int) -> list[int]:
    """Chunk sizes to compare, the first one first: at least 1, and at most what the largest sample has."""
    return list(dict.fromkeys(max(1, min(size, largest)) for size in sizes))
