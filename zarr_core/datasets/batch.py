"""Batches that ``__getitems__`` reads as one, and a collate function that passes them on without copying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.dataloader import default_collate

from zarr_core.errors import ZarrCoreError


class BatchItem(dict[str, Tensor]):
    """An item of a batch. Registered with ``default_collate``, which then calls :func:`collate`."""


class Batch(list[BatchItem]):
    """The items of a batch, together with the batch tensors.

    Attributes:
        tensors: by field, (items, points, components) or (items, points). The items are views of them. None if the
            items differ in size.
    """

    def __init__(self, items: Sequence[BatchItem], tensors: dict[str, Tensor] | None) -> None:
        super().__init__(items)
        self.tensors = tensors
        self._read = [] if tensors is None else [tuple(item.items()) for item in items]

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> Batch:
        """The items of batch tensors."""
        rows = zip(*[tensor.unbind() for tensor in tensors.values()], strict=True)
        return cls([BatchItem(zip(tensors, values, strict=True)) for values in rows], tensors)

    @property
    def unchanged(self) -> bool:
        """Whether the items are still those of ``tensors``: the same tensors under the same names, in this order."""
        if len(self) != len(self._read):
            return False
        for item, read in zip(self, self._read, strict=True):
            if len(item) != len(read):
                return False
            for field, values in read:
                # By identity: == compares their elements, and a change in place also changes ``tensors``.
                if item.get(field) is not values:
                    return False
        return True


class BatchDataset(Dataset[dict[str, Tensor]]):
    """Base of datasets that read a whole batch at once with ``__getitems__``.

    A DataLoader calls ``__getitems__`` instead of ``__getitem__``. A subclass that overrides ``__getitem__`` alone gets
    a ``__getitems__`` that makes batches of its items, so that both return the same.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__:
            if "__getitems__" in vars(base):
                break
            if "__getitem__" in vars(base):
                cls.__getitems__ = _items  # type: ignore[attr-defined]
                break


def _items(dataset: BatchDataset, indices: Iterable[int]) -> list[Any]:
    return [dataset[index] for index in indices]


def collate(batch: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Batch tensors by field: those that ``__getitems__`` has already read, else the stacked items.

    Items are stacked if one of them was added, removed, moved or changed after it was read, for example by a subclass
    that overrides ``__getitems__``.

    A DataLoader without ``collate_fn`` does the same. Call this function in a ``collate_fn`` of your own. Items of
    several dtypes are stacked in the dtype that holds all their values.

    Raises:
        ZarrCoreError: items differ in size or in their fields.
    """
    if isinstance(batch, Batch) and batch.tensors is not None and batch.unchanged:
        return batch.tensors
    fields = dict.fromkeys(chain(*batch))  # in the order of the items
    for field in fields:
        lacking = sum(field not in item for item in batch)
        if lacking:
            raise ZarrCoreError(
                f"{field}: {lacking} of the {len(batch)} items of a batch have no such field; read or export the "
                "fields that every sample has (fields=[...]), or pass a collate_fn"
            )
    for field in fields:
        shapes = dict.fromkeys(tuple(item[field].shape) for item in batch)
        if len(shapes) > 1:
            raise ZarrCoreError(
                f"{field}: items of shapes {', '.join(map(str, shapes))} cannot be stacked; draw a number of points "
                "that every sample has (num_surface_points, num_volume_points, ...), or pass a collate_fn"
            )
    items = [dict(item) for item in batch]
    for field in fields:
        dtypes = {item[field].dtype for item in items}
        if len(dtypes) > 1:
            dtype = reduce(torch.promote_types, dtypes)
            for item in items:
                item[field] = item[field].to(dtype)
    stacked: dict[str, Tensor] = default_collate(items)
    return stacked


def _collate_items(batch: Sequence[BatchItem], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Any:
    return collate(batch)


default_collate_fn_map[BatchItem] = _collate_items
