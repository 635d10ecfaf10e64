"""Passes epochs to the dataset within ``Subset``, ``ConcatDataset`` and other wrappers, and collects fingerprints."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset

from zarr_core._util.repeated import CountedIndices
from zarr_core.errors import ZarrCoreError


def epoch_setter(dataset: Any) -> DatasetEpochs | None:
    """A function that sets the epoch of a dataset, or of the datasets within it; None if no dataset takes an epoch.

    The epoch goes to the dataset's own ``set_epoch`` if it has one, else through its attributes ``dataset`` and
    ``datasets``. If it cannot reach a dataset held in another attribute, a warning names that dataset.
    """
    reached = _with_epoch(dataset, _wrapped)
    identities = set(map(id, reached))
    for one in _with_epoch(dataset, _held):
        if id(one) not in identities:
            warnings.warn(
                f"epochs do not reach the {type(one).__name__} within {type(dataset).__name__}: its draws cannot be "
                "reproduced. Hold it in an attribute named `dataset`, define set_epoch, or pass on_epoch= and "
                "fingerprint=",
                stacklevel=3,
            )
            break
    return DatasetEpochs(dataset) if reached else None


class DatasetEpochs:
    """Sets the epoch of the datasets within a dataset, and notices if somebody else sets another one."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._showing: list[Any] = []  # the datasets that show their epoch

    def __call__(self, epoch: int) -> None:
        """Set the epoch."""
        reached = _with_epoch(self._dataset, _wrapped)
        for one in reached:
            one.set_epoch(epoch)
        self._showing = [one for one in reached if getattr(one, "epoch", None) == epoch]

    def check_dataset(self, dataset: Any) -> None:
        """Raise ZarrCoreError if a dataset that is read has nothing in common with the one whose epochs are set."""
        read = _reached(dataset, _held)
        in_common = set(map(id, read)).intersection(map(id, _reached(self._dataset, _held)))
        if not in_common and any(map(_takes_epochs, read)):
            raise ZarrCoreError(
                f"the sampler was made of another dataset object than the {type(dataset).__name__} that is read, whose "
                "draws would not follow the epochs; use EpochBatchSampler.of(dataset, ...) with this object"
            )

    def check(self, epoch: int) -> None:
        """Raise ZarrCoreError if a dataset has another epoch than the one that is being iterated over."""
        for one in self._showing:
            if one.epoch != epoch:
                raise ZarrCoreError(
                    f"the epoch of the {type(one).__name__} was set to {one.epoch} while epoch {epoch} was read, which "
                    "changes the draws of its remaining batches. Two samplers cannot share one dataset object, also "
                    "within two parts of a random_split: give one of them a copy.deepcopy, or open the dataset twice"
                )


def draws_of(dataset: Any) -> str:
    """What the points of a dataset, or of the datasets within it, depend on besides the data; "" if that is unknown."""
    own = getattr(dataset, "draws", None)
    return own if isinstance(own, str) else " + ".join(filter(None, map(draws_of, _wrapped(dataset))))


def generations_of(dataset: Any) -> str:
    """Which generations of which stores a dataset, or the datasets within it, read; "" if that is unknown."""
    lineage = getattr(dataset, "lineage", None)
    if isinstance(lineage, Mapping) and "zarr_core.generation" in lineage:
        found = f"generation {lineage['zarr_core.generation']} of {lineage['zarr_core.store']}"
        origin = lineage.get("zarr_core.origin")
        return (
            f"{found}, a copy of generation {lineage['zarr_core.origin_generation']} of {origin}" if origin else found
        )
    return ", ".join(dict.fromkeys(filter(None, map(generations_of, _wrapped(dataset)))))


def fingerprint_of(dataset: Any) -> str:
    """The ``fingerprint`` of a dataset, or of the datasets within it and the chosen indices; "" if there is none."""
    own = getattr(dataset, "fingerprint", None)
    if isinstance(own, str):
        return own
    parts = list(filter(None, map(fingerprint_of, _wrapped(dataset))))
    if parts and isinstance(dataset, Subset):
        indices = np.asarray(dataset.indices, dtype=np.int64)
        parts.append(f"subset {hashlib.blake2b(indices.tobytes(), digest_size=8).hexdigest()}")
    return " + ".join(parts)


def count_repetitions(dataset: Any) -> None:
    """Make the subsets within a dataset pass on which repetition of a sample an index is.

    The indices of a subset are replaced by an equal list. Else a sample that the subset has twice, or that a sampler
    repeats, would have the same points each time.
    """
    for one in datasets_within(dataset):
        if isinstance(one, Subset) and not isinstance(one.indices, CountedIndices):
            one.indices = CountedIndices(one.indices)


def datasets_within(dataset: Any) -> list[Any]:
    """A dataset and those within ``Subset``, ``ConcatDataset`` and other wrappers, each object once."""
    return _reached(dataset, _wrapped)


def fetch_items(dataset: Any, indices: list[int]) -> Any:
    """The items at some indices of a dataset, read together if it can do that."""
    return dataset.__getitems__(indices) if hasattr(dataset, "__getitems__") else [dataset[i] for i in indices]


def _with_epoch(dataset: Any, within: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """The outermost objects that have ``set_epoch``."""

    def below(one: Any) -> Iterable[Any]:
        return () if _takes_epochs(one) else within(one)

    return list(filter(_takes_epochs, _reached(dataset, below)))


def _takes_epochs(dataset: Any) -> bool:
    return callable(getattr(dataset, "set_epoch", None))


def _reached(dataset: Any, below: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """A dataset and all that is below it, each object once."""
    found: dict[int, Any] = {}
    waiting = [dataset]
    while waiting:
        one = waiting.pop()
        if id(one) not in found:
            found[id(one)] = one
            waiting += below(one)
    return list(found.values())


def _wrapped(dataset: Any) -> list[Any]:
    """The datasets that a wrapper names as torch's own wrappers do."""
    return [*_each(getattr(dataset, "dataset", None)), *_each(getattr(dataset, "datasets", None))]


def _held(dataset: Any) -> list[Any]:
    """The datasets in any attribute of a wrapper."""
    return list(chain.from_iterable(map(_each, list(getattr(dataset, "__dict__", {}).values()))))


def _each(attribute: Any) -> list[Any]:
    """The datasets in an attribute: itself, or the elements of a list, tuple or mapping."""
    if isinstance(attribute, Mapping):
        attribute = list(attribute.values())
    elif not isinstance(attribute, (list, tuple)):
        attribute = [attribute]
    return list(filter(_is_dataset, attribute))


def _is_dataset(value: Any) -> bool:
    return isinstance(value, Dataset) or (hasattr(value, "__getitem__") and hasattr(value, "set_epoch"))
