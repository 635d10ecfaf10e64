"""Formats that only the benchmark needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from zarr_core.shootout.candidates import Candidate
from zarr_core.shootout.formats import Draws, Samples
from zarr_core.shootout.formats.files import HDF5, SampleFiles, Window
from zarr_core.shootout.formats.shards import Whole, arrays_of, optimize_items
from zarr_core.shootout.formats.stores import Reader

_CHUNK_POINTS = 16_384


def load_draws(path: Path) -> Draws:
    """The draws in a file ``draws.json``."""
    return Draws(**json.loads(path.read_text()))


def prepare(entry: Candidate, folder: Path, samples: Path, store: Path) -> None:
    """Write the samples into a new folder, or link the store of the same rows."""
    folder.mkdir(parents=True)
    made = entry.make()
    if isinstance(made, Reader):
        (folder / "store").symlink_to(store)
    else:
        made.prepare(Samples(samples), folder)


class CompressedHDF5(HDF5):
    """With our chunk sizes, and with byte shuffling and checksums, as ours have them."""

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        import h5py

        options = {"compression": "lzf", "shuffle": True, "fletcher32": True}
        with h5py.File(folder / f"{sample}.h5", "w") as file:
            for field, array in samples.arrays(sample).items():
                chunks = (min(_CHUNK_POINTS, len(array)), array.shape[1])
                file.create_dataset(field, data=array, chunks=chunks, **options)


class Rows(Window):
    """Points as a simulation leaves them, so that a draw is rows from everywhere."""

    remote = False

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        """Put the points into another order, and note which row is where."""
        (folder / sample).mkdir()
        arrays = samples.arrays(sample)
        order = np.random.default_rng(samples.ids.index(sample)).permutation(len(arrays[samples.fields[0]]))
        np.save(folder / sample / "order.npy", order)
        for field, array in arrays.items():
            scattered = np.empty_like(array)
            scattered[order] = array
            np.save(folder / sample / f"{field}.npy", scattered)

    def _arrays(self, sample: str) -> Mapping[str, np.ndarray]:
        order = np.load(self._files.open(f"{sample}/order.npy"), mmap_mode="r")
        return {**super()._arrays(sample), "order": order}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Gather the rows."""
        arrays = self._opened(sample)
        fields = self._draws.domains
        rows = self._draws.rows(arrays["order"], sample, epoch, next(iter(fields)))
        return {field: arrays[field][rows] for field in fields}


class TarPerSample(SampleFiles):
    """``SAMPLE.tar`` with a ``.npy`` file of each field, which lets WebDataset read one sample."""

    remote = False

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        from webdataset import TarWriter

        with TarWriter(str(folder / f"{sample}.tar")) as writer:
            fields = {f"{name}.npy": array for name, array in samples.arrays(sample).items()}
            writer.write({"__key__": sample, **fields})

    def _arrays(self, sample: str) -> Mapping[str, np.ndarray]:
        from webdataset import WebDataset as Dataset

        # All of the one tar, whichever worker this is.
        options = {"shardshuffle": False, "empty_check": False, "nodesplitter": None, "workersplitter": None}
        (found,) = Dataset(str(self._files.open(f"{sample}.tar")), **options)
        return arrays_of(found)


class Lance(SampleFiles):
    """A Lance file per sample, kept open, with a column of fixed-size lists per field; for samples of one domain."""

    remote = False

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        import pyarrow as pa
        from lance.file import LanceFileWriter

        columns = {}
        for field, array in samples.arrays(sample).items():
            columns[field] = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])
        table = pa.table(columns)
        with LanceFileWriter(str(folder / f"{sample}.lance"), table.schema) as writer:
            writer.write_batch(table)

    def open(self, place: str | Path, draws: Draws) -> None:
        """Open the files, which reads their footers."""
        from lance.file import LanceFileReader

        self._draws = draws
        self._samples = {sample: LanceFileReader(f"{place}/{sample}.lance") for sample in draws.ids}

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """One read per range of rows, of all columns: the fastest of Lance's ways."""
        fields = self._draws.domains
        pieces: dict[str, list[np.ndarray]] = {field: [] for field in fields}
        for first, last in self._draws.of(sample, epoch, next(iter(fields))):
            rows = self._samples[sample].read_range(first, last - first, batch_size=last - first).to_table()
            for field in fields:
                for part in rows[field].chunks:
                    pieces[field].append(part.flatten().to_numpy().reshape(-1, part.type.list_size))
        return {field: np.concatenate(found) for field, found in pieces.items()}


class Pieces(Whole):
    """A chunk of points, of all fields, is an item, in a file of its own; for samples of one domain.

    A fairer match than whole samples. With many items in a file, a random one costs many times as much.
    """

    def prepare(self, samples: Samples, folder: Path) -> None:
        """Let LitData write its chunks."""
        size = load_draws(samples.folder.with_name("draws.json")).chunk_points
        points = len(samples.arrays(samples.ids[0])[samples.fields[0]])
        places = list(product(samples.ids, range(0, points, size)))
        optimize_items(partial(_piece, samples, size), places, folder, chunk_size=1)

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """Take the windows of the items."""
        size = self._draws.chunk_points
        pieces: dict[str, list[np.ndarray]] = {}
        items: dict[int, dict[str, np.ndarray]] = {}
        for first, last in self._draws.of(sample, epoch, next(iter(self._draws.domains))):
            for chunk in range(first // size, (last - 1) // size + 1):
                if chunk not in items:
                    items[chunk] = self._items[self._first[sample] + chunk]
                start = max(first - chunk * size, 0)
                for field, array in items[chunk].items():
                    pieces.setdefault(field, []).append(array[start : last - chunk * size])
        return {field: np.concatenate(found) for field, found in pieces.items()}


def _piece(samples: Samples, size: int, place: tuple[str, int]) -> dict[str, np.ndarray]:
    sample, start = place
    piece = {}
    for field in samples.fields:
        array = np.load(samples.folder / sample / f"{field}.npy", mmap_mode="r")
        piece[field] = np.array(array[start : start + size])
    return piece
