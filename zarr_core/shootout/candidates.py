"""The formats that take part, and the settings of a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zarr_core.format.codecs import Codec
from zarr_core.shootout.formats import Entry

OURS = "zarr_core"
_HOME = "zarr_core.shootout.formats"
_CODECS = ("none", "blosc-lz4", "blosc-zstd:1", "zstd:3")


@dataclass(frozen=True)
class Candidate:
    """A format with its settings.

    Attributes:
        format: name.
        copy: name of the folder that holds its bytes; formats that read the same bytes share it.
        codec, chunk_points: settings of a store; "" and 0 for other formats.
    """

    format: str
    copy: str
    codec: str = ""
    chunk_points: int = 0

    @property
    def label(self) -> str:
        """Format and settings."""
        return f"{self.format}, {self.codec}, {self.chunk_points:,} points" if self.codec else self.format

    @property
    def entry(self) -> Entry:
        """What reads it, and writes it."""
        found = next(entry for entry in ENTRIES if entry.name == self.format)
        if not self.codec:
            return found
        settings = {"codec": self.codec, "chunk_points": self.chunk_points}
        return Entry(found.name, found.factory, {**found.arguments, "settings": settings}, found.package)


#: In the order of their importance.
ENTRIES = (
    Entry(OURS, f"{_HOME}.stores:Reader"),
    Entry(".npy", f"{_HOME}.npy:Window"),
    Entry(".pt", f"{_HOME}.pt:Pt", {"mmap": False}),
    Entry("WebDataset", f"{_HOME}.tars:WebDataset", {}, "webdataset"),
    Entry("HDF5", f"{_HOME}.hdf5:HDF5", {"compression": None}, "h5py"),
    Entry("zarr-python", f"{_HOME}.stores:Reader", {"engine": "zarr"}),
    Entry("TensorStore", f"{_HOME}.stores:Reader", {"engine": "tensorstore"}, "tensorstore"),
    Entry(".pt, memory map", f"{_HOME}.pt:Pt", {"mmap": True}),
    Entry("pickle", f"{_HOME}.pickles:Pickle"),
    Entry("tar shards, indexed", f"{_HOME}.tars:IndexedTars"),
    Entry("LitData", f"{_HOME}.litdata_items:Whole", {}, "litdata"),
    Entry("MDS", f"{_HOME}.mds:MDS", {}, "streaming"),
)
_STORES = {OURS, "zarr-python", "TensorStore"}
_COPIES = {".pt, memory map": ".pt"}


def candidate(name: str, codec: str, chunk_points: int) -> Candidate:
    """A format; the settings are ignored unless it reads stores."""
    if name in _STORES:
        codec = str(Codec.parse(codec))
        return Candidate(name, f"store-{codec.replace(':', '-')}-{chunk_points}", codec, chunk_points)
    return Candidate(name, _COPIES.get(name, name).replace(" ", "-").replace(",", "").strip("."))


def codecs(current: str) -> list[str]:
    """Codecs to compare, the current one first."""
    return list(dict.fromkeys(str(Codec.parse(codec)) for codec in (current, *_CODECS)))


def chunk_sizes(current: int, drawn: Iterable[int], n_points: Sequence[int]) -> list[int]:
    """Points per chunk to compare, the current number first: around the largest draw, at most the largest sample."""
    largest, wanted = max(n_points), max(drawn)
    sizes = (current, wanted, 4 * wanted, max(wanted // 4, 1))
    return list(dict.fromkeys(min(size, largest) for size in sizes))
