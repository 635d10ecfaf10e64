"""What a mixture of point datasets reads together, straight into its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Subset

from zarr_core._util.repeated import repetition_of
from zarr_core.datasets.normalizers import Normalizers
from zarr_core.datasets.points import ZarrPointDataset
from zarr_core.points.read.selection import Share, read_together


class Chosen(NamedTuple):
    """The samples of one dataset in a batch, and their places in it."""

    dataset: Any
    samples: list[int]
    places: list[int]


class JoinedReader:
    """Reads batches of several plain datasets, or of ``Subset``s of them, at once."""

    def __init__(self, datasets: Sequence[ZarrPointDataset]) -> None:
        """The datasets are plain: :meth:`of` says what that is."""
        self._first = datasets[0]
        # Fields of which the datasets have other statistics.
        self._apart: set[str] = set()
        if self._first.config.dtype == "float32":
            first = self._first._normalizers
            for dataset in datasets:
                own = dataset._normalizers
                for field in {*first, *own}:
                    if own.get(field) != first.get(field):
                        self._apart.add(field)

    @classmethod
    def of(cls, datasets: Sequence[Any]) -> JoinedReader | None:
        """The reader, if the items of all datasets are their fields and nothing else, in the same form; else None."""
        forms, plain = set(), []
        for given in datasets:
            dataset, _ = _within_subsets(given, [])
            if not isinstance(dataset, ZarrPointDataset):
                return None
            # A subclass, or an option that adds to items or changes them, is left to the dataset itself.
            item, items = type(dataset).__getitem__, type(dataset).__getitems__
            if item is not ZarrPointDataset.__getitem__ or items is not ZarrPointDataset.__getitems__:
                return None
            config = dataset.config
            if config.parameters or config.item or config.with_index or config.with_sample_id or config.collate:
                return None
            if config.transform or config.batch_transform:
                return None
            forms.add((config.dtype, config.scalar_axis))
            plain.append(dataset)
        return cls(plain) if len(forms) == 1 else None

    def read(self, chosen: Sequence[Chosen]) -> dict[str, Tensor] | None:
        """The batch, by field; None if its samples differ in shapes or dtypes."""
        shares: list[Share] = []
        parts: list[tuple[Normalizers, list[int]]] = []  # of each dataset, with its places
        for given, indices, places in chosen:
            dataset, samples = _within_subsets(given, indices)
            parts.append((dataset._normalizers, places))
            repetitions = [repetition_of(sample) for sample in samples]
            if len(set(zip(samples, repetitions, strict=True))) < len(samples):
                return None  # the dataset warns of equal draws
            shares.append(Share(dataset.reader, dataset._draws(dataset._drawn(samples, repetitions)), places))
        stored = read_together(shares)
        if stored is None:
            return None
        tensors = {}
        for field, values in stored.items():
            tensor = torch.from_numpy(values)
            if field not in self._apart:
                tensors[field] = self._first._as_values(field, tensor)
                continue
            normalized = self._normalized(parts, field, tensor)
            if normalized is None:
                return None
            tensors[field] = normalized
        return tensors

    def _normalized(self, parts: Sequence[tuple[Normalizers, list[int]]], field: str, values: Tensor) -> Tensor | None:
        """Stored values, normalized by the statistics of each dataset; None if that cannot be done in place."""
        if values.dtype == torch.float64 or not all(field in normalizers for normalizers, _ in parts):
            return None
        values = Normalizers().normalized(field, values)
        for normalizers, places in parts:
            for place in places:
                normalizers[field].normalize_(values[place])
        squeezed = values.shape[-1] == 1 and not self._first.config.scalar_axis
        return values.squeeze(-1) if squeezed else values


def _within_subsets(dataset: Any, samples: list[int]) -> tuple[Any, list[int]]:
    """The dataset that this one is a ``Subset`` of, and the same samples there; itself if it is not a subset."""
    while type(dataset) is Subset:
        samples = [dataset.indices[sample] for sample in samples]
        dataset = dataset.dataset
    return dataset, samples
