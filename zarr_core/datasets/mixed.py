"""Several datasets as one, with an exact number of samples of each in every epoch."""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from zarr_core._util.arguments import boolean, check_mapping, whole_number
from zarr_core._util.repeated import Repeated, repetition_of
from zarr_core._util.shared_epoch import SharedEpoch
from zarr_core.datasets.batch import Batch, BatchDataset, BatchItem
from zarr_core.datasets.collation import fields_by_domain
from zarr_core.datasets.items import INDEX, SAMPLE_ID
from zarr_core.datasets.joined import Chosen, JoinedReader
from zarr_core.datasets.shared_samples import with_shared_samples
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.loader.epochs import DatasetEpochs, count_repetitions, datasets_within, fetch_items, fingerprint_of
from zarr_core.loader.permutation import Permutation
from zarr_core.loader.weights import rounded

_PART = "part"
# Places of a pass whose samples are computed together, which costs little more than computing one.
_BLOCK = 1024


class MixedDataset(BatchDataset):
    """Samples of several datasets, as one map-style dataset for ``EpochBatchSampler.of``.

    An epoch has ``counts[name]`` samples of each dataset, in all epochs. Without ``weights`` these are all samples,
    each once. With them, a dataset that has more samples than its count goes on in the next epoch where it stopped:
    its samples occur in passes, each pass in an order of its own, so that none is lost. One that has fewer repeats
    samples, with other points each time. A sample that several datasets have gets other points in each of them. Which
    samples an epoch has depends on seed and epoch alone.

    Until :meth:`set_epoch` is called, which the sampler does, samples of a dataset whose count is not a multiple of its
    size are drawn with torch's random generator, like points.

    Each dataset normalizes with its own statistics. For common ones, give them the same ``statistics``, or one the
    ``normalizers`` of the other, in their configs.

    Args:
        datasets: map-style datasets by name, with items of the same fields. One item of each is read at once, to
            compare them.
        weights: share of each dataset's samples in an epoch, relative to the others: ``{"a": 0.7, "b": 0.3}``.
        size: samples in an epoch; by default as many as the datasets have together.
        seed: seed of the order of passes.
        missing_fields: "raise" an error that names fields that only some of the datasets have, or "mask": items of the
            others have NaN there (0 for integers), and all items have ``<field>_missing``, a bool tensor ().
        with_part: items have ``part``, the number of their dataset in the order of ``datasets``, an int64 tensor.

    Attributes:
        datasets: the datasets by name.
        counts: samples of each in an epoch. Shares of ``size`` are rounded to them, up for the largest remainders.

    Raises:
        ZarrCoreError: an argument is wrong, a dataset gets no sample, or a field has other dtypes or components, or is
            normalized in some of the datasets only.
        UnknownFieldError: a field is missing in some of the datasets.

    Examples:
        >>> dataset = build_dataset({"kind": "point", "root": "store", "split": "train", "num_surface_points": 64})
        >>> MixedDataset({"a": dataset, "b": dataset}, {"a": 0.75, "b": 0.25}, size=8).counts
        {'a': 6, 'b': 2}
    """

    def __init__(
        self,
        datasets: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        *,
        size: int | None = None,
        seed: int = 0,
        missing_fields: Literal["raise", "mask"] = "raise",
        with_part: bool = False,
    ) -> None:
        check_mapping("datasets", datasets, '{"a": a, "b": b}')
        if not datasets:
            raise ZarrCoreError("a mixture needs at least one dataset")
        for name, dataset in datasets.items():
            if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or not len(dataset):
                raise ZarrCoreError(f"{name} must be a map-style dataset with samples, not {reprlib.repr(dataset)}")
        if missing_fields not in ("raise", "mask"):
            raise ZarrCoreError(f'missing_fields must be "raise" or "mask", not {reprlib.repr(missing_fields)}')
        self.datasets = dict(datasets)
        self.seed = whole_number("seed", seed)
        self.counts = _counts({name: len(dataset) for name, dataset in datasets.items()}, weights, size)
        self._parts: list[_Part] = []
        start = 0
        shared = with_shared_samples(self.datasets)
        for name, count in self.counts.items():
            dataset = self.datasets[name]
            turn = (shared.index(name), len(shared)) if name in shared else (0, 1)
            self._parts.append(_Part(name, dataset, len(dataset), start, count, _key(self.seed, name), *turn))
            start += count
        self._stops = list(accumulate(self.counts.values()))
        count_repetitions(self)
        self._with_part = with_part = boolean("with_part", with_part)
        self._masks = _Masks({name: _first_item(one) for name, one in self.datasets.items()}, missing_fields)
        _check_normalizers(self.datasets, self._masks.present)
        self._joined = None if self._masks.needed else JoinedReader.of(list(self.datasets.values()))
        if with_part and not self._masks.present:
            raise ZarrCoreError(f"items are not mappings and take no field {_PART!r}; leave with_part out")
        if with_part and _PART in self._masks.templates:
            raise ZarrCoreError(f"items have a field {_PART!r} already; leave with_part out")
        self._epoch = SharedEpoch()
        self._epochs = [DatasetEpochs(dataset) for dataset in self.datasets.values()]

    def __len__(self) -> int:
        return self._stops[-1]

    def __repr__(self) -> str:
        parts = ", ".join(f"{count:,} of {name}" for name, count in self.counts.items())
        return f"<{type(self).__name__}: {len(self):,} samples per epoch, {parts}>"

    def __getitem__(self, index: int) -> Any:
        return MixedDataset.__getitems__(self, [index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Read a batch: that of each dataset at once. Items are in the order of ``indices``."""
        epoch = self._epoch.value
        if epoch is not None:
            for of_dataset in self._epochs:
                of_dataset.check(epoch)
        chosen: dict[int, Chosen] = {}
        parts, stops, slots = self._parts, self._stops, range(len(self))
        for place, index in enumerate(indices):
            slot = slots[index]
            number = bisect_right(stops, slot)
            part = parts[number]
            share = chosen.get(number)
            if share is None:
                share = chosen[number] = Chosen(part.dataset, [], [])
            share.places.append(place)
            share.samples.append(part.sample(slot, epoch, repetition_of(index)))
        if len(chosen) > 1 and self._joined is not None:
            tensors = self._joined.read(list(chosen.values()))
            if tensors is not None:
                if self._with_part:
                    tensors[_PART] = torch.empty(len(indices), dtype=torch.int64)
                    for number, share in chosen.items():
                        tensors[_PART][share.places] = number
                return Batch(tensors=tensors)
        items: list[Any] = [None] * len(indices)
        for number, share in chosen.items():
            fetched = fetch_items(share.dataset, share.samples)
            if len(chosen) == 1 and not self._with_part and not self._masks.needed:
                return fetched
            for place, item in zip(share.places, fetched, strict=True):
                items[place] = self._completed(number, item)
        return items

    def _completed(self, number: int, item: Any) -> Any:
        """An item of a dataset with what the other datasets have besides."""
        if not isinstance(item, Mapping) or not (self._with_part or self._masks.needed):
            return item
        completed = self._masks.completed(self._parts[number].name, item)
        if self._with_part:
            completed[_PART] = torch.tensor(number)
        if not isinstance(item, BatchItem):
            return completed
        changed = copy(item)  # with its sample id and the way to collate it
        changed.clear()
        changed.update(completed)
        return changed

    @property
    def epoch(self) -> int | None:
        """The epoch of samples and draws; None until :meth:`set_epoch` is called."""
        return self._epoch.value

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of samples and draws, in all datasets and in all DataLoader workers.

        Raises:
            ZarrCoreError: the epoch is not a 64-bit integer.
        """
        self._epoch.set(epoch)
        for of_dataset in self._epochs:
            of_dataset(epoch)

    @property
    def fingerprint(self) -> str:
        """Identifies the data: the fingerprints of all datasets, the samples of each in an epoch, and the seed."""
        parts = []
        for name, dataset in self.datasets.items():
            parts.append(f"{self.counts[name]} of {name} [{fingerprint_of(dataset)}]")
        return f"mixture of {' + '.join(parts)}, seed {self.seed}"

    @property
    def lineage(self) -> dict[str, str]:
        """The data of a training run as tags: those of each dataset, below its name, and those of the mixture."""
        tags = {"zarr_core.fingerprint": self.fingerprint}
        for name, dataset in self.datasets.items():
            tags[f"zarr_core.{name}.samples_per_epoch"] = str(self.counts[name])
            for tag, value in getattr(dataset, "lineage", {}).items():
                tags[f"zarr_core.{name}.{tag.removeprefix('zarr_core.')}"] = value
        return tags


@dataclass(frozen=True)
class _Part:
    """A dataset of a mixture."""

    name: str
    dataset: Any
    size: int
    start: int  # its first place in an epoch
    count: int  # of its places
    key: int  # seed of its passes
    turn: int  # its number among the datasets with samples in common
    turns: int  # how many of them there are

    def sample(self, place: int, epoch: int | None, repetition: int) -> int:
        """The sample at a place of an epoch; its repetitions within the epoch are told apart, also in other parts."""
        slot = place - self.start
        if self.count % self.size == 0:
            passed, sample = divmod(slot, self.size)
        elif epoch is None:
            passed, sample = 0, int(torch.randint(self.size, ()))
        else:
            before = epoch * self.count
            number, offset = divmod(before + slot, self.size)
            passed = number - before // self.size
            sample = _pass(self.size, self.key, number, offset // _BLOCK)[offset % _BLOCK]
        passed += repetition * (-(-self.count // self.size) + 1)  # the most passes that an epoch has places of
        return Repeated(sample, passed, self.turn, self.turns)


class _Masks:
    """The fields that only some datasets have, and what their items get for the others.

    Attributes:
        templates: of each field of any dataset, the values of one item.
        present: fields of each dataset, by its name.
        needed: by field that a dataset lacks, the other fields that have its points.
    """

    def __init__(self, items: Mapping[str, Any], missing_fields: str) -> None:
        """Compare the first items of the datasets."""
        self.templates: dict[str, Any] = {}
        self.present: dict[str, set[str]] = {}
        self.needed: dict[str, list[str]] = {}
        ways = {name: getattr(getattr(item, "collate", None), "way", None) for name, item in items.items()}
        if len(set(ways.values())) > 1:  # a batch is collated as its first item says
            raise ZarrCoreError(f"give all datasets of a mixture one collate, not {ways}")
        if not all(isinstance(item, Mapping) for item in items.values()):
            return
        owners: dict[str, str] = {}
        for name, item in items.items():
            self.present[name] = set(item)
            for field, values in item.items():
                owner = owners.setdefault(field, name)
                template = self.templates.setdefault(field, values)
                _check_alike(field, owner, template, name, values)
        lacking: list[str] = []
        for name, present in self.present.items():
            fields = [field for field in self.templates if field not in present]
            if fields:
                lacking.append(f"{name} has no {', '.join(fields)}")
            for field in fields:
                self.needed[field] = _with_the_points_of(field, items[owners[field]])
        if lacking and missing_fields == "raise":
            shared = [field for field in self.templates if field not in {*self.needed, INDEX, SAMPLE_ID}]
            raise UnknownFieldError(
                f"the datasets of a mixture differ in their fields: {'; '.join(lacking)}. Read what all have, with "
                f"`fields` (of {', '.join(shared)}), or mask the others, with missing_fields='mask'"
            )
        for field in self.needed:
            if not isinstance(self.templates[field], Tensor):
                raise ZarrCoreError(f"{field} of {owners[field]} is not a tensor, so it cannot be masked in the others")

    def completed(self, name: str, item: Mapping[str, Any]) -> dict[str, Any]:
        """An item of a dataset with the fields that it lacks and the masks."""
        if not self.needed:
            return dict(item)
        completed: dict[str, Any] = {}
        for field, template in self.templates.items():
            missing = field not in self.present[name]
            if missing:
                fill = math.nan if template.is_floating_point() else 0
                points = [len(item[other]) for other in self.needed[field] if other in item][:1]
                completed[field] = template.new_full((*points, *template.shape[len(points) :]), fill)
            else:
                completed[field] = item[field]
            if field in self.needed:
                completed[f"{field}_missing"] = torch.tensor(missing)
        return completed


def _with_the_points_of(field: str, item: Mapping[str, Any]) -> list[str]:
    """The other fields of an item that are of the same domain."""
    domains: dict[str, str] = {}
    for domain, names in fields_by_domain(item).items():
        domains |= dict.fromkeys(names, domain)
    domains |= getattr(item, "domains", None) or {}  # which do not name what a transform has added
    if field not in domains:
        return []
    found = []
    for name in item:
        if name != field and domains.get(name) == domains[field] and len(item[name]) == len(item[field]):
            found.append(name)
    return found


def _check_alike(field: str, name: str, values: Any, other: str, others: Any) -> None:
    """Raise ZarrCoreError if a field of two datasets cannot be one tensor. The numbers of points may differ."""
    if not (isinstance(values, Tensor) and isinstance(others, Tensor)):
        return
    if _form(values) != _form(others):
        raise ZarrCoreError(
            f"{field} is {_form(values)} in {name} and {_form(others)} in {other}; give both the same dtype and "
            "scalar_axis, or leave the field out"
        )


def _form(tensor: Tensor) -> str:
    """What items of datasets must have in common, in words."""
    components = f", {tensor.shape[-1]} components" if tensor.ndim > 1 else ""
    return f"{str(tensor.dtype).removeprefix('torch.')}, {tensor.ndim} axes{components}"


def _check_normalizers(datasets: Mapping[str, Any], present: Mapping[str, set[str]]) -> None:
    """Raise ZarrCoreError if a field is normalized in some of the datasets that have it only."""
    normalized: dict[str, set[str]] = {}
    dtypes = {}
    for name, dataset in datasets.items():
        normalized[name] = set()
        for one in datasets_within(dataset):
            fields = getattr(one, "normalizers", None) or ()
            normalized[name].update(fields)
            if fields and hasattr(one, "config"):
                dtypes[name] = one.config.dtype
    if len(set(dtypes.values())) > 1:
        raise ZarrCoreError(
            f'dtype="stored" is not normalized yet, "float32" is: give all datasets one dtype, not {dtypes}'
        )
    for name, fields in normalized.items():
        for field in sorted(fields):
            for other in present:
                if field in present[other] and field not in normalized[other]:
                    raise ZarrCoreError(
                        f"{field} is normalized in {name} and not in {other}: set its normalizer in both, or in none"
                    )


def _counts(sizes: Mapping[str, int], weights: Mapping[str, float] | None, size: int | None) -> dict[str, int]:
    """Samples of each dataset in an epoch."""
    total = sum(sizes.values()) if size is None else whole_number("size", size, 1)
    if weights is not None:
        check_mapping("weights", weights, '{"a": 0.7, "b": 0.3}')
        if weights.keys() != sizes.keys():
            raise ZarrCoreError(f"weights are of {', '.join(weights)}; give one for each of {', '.join(sizes)}")
        for name, weight in weights.items():
            number = isinstance(weight, int | float) and not isinstance(weight, bool)
            if not number or not 0 < weight < math.inf:
                raise ZarrCoreError(f"the weight of {name} is {reprlib.repr(weight)}; weights are positive numbers")
    given = sizes if weights is None else {name: weights[name] for name in sizes}
    whole = sum(given.values())
    shares = np.array([total * (weight / whole) for weight in given.values()])
    counts = dict(zip(given, rounded(shares, total).tolist(), strict=True))
    for name, count in counts.items():
        if not count:
            raise ZarrCoreError(f"an epoch of {total} samples has none of {name}; use a larger size or weight")
    return counts


def _first_item(dataset: Any) -> Any:
    """An item, without a change of what the next one draws."""
    with torch.random.fork_rng(devices=[]):
        return dataset[0]


def _key(seed: int, name: str) -> int:
    text = json.dumps([seed, name]).encode("ascii")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, person=b"zarr_core.mixed").digest(), "little")


@lru_cache(1 << 12)
def _pass(size: int, key: int, number: int, block: int) -> list[int]:
    """Samples at some places of a pass over a dataset."""
    start = block * _BLOCK
    order = Permutation(size, seed=key, epoch=number)
    samples: list[int] = order(np.arange(start, min(start + _BLOCK, size))).tolist()
    return samples
