"""How often each sample occurs in an epoch, in proportion to its weight.

Systematic sampling (Madow 1949): the shares of the samples are laid end to end, and the samples are taken in which the
points u, u + 1, u + 2, ... lie, for a random u of [0, 1). A share of 2.3 then contains two or three points, 2.3 on
average. Samples of equal weight, or of one class, lie beside each other in a random order, so that together they occur
as often as their shares say, up to one.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zarr_core.errors import ZarrCoreError
from zarr_core.loader.permutation import Permutation

# Shares are whole multiples of 1 / _UNITS. Sums of integers are exact: a share of 1 is one occurrence in every epoch.
_UNITS = 1 << 20
_MAX_SIZE = 1 << 31


class SampleWeights:
    """The shares of the samples in an epoch of as many samples as there are.

    Args:
        shares: occurrences of each sample in an epoch, on average.
        groups: number of each sample's group. Those of a group together occur as often as their shares say, up to one.

    Attributes:
        digest: identifies both.
    """

    def __init__(self, shares: np.ndarray, groups: np.ndarray) -> None:
        self._units = rounded(shares * _UNITS, len(shares) * _UNITS)
        self._groups = groups
        content = self._units.tobytes() + groups.tobytes()
        self.digest = hashlib.blake2b(content, digest_size=8).hexdigest()

    @classmethod
    def of(cls, size: int, weights: Any, classes: Sequence[Any] | None) -> SampleWeights | None:
        """Check the arguments of a sampler; None if there are neither weights nor classes.

        Args:
            size: number of samples.
            weights: a number per sample, at least 0.
            classes: a label per sample. All classes occur equally often, and so do the samples of a class.

        Raises:
            ZarrCoreError: both are given, or they are not one per sample, or a weight is negative or not finite.
        """
        if weights is None and classes is None:
            return None
        if weights is not None and classes is not None:
            raise ZarrCoreError("weights and classes both say how often samples occur; give one of them")
        if size > _MAX_SIZE:
            raise ZarrCoreError(f"weights are for at most {_MAX_SIZE:,} samples, not {size:,}")
        if classes is not None:
            if isinstance(classes, Mapping):
                raise ZarrCoreError("classes must be a sequence of labels in the order of the samples, not a mapping")
            _check_length("classes", len(classes), size)
            labels = list(map(_plain, classes))
            for sample, label in enumerate(labels):
                if isinstance(label, float) and math.isnan(label):  # each would be a class of its own
                    raise ZarrCoreError(
                        f"the class of sample {sample} is {label}; give it a label, or leave it out with a Subset"
                    )
            numbers: dict[Any, int] = {}
            groups = np.array([numbers.setdefault(label, len(numbers)) for label in labels])
            chosen = 1 / np.bincount(groups)[groups]
        else:
            chosen = _numbers(weights)
            _check_length("weights", len(chosen), size)
            groups = np.unique(chosen, return_inverse=True)[1]
        # Divided by the largest weight first: a sum of the numbers themselves may be infinite.
        relative = chosen / chosen.max()
        return cls(relative * (size / relative.sum()), groups)

    def __len__(self) -> int:
        return len(self._units)

    def epoch(self, seed: int, epoch: int) -> Occurrences:
        """The occurrences in an epoch, a function of seed and epoch."""
        key = json.dumps([seed, epoch], separators=(",", ":")).encode("ascii")
        digest = hashlib.blake2b(key, digest_size=16, person=b"zarr_core.weight").digest()
        size = len(self)
        mixed = Permutation(size, seed=int.from_bytes(digest[:8], "little"))(np.arange(size))
        order = mixed[np.argsort(self._groups[mixed], kind="stable")]
        start = int.from_bytes(digest[8:], "little") % _UNITS
        stops = (np.cumsum(self._units[order]) + start) // _UNITS
        counts = np.empty(size, np.int64)
        counts[order] = np.diff(stops, prepend=0)
        return Occurrences(counts)


class Occurrences:
    """The places of an epoch, in the order of the dataset: each sample has as many as it occurs.

    Attributes:
        counts: occurrences of each sample.
    """

    def __init__(self, counts: np.ndarray) -> None:
        self.counts = counts
        self._stops = np.cumsum(counts)

    def at(self, places: np.ndarray, rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sample at each place, and how often it occurred before: at earlier places, and in earlier rounds."""
        samples = np.searchsorted(self._stops, places, side="right")
        first = self._stops[samples] - self.counts[samples]
        return samples, places - first + rounds * self.counts[samples]


def rounded(shares: np.ndarray, total: int) -> np.ndarray:
    """Shares as whole numbers, int64, that add up to a total: rounded up for the largest remainders."""
    whole: np.ndarray = np.floor(shares).astype(np.int64)
    largest = np.argsort(whole - shares, kind="stable")[: total - int(whole.sum())]
    whole[largest] += 1
    return whole


def _numbers(weights: Any) -> np.ndarray:
    try:
        numbers = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ZarrCoreError(f"weights must be a number per sample: {error}") from None
    if numbers.ndim != 1:
        raise ZarrCoreError(f"weights must be a number per sample, not an array of shape {numbers.shape}")
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(wrong):
        raise ZarrCoreError(
            f"the weight of sample {wrong[0]} is {numbers[wrong[0]]}; weights are finite and at least 0"
        )
    if len(numbers) and not numbers.any():
        raise ZarrCoreError("all weights are 0; at least one sample must have a weight")
    return numbers


def _check_length(name: str, given: int, size: int) -> None:
    if given != size:
        raise ZarrCoreError(f"{name} has {given:,} values; the dataset has {size:,} samples, give one per sample")


def _plain(label: Any) -> Any:
    """A label that compares by value: elements of a tensor do not."""
    try:
        plain = label.item() if hasattr(label, "item") else label
        hash(plain)
    except (TypeError, ValueError, RuntimeError):
        raise ZarrCoreError(f"a class is one label, such as a number or a text, not {reprlib.repr(label)}") from None
    return plain
