"""Batches of samples that differ in their numbers of points."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import reduce
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data.dataloader import default_collate

from zarr_core.errors import ZarrCoreError

Way = Literal["pad", "concat", "list"]
_POSITION = "_position"
_NOT_JOINED = "cannot be joined along their first axis, that of points (edges are (edges, 2)); or collate with 'list'"
_NOT_STACKED = "cannot be stacked; leave what has points of its own out of per_sample, or collate with 'list'"
# Suffixes of the tensors that are added for each domain, by way.
_ADDED = {"pad": ("_lengths", "_mask"), "concat": ("_batch", "_ptr")}


class Collate:
    """Makes batches of samples that differ in their numbers of points: ``DataLoader(..., collate_fn=Collate("pad"))``.

    The domain of a key is the text before ``_position`` of the position that it begins with ("surface_pressure" belongs
    to "surface_position"), or before its first underscore. All keys of a domain have the same points.

    * ``"pad"``: fields are (samples, most points, ...), zero after the points of a sample. ``<domain>_lengths``
      (samples,) int64 has the number of points of each sample, ``<domain>_mask`` (samples, most points) bool is True
      where a point is.
    * ``"concat"``: fields are (points of all samples, ...), as in PyTorch Geometric. ``<domain>_batch`` (points,) int64
      is the sample of each point; the points of sample i are ``<domain>_ptr[i]`` to ``<domain>_ptr[i + 1]``, int64.
    * ``"list"``: the list of the items.

    NumPy arrays are taken as tensors. Tensors without an axis, other values, and the keys of ``per_sample`` are stacked
    as by a DataLoader.

    Args:
        way: "pad", "concat" or "list".
        per_sample: keys of tensors that have an axis, but none of points, such as arrays of parameters.

    Raises:
        ZarrCoreError: there is no such way.

    Examples:
        >>> dataset = build_dataset({"kind": "point", "root": "store", "split": "train"})
        >>> sorted(Collate("concat")([dataset[0], dataset[1]]))
        ['surface_batch', 'surface_position', 'surface_pressure', 'surface_ptr']
    """

    def __init__(self, way: Way, per_sample: Collection[str] = ()) -> None:
        if way not in get_args(Way):
            raise ZarrCoreError(f"collate must be one of {', '.join(get_args(Way))}, not {way!r}")
        self.way = way
        self.per_sample = frozenset(per_sample)

    def __call__(self, batch: Sequence[Mapping[str, Any]]) -> dict[str, Any] | list[dict[str, Any]]:
        """The batch of some items.

        Raises:
            ZarrCoreError: there is no item, an item lacks a field of another one, fields of a domain differ in their
                numbers of points, or a field has the name of a tensor that is added.
        """
        if self.way == "list":
            return [dict(item) for item in batch]
        batch = [_with_tensors(item) for item in batch]
        check_fields(batch)
        collated: dict[str, Any] = {}
        for domain, fields in fields_by_domain(batch[0], self.per_sample).items():
            collated |= self._joined(domain, fields, batch)
        for field in batch[0]:
            if field not in collated:
                check_shapes(field, batch, _NOT_STACKED)
                collated[field] = default_collate([item[field] for item in batch])
        return collated

    def _joined(self, domain: str, fields: Sequence[str], batch: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """The fields of a domain, and what tells to which sample each point belongs."""
        lengths = torch.tensor([_points(domain, fields, item) for item in batch])
        ends = lengths.cumsum(0)
        for suffix in _ADDED[self.way]:
            if f"{domain}{suffix}" in batch[0]:
                raise ZarrCoreError(
                    f"{domain}{suffix} is a field of the items, and what collate={self.way!r} adds for the domain "
                    f"{domain!r}; leave the field out (excluded_properties), or collate with 'list'"
                )
        joined: dict[str, Tensor] = {}
        for field in fields:
            check_shapes(field, batch, _NOT_JOINED, axes=slice(1, None))
            values = same_dtype([item[field] for item in batch])
            if self.way == "pad":
                joined[field] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True)
            else:
                joined[field] = torch.cat(values)
        if self.way == "pad":
            joined[f"{domain}_lengths"] = lengths
            joined[f"{domain}_mask"] = torch.arange(int(lengths.max())) < lengths[:, None]
        else:
            joined[f"{domain}_batch"] = torch.arange(len(batch)).repeat_interleave(lengths)
            joined[f"{domain}_ptr"] = torch.cat([ends.new_zeros(1), ends])
        return joined


def _with_tensors(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An item with its NumPy arrays, which a transform may return, as tensors."""
    changed: Any = copy(item)  # with its sample id
    for key, value in item.items():
        if isinstance(value, np.ndarray):
            changed[key] = torch.from_numpy(value)
    return changed  # type: ignore[no-any-return]


def clear_padding(field: str, values: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Changed values of a field, zero again after the points of each sample if the batch was padded; in place."""
    mask = batch.get(f"{domain_of(field, batch.keys())}_mask")
    # A field of numbers may have the name of a mask, and a parameter that of a domain.
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != values.shape[:2]:
        return values
    return values.masked_fill_(~mask.reshape(*mask.shape, *[1] * (values.ndim - mask.ndim)), 0)


def domain_of(field: str, fields: Collection[str]) -> str:
    """The domain of a field: that of the longest position in ``fields`` with which its name begins."""
    found = field.partition("_")[0]
    for other in fields:
        domain = other.removesuffix(_POSITION)
        if other.endswith(_POSITION) and field.startswith(f"{domain}_") and len(domain) > len(found):
            found = domain
    return found


def fields_by_domain(item: Mapping[str, Any], per_sample: Collection[str] = ()) -> dict[str, list[str]]:
    """The fields of an item that have points, by domain; ``per_sample`` are fields that have none."""
    fields = []
    for field, values in item.items():
        if isinstance(values, Tensor) and values.ndim and field not in per_sample:
            fields.append(field)
    domains: dict[str, list[str]] = {}
    for field in fields:
        domains.setdefault(domain_of(field, fields), []).append(field)
    return domains


def check_fields(batch: Sequence[Mapping[str, Any]]) -> None:
    """Raise ZarrCoreError if there is no item, or an item lacks a field of another one."""
    if not batch:
        raise ZarrCoreError("a batch has no items; use a batch sampler whose batches all have one, on every rank")
    fields: dict[str, None] = {}  # in the order of the items
    for item in batch:
        fields |= dict.fromkeys(item)
    for field in fields:
        lacking = [item for item in batch if field not in item]
        if not lacking:
            continue
        origins: set[str] = set()
        for item in lacking:
            origins.add(str(getattr(item, "origin", "")))
        named_origins = ", ".join(sorted(origins - {""}))
        where = f" (those of {named_origins})" if named_origins else ""
        raise ZarrCoreError(
            f"{field}: {len(lacking)} of the {len(batch)} items of a batch have no such field{where}; read or export "
            "the fields that every sample has (fields=[...]), or pass a collate_fn"
        )


def check_shapes(field: str, batch: Sequence[Mapping[str, Any]], reason: str, axes: slice = slice(None)) -> None:
    """Raise ZarrCoreError, which ends with the reason, if the tensors of a field differ in the sizes of some axes."""
    found: dict[tuple[int, ...], str] = {}  # one of each kind
    for item in batch:
        values = item[field]
        if isinstance(values, Tensor):
            shape, sample = tuple(values.shape), named(item)
            found.setdefault(shape[axes], f"{shape} ({sample})" if sample else f"{shape}")
    if len(found) > 1:
        raise ZarrCoreError(f"{field}: items of shapes {', '.join(found.values())} {reason}")


def same_dtype(values: Sequence[Tensor]) -> list[Tensor]:
    """Tensors in the dtype that holds the values of all of them."""
    dtypes = {tensor.dtype for tensor in values}
    if len(dtypes) == 1:
        return list(values)
    dtype = reduce(torch.promote_types, dtypes)
    return [tensor.to(dtype) for tensor in values]


def named(item: Mapping[str, Any]) -> str:
    """The sample of an item, for messages; "" if the item does not know it."""
    return str(getattr(item, "sample_id", "") or item.get("sample_id", ""))


def _points(domain: str, fields: Sequence[str], item: Mapping[str, Any]) -> int:
    """Number of points of a domain in an item; raises ZarrCoreError if its fields differ."""
    counts = {}
    for field in fields:
        counts[field] = len(item[field])
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{field} {count:,}" for field, count in counts.items())
        raise ZarrCoreError(
            f"{named(item) or 'an item'}: fields of the domain {domain!r} differ in their numbers of points: {found}; "
            "name those that have no points in Collate(..., per_sample=[...]), or collate with 'list'"
        )
    return counts[fields[0]]
