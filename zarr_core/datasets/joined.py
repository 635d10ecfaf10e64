"""What a mixture of point datasets reads together, straight into its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zarr_core._util.repeated import repetition_of
from zarr_core.datasets.normalizers import Normalizers
from zarr_core.datasets.points import ZarrPointDataset
from zarr_core.points.read.selection import Share, read_together


class Chosen(NamedTuple):
    """The samples of one dataset in a batch, and their places in it."""

    dataset: Any
    samples: list[int]
    places: list[int]


def are_plain(datasets: Sequence[Any]) -> bool:
    """Whether the items of all datasets are their fields and nothing else, in the same form."""
    forms = set()
    for dataset in datasets:
        if not isinstance(dataset, ZarrPointDataset):
            return False
        # A subclass, or an option that adds to items or changes them, is left to the dataset itself.
        own = type(dataset)
        if own.__getitem__ is not ZarrPointDataset.__getitem__ or own.__getitems__ is not ZarrPointDataset.__getitems__:
            return False
        config = dataset.config
        if config.parameters or config.item or config.with_index or config.with_sample_id or config.collate:
            return False
        if config.transform or config.batch_transform:
            return False
        forms.add((config.dtype, config.scalar_axis))
    return len(forms) == 1


def read_joined(chosen: Sequence[Chosen]) -> dict[str, Tensor] | None:
    """The batch of datasets that are plain, by field; None if their samples have not the same shapes and dtypes."""
    shares = []
    for dataset, samples, places in chosen:
        repetitions = [repetition_of(sample) for sample in samples]
        if len(set(zip(samples, repetitions, strict=True))) < len(samples):
            return None  # the dataset warns of equal draws
        shares.append(Share(dataset.reader, dataset._draws(dataset._drawn(samples, repetitions)), places))
    stored = read_together(shares)
    if stored is None:
        return None
    tensors = {}
    for field, values in stored.items():
        normalized = _normalized(chosen, field, torch.from_numpy(values))
        if normalized is None:
            return None
        tensors[field] = normalized
    return tensors


def _normalized(chosen: Sequence[Chosen], field: str, values: Tensor) -> Tensor | None:
    """Stored values as each dataset has them in its items; None if they cannot be normalized in place."""
    first = chosen[0].dataset
    normalizers = [dataset._normalizers.get(field) for dataset, _, _ in chosen]
    if first.config.dtype == "float32" and any(normalizer != normalizers[0] for normalizer in normalizers):
        if values.dtype == torch.float64 or None in normalizers:
            return None
        values = Normalizers().normalized(field, values)
        for (_, _, places), normalizer in zip(chosen, normalizers, strict=True):
            for place in places:
                normalizer.normalize_(values[place])
        squeezed = values.shape[-1] == 1 and not first.config.scalar_axis
        return values.squeeze(-1) if squeezed else values
    shaped: Tensor = first._as_values(field, values)
    return shaped
