"""Formats that hold many samples in a file: tar shards, as a stream and by item; LitData; MosaicML Streaming (MDS)."""

from __future__ import annotations

import io
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from zarr_core.shootout.formats import Draws, Format, Samples
from zarr_core.shootout.formats.files import Files
from zarr_core.shootout.formats.stores import Reader

# Shards of a small selection: every worker needs one.
_SHARDS = 8
# Items that a worker holds to shuffle them.
_SHUFFLED = 100


def arrays_of(item: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The fields of a group."""
    arrays = {}
    for name, content in item.items():
        if name.endswith(".npy"):
            arrays[name.removesuffix(".npy")] = np.load(io.BytesIO(content))
    return arrays


class _Tars(Format):
    """Shards of whole samples, as ``zarr-core export webdataset`` writes them."""

    def prepare(self, samples: Samples, folder: Path) -> None:
        from zarr_core.exports import export_webdataset

        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            Reader({"codec": "none"}).prepare(samples, Path(work))
            export_webdataset(f"{work}/store", folder, shards=min(_SHARDS, len(samples.ids)))


class WebDataset(_Tars):
    """A stream of shards in random order, whose samples are shuffled in a buffer."""

    streams = True
    without_threads = "a stream has one reader"

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


class IndexedTars(_Tars):
    """An item by its offset, as ``ShardStream`` reads them."""

    def open(self, place: str | Path, draws: Draws) -> None:
        from zarr_core.exports import ShardItems

        self._items, self._draws = ShardItems(str(place)), draws
        self.requests: int = 0
        self._numbers = {sample: number for number, sample in enumerate(self._items.sample_ids)}

    def read_items(self, items: Sequence[tuple[str, int]]) -> list[dict[str, np.ndarray]]:
        """One byte range per item, all in flight together."""
        found = self._items.__getitems__([self._numbers[sample] for sample, _ in items])
        self.requests += len(items)
        read = []
        for (sample, epoch), item in zip(items, found, strict=True):
            arrays = {name: tensor.numpy() for name, tensor in item.items()}
            read.append(self._draws.cut(arrays, sample, epoch))
        return read


class Whole(Format):
    """LitData: a sample is an item, whose file is mapped."""

    remote = False
    without_threads = "its reader keeps the place in the one file that it reads"

    def prepare(self, samples: Samples, folder: Path) -> None:
        optimize_items(samples.arrays, samples.ids, folder, chunk_bytes="64MB")

    def open(self, place: str | Path, draws: Draws) -> None:
        self._draws, self._items = draws, self._dataset(str(place))
        each = len(self._items) // len(draws.runs)
        self._first = dict(zip(sorted(draws.runs), range(0, len(self._items), each), strict=True))

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        return self._draws.cut(self._items[self._first[sample]], sample, epoch)

    def _dataset(self, place: str) -> Any:
        """What has the items of all samples, in the order of their names."""
        from litdata import StreamingDataset

        return StreamingDataset(place, shuffle=False)


def optimize_items(make: Any, inputs: list[Any], folder: Path, **size: Any) -> None:
    """Let LitData write items, which ``make`` returns for each of the inputs."""
    from litdata import optimize

    optimize(fn=make, inputs=inputs, output_dir=str(folder), num_workers=1, verbose=False, **size)


class MDS(Whole):
    """Read by its dataset of local files, without the downloader. It wants an environment with an older NumPy."""

    without_threads = ""

    def prepare(self, samples: Samples, folder: Path) -> None:
        columns = dict.fromkeys(samples.fields, "ndarray")
        with _streaming().MDSWriter(out=str(folder), columns=columns, size_limit="64mb") as writer:
            for sample in samples.ids:
                writer.write(samples.arrays(sample))

    def _dataset(self, place: str) -> Any:
        return _streaming().LocalDataset(local=place)


def _streaming() -> Any:
    """The package of MDS. Its image datasets, which nothing here uses, need a torchvision for this very torch."""
    sys.modules.setdefault("streaming.vision", mock.MagicMock())
    import streaming

    return streaming
