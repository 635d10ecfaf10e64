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

    def within_subsets(self) -> Chosen:
        """The same samples of the dataset that this one is a ``Subset`` of, if it is one."""
        dataset, samples, places = self
        while type(dataset) is Subset:
            samples = [dataset.indices[sample] for sample in samples]
            dataset = dataset.dataset
        return Chosen(dataset, samples, places)


class JoinedReader:
    """Reads batches of several plain datasets, or of ``Subset``s of them, at once."""

    def __init__(self, datasets: Sequence[ZarrPointDataset]) -> None:
        """The datasets are plain: :meth:`of` says what that is."""
        self._first = datasets[0]
        # Fields of which the datasets have other statistics.
        self._apart: set[str] = set()
        if self._first.config.dtype == "float32":
            for field in {field for dataset in datasets for field in dataset._normalizers}:
                if any(dataset._normalizers.get(field) != self._first._normalizers.get(field) for dataset in datasets):
                    self._apart.add(field)

    @classmethod
    def of(cls, datasets: Sequence[Any]) -> JoinedReader | None:
        """The reader, if the items of all datasets are their fields and nothing else, in the same form; else None."""
        datasets = [Chosen(dataset, [], []).within_subsets().dataset for dataset in datasets]
        forms = set()
        for dataset in datasets:
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
        return cls(datasets) if len(forms) == 1 else None

    def read(self, chosen: Sequence[Chosen]) -> dict[str, Tensor] | None:
        """The batch, by field; None if its samples have not the same shapes and dtypes."""
        chosen = [each.within_subsets() for each in chosen]
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
            tensor = torch.from_numpy(values)
            if field not in self._apart:
                tensors[field] = self._first._as_values(field, tensor)
                continue
            normalized = self._normalized(chosen, field, tensor)
            if normalized is None:
                return None
            tensors[field] = normalized
        return tensors

    def _normalized(self, chosen: Sequence[Chosen], field: str, values: Tensor) -> Tensor | None:
        """Stored values, normalized by the statistics of each dataset; None if that cannot be done in place."""
        normalizers = [dataset._normalizers.get(field) for dataset, _, _ in chosen]
        if values.dtype == torch.float64 or None in normalizers:
            return None
        values = Normalizers().normalized(field, values)
        for (_, _, places), normalizer in zip(chosen, normalizers, strict=True):
            for place in places:
                normalizer.normalize_(values[place])
        squeezed = values.shape[-1] == 1 and not self._first.config.scalar_axis
        return values.squeeze(-1) if squeezed else values
