"""Training from exported tar shards, in the order and with the state of ``zarr_core.loader``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
import torch

from zarr_core.datasets.batch import Batch, BatchDataset, BatchItem
from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.exports.shard_index import Item, arrays_of, read_index
from zarr_core.loader.iterable import ZarrIterableDataset
from zarr_core.storage import Storage
from zarr_core.storage import byte_ranges as objects
from zarr_core.storage.byte_ranges import Objects, Request, open_objects
from zarr_core.storage.checked import fetch_checked


class ShardItems(BatchDataset):
    """Items of an export by number, as dicts of tensors: ``EpochBatchSampler`` and ``ResumableLoader`` take it.

    An item maps canonical field names to CPU tensors, (points, components) of the stored dtype. It costs one byte
    range, which is compared with its checksum; the ranges of a batch are in flight together on remote locations. Draws
    were made by the export: they are the same in every epoch.

    Args:
        url: folder or URL that ``export_webdataset`` has written.
        with_index: items have ``index``, their position in ``sample_ids``, an int64 tensor: labels are looked up by it.

    Attributes:
        index: the index of the export.
        sample_ids: sample of each item, in order.

    Raises:
        StoreError: there is no export, or it is not finished.
    """

    def __init__(self, url: str | os.PathLike[str], *, with_index: bool = False) -> None:
        self._storage = Storage(url)
        index = read_index(self._storage)
        if index is None:
            raise StoreError(f"{self._storage.url} holds no index of tar shards; export a store to it")
        if not index.complete:
            done = f"{len(index.shards)} of {index.planned} shards"
            raise StoreError(f"{self._storage.url}: the export was interrupted ({done}); repeat it to finish it")
        self.index = index
        self._items: list[tuple[str, Item]] = []
        self.sample_ids: list[str] = []
        for shard in index.shards.values():
            for item in shard.items:
                self._items.append((shard.name, item))
                self.sample_ids.append(item.sample_id)
        self._with_index = with_index
        self._objects: Objects | None = None
        self._forks = -1

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._storage.url}: {len(self):,} items in {self.index.planned:,} shards>"

    @property
    def fingerprint(self) -> str:
        """Identifies the items by a digest of their content, wherever they lie."""
        return f"{self.index.dataset}: {len(self)} items in tar shards {self.index.plan[:16]}"

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Read a whole batch at once; DataLoader calls this instead of ``__getitem__``.

        Raises:
            CorruptChunkError: bytes are missing or damaged.
            StoreError: the shards cannot be reached.
        """
        wanted = [self._items[index] for index in indices]
        requests = [Request(shard, item.offset, item.offset + item.size) for shard, item in wanted]
        items = [BatchItem() for _ in wanted]

        def use(number: int, data: np.ndarray | Exception) -> None:
            for name, values in self._parse(*wanted[number], data).items():
                items[number][name] = torch.from_numpy(values)

        fetch_checked(self._this_process, requests, use)
        if self._with_index:
            for item, index in zip(items, indices, strict=True):
                item["index"] = torch.tensor(index)
        return Batch(items)

    def _parse(self, shard: str, item: Item, data: np.ndarray | Exception) -> dict[str, np.ndarray]:
        where = f"{self._storage.url}/{shard}, item of {item.sample_id} at byte {item.offset}"
        if isinstance(data, FileNotFoundError | CorruptChunkError):
            raise CorruptChunkError(f"{where} is missing; export the store again") from data
        if isinstance(data, Exception):
            raise StoreError(f"{where} cannot be fetched: {data}") from data
        if google_crc32c.value(data) != item.crc32c:
            raise CorruptChunkError(f"{where} is damaged: its checksum differs; export the store again")
        return arrays_of(data)

    @property
    def _this_process(self) -> Objects:
        if self._objects is None or self._forks != objects.forks:
            self._objects, self._forks = open_objects(self._storage.root), objects.forks
        return self._objects

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_objects": None, "_forks": -1}


class ShardStream(ZarrIterableDataset):
    """Items of an export as an iterable dataset, in the order of an ``EpochBatchSampler``.

    ``DataLoader(ShardStream(url, batch_size), batch_size=batch_size // ranks)`` yields batches of uniformly shuffled
    items of all shards, equally many on each rank, for any number of ranks and workers. Order, epochs and state are
    those of :class:`~zarr_core.loader.ZarrIterableDataset`: torchdata's ``StatefulDataLoader`` resumes it in constant
    time, because an item is found by its offset and not by reading the items before it.

    Args:
        url: folder or URL that ``export_webdataset`` has written.
        batch_size: items per global batch, that is of all ranks together.
        with_index: as in :class:`ShardItems`; ``stream.items.sample_ids`` names the sample of each index.
        settings: arguments of the sampler: ``seed``, ``drop_last``, ``shuffle``, ``evaluation``, ``fingerprint``.

    Raises:
        StoreError: there is no export, or it is not finished.
        ZarrCoreError: a setting is out of range.

    Examples:
        >>> index = export_webdataset("store", "shards", shards=1)
        >>> len(list(ShardStream("shards", batch_size=2, seed=1)))
        4
    """

    def __init__(
        self, url: str | os.PathLike[str], batch_size: int, *, with_index: bool = False, **settings: Any
    ) -> None:
        super().__init__(ShardItems(url, with_index=with_index), batch_size, **settings)

    @property
    def items(self) -> ShardItems:
        """The items by number."""
        assert isinstance(self.dataset, ShardItems)
        return self.dataset
