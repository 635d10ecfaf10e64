"""Tar files: WebDataset as it is meant to be used, and items of tar shards by their offsets."""

from __future__ import annotations

import io
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.shootout.formats import Format
from zarr_core.shootout.formats.files import Files
from zarr_core.shootout.formats.samples import Draws, Samples
from zarr_core.shootout.formats.stores import Reader

# Shards of a small selection: every worker needs one.
_SHARDS = 8
# Items that a worker holds to shuffle them.
_SHUFFLED = 100


def write_item(writer: Any, sample: str, samples: Samples) -> None:
    """A sample as a group of a tar file."""
    arrays = samples.arrays(sample)
    writer.write({"__key__": sample, **{f"{name}.npy": array for name, array in arrays.items()}})


def arrays_of(item: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The fields of a group."""
    arrays = {}
    for name, content in item.items():
        if name.endswith(".npy"):
            arrays[name.removesuffix(".npy")] = np.load(io.BytesIO(content))
    return arrays


class WebDataset(Format):
    """Shards of whole samples, streamed: shards in random order, samples shuffled in a buffer."""

    streams = True
    without_threads = "a stream has one reader"

    def prepare(self, samples: Samples, folder: Path) -> None:
        from webdataset import TarWriter

        shards = min(_SHARDS, len(samples.ids))
        for shard in range(shards):
            with TarWriter(str(folder / f"{shard:06d}.tar")) as writer:
                for sample in samples.ids[shard::shards]:
                    write_item(writer, sample, samples)

    def open(self, place: str | Path, draws: Draws) -> None:
        self._files, self._draws = Files(place), draws
        self._shards = self._files.names(".tar")

    def stream(self, epoch: int, worker: int, workers: int) -> Iterator[dict[str, np.ndarray]]:
        """Each worker reads shards of its own."""
        from webdataset.filters import shuffle
        from webdataset.tariterators import group_by_keys, tar_file_expander

        order = random.Random(epoch).sample(self._shards, len(self._shards))[worker::workers]
        items = group_by_keys(tar_file_expander(self._opened(order)))
        for item in shuffle(_SHUFFLED, rng=random.Random(f"{epoch} {worker}"))(items):
            yield self._draws.cut(arrays_of(item), item["__key__"], epoch)

    def _opened(self, shards: Sequence[str]) -> Iterator[dict[str, Any]]:
        for name in shards:
            found = self._files.open(name)
            self.requests = self._files.requests
            yield {"url": name, "stream": found.open("rb") if isinstance(found, Path) else found}


class IndexedTars(Format):
    """Shards of ``zarr-core export webdataset``, an item by its offset, as ``ShardStream`` reads them."""

    def prepare(self, samples: Samples, folder: Path) -> None:
        from zarr_core.exports import export_webdataset

        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            Reader({"codec": "none"}).prepare(samples, Path(work))
            export_webdataset(f"{work}/store", folder, shards=min(_SHARDS, len(samples.ids)))

    def open(self, place: str | Path, draws: Draws) -> None:
        from zarr_core.exports import ShardItems

        self._items, self._draws = ShardItems(str(place)), draws
        self.requests = 0
        self._numbers: dict[str, int] = {}
        for shard in self._items.index.shards.values():
            for item in shard.items:
                self._numbers[item.sample_id] = len(self._numbers)

    def read_items(self, items: Sequence[tuple[str, int]]) -> list[dict[str, np.ndarray]]:
        """One byte range per item, all in flight together."""
        found = self._items.__getitems__([self._numbers[sample] for sample, _ in items])
        self.requests = (self.requests or 0) + len(items)
        read = []
        for (sample, epoch), item in zip(items, found, strict=True):
            arrays = {name: tensor.numpy() for name, tensor in item.items()}
            read.append(self._draws.cut(arrays, sample, epoch))
        return read
