"""Batches that ``__getitems__`` reads as one, and a collate function that passes them on without copying."""

from __future__ import annotations

import hashlib
import json
from collections import UserList
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple, SupportsIndex, overload

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.dataloader import default_collate

from zarr_core._util.cached import cached_property
from zarr_core.datasets.collation import Collate, check_fields, check_shapes, same_dtype
from zarr_core.errors import ZarrCoreError


class Drawn(NamedTuple):
    """What determines the points of an item; ``seed`` or ``epoch`` is None if torch's random generator does."""

    seed: int | None
    epoch: int | None
    sample_id: str
    repetition: int


class BatchItem(dict[str, Any]):
    """An item of a batch. Registered with ``default_collate``, which then calls :func:`collate`.

    Attributes:
        sample_id: the sample, for messages; "" if it is not known.
        origin: the store that it was read from, for messages.
        drawn: what determines its points, for a ``transform``; None elsewhere.
        domains: the domain of each key that has points, if the item was read by itself; None if it is not known.
        collate: makes batches of items that differ in size; None stacks items.
    """

    sample_id: str = ""
    origin: str = ""
    drawn: Drawn | None = None
    domains: Mapping[str, str] | None = None
    collate: Collate | None = None

    @property
    def generator(self) -> torch.Generator:
        """A new generator of random numbers, for a ``transform``: ``torch.rand(3, generator=item.generator)``.

        Its numbers are the same whenever these points are drawn again, in any worker and after a resume. Without an
        epoch or a ``sampling_seed``, torch's random generator seeds it.

        Raises:
            ZarrCoreError: the item was not given to a ``transform``.
        """
        if self.drawn is None:
            raise ZarrCoreError("item.generator is for functions that a dataset's config names as `transform`")
        if None in self.drawn:
            return torch.Generator().manual_seed(int(torch.randint(1 << 62, ())))
        digest = hashlib.blake2b(json.dumps(self.drawn).encode(), digest_size=8, person=b"zarr_core.item")
        return torch.Generator().manual_seed(int.from_bytes(digest.digest(), "little") >> 1)


class Slab(dict[str, Tensor]):
    """Consecutive points of one domain of a sample: tensors by canonical name, as in items.

    They are normalized, except with ``dtype="stored"`` in the dataset's config.

    Keys (``item``) and transforms of the dataset's config do not apply.

    Attributes:
        sample_id: the sample.
        domain: of the points.
        rows: slice of their places in the stored order.
    """

    def __init__(self, tensors: Mapping[str, Tensor], sample_id: str, domain: str, rows: slice) -> None:
        super().__init__(tensors)
        self.sample_id, self.domain, self.rows = sample_id, domain, rows


class Batch(UserList[BatchItem]):
    """The items of a batch, together with the batch tensors. Items are made when one of them is used.

    Attributes:
        tensors: by field, (items, points, components) or (items, points); lists of what is not a tensor. The items are
            views of them. None if the items differ in size; then they are given.
    """

    def __init__(self, items: Iterable[Any] = (), tensors: dict[str, Any] | None = None) -> None:
        self.tensors = tensors
        if tensors is None:
            self.data = list(items)

    @cached_property
    def data(self) -> list[BatchItem]:  # type: ignore[override]
        """The items, as the base class keeps them."""
        rows = self._rows
        return [self._first, *map(self._made, rows[1:])]

    @cached_property
    def _rows(self) -> list[tuple[Any, ...]]:
        """The values of each item, as they were read."""
        assert self.tensors is not None
        columns = [values.unbind() if isinstance(values, Tensor) else values for values in self.tensors.values()]
        rows = list(zip(*columns, strict=True))
        rows[0] = self._first_row
        return rows

    # default_collate looks at the first item of any batch. That must not make all the others.
    @cached_property
    def _first(self) -> BatchItem:
        return self._made(self._first_row)

    @cached_property
    def _first_row(self) -> tuple[Any, ...]:
        assert self.tensors is not None
        return tuple(values[0] for values in self.tensors.values())

    def _made(self, row: tuple[Any, ...]) -> BatchItem:
        assert self.tensors is not None
        return BatchItem(zip(self.tensors, row, strict=True))

    @overload
    def __getitem__(self, i: SupportsIndex) -> BatchItem: ...
    @overload
    def __getitem__(self, i: slice) -> Batch: ...
    def __getitem__(self, i: SupportsIndex | slice) -> BatchItem | Batch:
        return self._first if i == 0 and "data" not in vars(self) else super().__getitem__(i)

    def __copy__(self) -> Batch:
        return self.copy()  # that of the base class needs items

    @property
    def unchanged(self) -> bool:
        """Whether the items are still those of ``tensors``: the same tensors under the same names, in this order."""
        assert self.tensors is not None
        items: Sequence[BatchItem] = ()
        rows: Sequence[tuple[Any, ...]] = ()  # that they were made of
        if "data" in vars(self):
            items, rows = self.data, self._rows
        elif "_first" in vars(self):
            items, rows = [self._first], [self._first_row]
        if len(items) != len(rows):
            return False
        fields = list(self.tensors)
        for item, read in zip(items, rows, strict=True):
            # By identity: == compares their elements, and a change in place also changes ``tensors``.
            if list(item) != fields or not all(map(is_, item.values(), read)):
                return False
        return True


class BatchDataset(Dataset[dict[str, Tensor]]):
    """Base of datasets that read a whole batch at once with ``__getitems__``.

    A DataLoader calls ``__getitems__`` instead of ``__getitem__``. A subclass that overrides one of them alone gets the
    other one, which makes batches of its items, or takes an item of its batch, so that both return the same.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__:
            own = vars(base).keys() & {"__getitem__", "__getitems__"}
            if own == {"__getitem__"}:
                cls.__getitems__ = _items_of(base)  # type: ignore[attr-defined]
            elif own == {"__getitems__"}:
                cls.__getitem__ = _item_of(base)  # type: ignore[method-assign]
            if own:
                break


# Both call the class that defines the other one: that of a further subclass may call them.
def _items_of(base: Any) -> Callable[[Any, Iterable[int]], list[Any]]:
    def items(dataset: Any, indices: Iterable[int]) -> list[Any]:
        return [base.__getitem__(dataset, index) for index in indices]

    return items


def _item_of(base: Any) -> Callable[[Any, int], Any]:
    def item(dataset: Any, index: int) -> Any:
        try:
            return base.__getitems__(dataset, [index])[0]
        except RecursionError:
            name = base.__name__
            raise ZarrCoreError(
                f"{name}.__getitems__ reads items of {name}, which are made of its batches: change those that "
                "super().__getitems__(indices) returns, or override __getitem__ alone"
            ) from None

    return item


def collate(batch: Sequence[dict[str, Tensor]]) -> Any:
    """Batch tensors by field: those that ``__getitems__`` has already read, else the stacked items.

    Items are stacked if one of them was added, removed, moved or changed after it was read, for example by a subclass
    that overrides ``__getitems__``. Items of a dataset with ``collate`` in its config go to :class:`Collate`.

    A DataLoader without ``collate_fn`` does the same. Call this function in a ``collate_fn`` of your own. Items of
    several dtypes are stacked in the dtype that holds all their values.

    Raises:
        ZarrCoreError: there is no item, or items differ in size or in their fields.
    """
    if isinstance(batch, Batch) and batch.tensors is not None and batch.unchanged:
        return batch.tensors
    own = getattr(batch[0], "collate", None) if batch else None
    if own is not None:
        return own(batch)
    check_fields(batch)
    items = [dict(item) for item in batch]
    for field in items[0]:
        values = [item[field] for item in items]
        if not isinstance(values[0], Tensor):
            continue
        check_shapes(
            field,
            batch,
            "cannot be stacked; draw a number of points that every sample has (num_surface_points, num_volume_points, "
            "...), or set collate: pad, concat or list in the config of the dataset; for other items, pass "
            'collate_fn=zarr_core.Collate("pad")',
        )
        for item, tensor in zip(items, same_dtype(values), strict=True):
            item[field] = tensor
    return default_collate(items)


def _collate_items(batch: Sequence[BatchItem], *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Any:
    return collate(batch)


default_collate_fn_map[BatchItem] = _collate_items
