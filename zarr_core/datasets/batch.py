"""Batches that are read as one: what ``__getitems__`` hands to a DataLoader, and how it gets past collation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.dataloader import default_collate

from zarr_core.errors import ZarrCoreError


class BatchItem(dict[str, Tensor]):
    """An item of a batch. ``default_collate`` knows the type, and takes the whole batch where there is one."""


class Batch(list[BatchItem]):
    """Items of a batch, and the batch itself.

    Attributes:
        tensors: (items, points, components) or (items, points) by field, of which the items are views; None where the
            items differ in size.
    """

    def __init__(self, items: Sequence[BatchItem], tensors: dict[str, Tensor] | None) -> None:
        super().__init__(items)
        self.tensors = tensors


def collate(batch: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Batch tensors by field; those that ``__getitems__`` has read already, or stacked items.

    A DataLoader without ``collate_fn`` does the same; pass this one where another is wrapped around it.

    Raises:
        ZarrCoreError: items differ in size.
    """
    if isinstance(batch, Batch) and batch.tensors is not None:
        return batch.tensors
    for field in batch[0]:
        shapes = {tuple(item[field].shape): None for item in batch}
        if len(shapes) > 1:
            raise ZarrCoreError(
                f"{field}: items of shapes {', '.join(map(str, shapes))} make no batch; draw a number of points that "
                "every sample has (num_surface_points, num_volume_points, ...), or give the DataLoader a collate_fn"
            )
    stacked: dict[str, Tensor] = default_collate([dict(item) for item in batch])
    return stacked


def _collate_items(batch: Sequence[BatchItem], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Any:
    return collate(batch)


default_collate_fn_map[BatchItem] = _collate_items
