"""Samples that several datasets of a mixture have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from zarr_core.datasets.points import ZarrPointDataset


def with_shared_samples(datasets: Mapping[str, Any]) -> list[str]:
    """Names of the datasets that have a sample which another one of them has, too."""
    samples = {name: set(_samples_of(dataset)) for name, dataset in datasets.items()}
    times = Counter(chain.from_iterable(samples.values()))
    shared = {sample for sample, number in times.items() if number > 1}
    return [name for name, own in samples.items() if not shared.isdisjoint(own)]


def _samples_of(dataset: Any) -> Sequence[Hashable]:
    """What each index of a dataset stands for: a sample of a store or of its copy, or an index of an object."""
    if isinstance(dataset, Subset):
        within = _samples_of(dataset.dataset)
        return [within[index] for index in dataset.indices]
    if isinstance(dataset, ConcatDataset):
        return list(chain.from_iterable(map(_samples_of, dataset.datasets)))
    if isinstance(dataset, ZarrPointDataset):
        entries, root = dataset.reader.manifest.samples, dataset.reader.root
        # Samples of other programs have no fingerprint.
        return [(sample_id, entries[sample_id].fingerprint or root) for sample_id in dataset.sample_ids]
    return [(id(dataset), index) for index in range(len(dataset))]
