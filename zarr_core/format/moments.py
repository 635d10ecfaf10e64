"""Mergeable moments per field: computed while a sample is written, merged without reading it again.

Merging follows Chan, Golub and LeVeque (1983): counts, means and sums of squared deviations of two parts give those of
the whole. All arithmetic is float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AfterValidator, Field, StrictFloat
from pydantic.types import GetPydanticSchema

_Record = TypeVar("_Record")
_Numbers = Annotated[list[StrictFloat], Field(min_length=1)]
#: One number per component: a float64 array, and a list in documents.
Components = Annotated[np.ndarray, GetPydanticSchema(lambda _, handler: handler(_Numbers)), AfterValidator(np.array)]
_NAMES = ("mean", "m2", "min", "max", "log_mean", "log_m2")
# Moments are recorded with 12 digits.
_TOLERANCE = 1e-9
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class FieldMoments:
    """Moments of a field's components, each array of shape (dim,).

    Attributes:
        count: points.
        mean, m2: mean and sum of squared deviations from it.
        min, max: extremes.
        log_mean, log_m2: the same of ``sign(x) * log1p(|x|)``.
    """

    count: Annotated[int, Field(strict=True, gt=0, lt=2**63)]
    mean: Components
    m2: Components
    min: Components
    max: Components
    log_mean: Components
    log_m2: Components

    @classmethod
    def of(cls, points: np.ndarray) -> FieldMoments:
        """Moments of the rows of a (n, dim) array, n > 0; extremes are not finite if a value is not."""
        accumulator = MomentsAccumulator()
        accumulator.add(points)
        return accumulator.result()

    def merge(self, other: FieldMoments) -> FieldMoments:
        """Moments of the union of both parts."""
        count = self.count + other.count
        share = other.count / count

        def merged(mean: np.ndarray, m2: np.ndarray, mean2: np.ndarray, m22: np.ndarray) -> tuple[np.ndarray, ...]:
            delta = mean2 - mean
            return mean + delta * share, m2 + m22 + delta**2 * (self.count * share)

        with np.errstate(over="ignore", invalid="ignore"):
            mean, m2 = merged(self.mean, self.m2, other.mean, other.m2)
            log_mean, log_m2 = merged(self.log_mean, self.log_m2, other.log_mean, other.log_m2)
        low, high = np.minimum(self.min, other.min), np.maximum(self.max, other.max)
        return FieldMoments(count, mean, m2, low, high, log_mean, log_m2)

    @property
    def std(self) -> np.ndarray:
        """Sample standard deviation (ddof = 1); 0 for a single point."""
        return np.sqrt(self.m2 / max(self.count - 1, 1))

    @property
    def log_std(self) -> np.ndarray:
        """Sample standard deviation of ``sign(x) * log1p(|x|)``."""
        return np.sqrt(self.log_m2 / max(self.count - 1, 1))

    @property
    def is_finite(self) -> bool:
        """Whether no moment is infinite or NaN. Squares of float64 values above 1e154 are infinite."""
        return all(np.isfinite(getattr(self, name)).all() for name in _NAMES)

    def differing(self, recorded: FieldMoments) -> list[str]:
        """Names of the recorded moments that are not those of the same values, up to rounding.

        A sum of n values of at most ``largest`` has an error of up to n roundings of ``largest``, and the mean one of
        ``error = n * epsilon * largest``. Each deviation from the mean has this error, too: where all values are equal,
        m2 is nothing else.
        """
        if self.count != recorded.count:
            return ["count"]
        found = []
        largest = np.maximum(np.abs(self.min), np.abs(self.max))
        tolerances = {"min": _TOLERANCE * np.abs(self.min), "max": _TOLERANCE * np.abs(self.max)}
        with np.errstate(over="ignore", invalid="ignore"):
            for log, magnitude, std in (("", largest, self.std), ("log_", np.log1p(largest), self.log_std)):
                error = (self.count + 8) * _EPSILON * magnitude  # 8: of the logarithm and of merging
                mean, m2 = getattr(self, f"{log}mean"), getattr(self, f"{log}m2")
                tolerances[f"{log}mean"] = _TOLERANCE * (np.abs(mean) + std) + error
                tolerances[f"{log}m2"] = _TOLERANCE * m2 + 2 * error * np.sqrt(self.count * m2) + self.count * error**2
            for name in _NAMES:
                now, then = getattr(self, name), getattr(recorded, name)
                if now.shape != then.shape or np.any(np.abs(now - then) > tolerances[name]):
                    found.append(name)
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, rounded to 12 digits."""
        return {"count": self.count, **to_lists(self, _NAMES, 12)}


def to_lists(record: object, names: Sequence[str], digits: int) -> dict[str, list[float]]:
    """Arrays of a record as lists of rounded numbers, because further digits depend on the processor."""
    lists = {}
    for name in names:
        lists[name] = [float(f"{value:.{digits}g}") for value in getattr(record, name)]
    return lists


def equally_long(record: _Record) -> _Record:
    """A validator of parsed records: raises ValueError unless all arrays have one number per component."""
    lengths = {len(value) for value in vars(record).values() if isinstance(value, np.ndarray)}
    if len(lengths) > 1:
        raise ValueError(f"its lists have {sorted(lengths)} numbers; each must have one per component")
    return record


class MomentsAccumulator:
    """Moments of an array given in blocks of rows, (n, dim) each, all of one dtype.

    float16 has 65,536 values: counting each is exact, and cheaper than a logarithm per element. Wider types are summed
    in buffers that are reused from block to block; clearing fresh pages would cost more than the arithmetic.
    """

    def __init__(self) -> None:
        self._merged: FieldMoments | None = None
        self._counts: list[np.ndarray] = []
        self._buffers = np.empty((2, 0, 0))

    def add(self, points: np.ndarray) -> None:
        """Add a block of at least one row."""
        if points.dtype == np.float16:
            block = [np.bincount(patterns, minlength=_HALF_PATTERNS) for patterns in points.view(np.uint16).T]
            for counts, further in zip(self._counts, block, strict=False):  # nothing was counted before the first block
                counts += further
            self._counts = self._counts or block
        else:
            moments = self._sum(points)
            self._merged = moments if self._merged is None else self._merged.merge(moments)

    def result(self) -> FieldMoments:
        """Moments of all blocks; at least one must have been added."""
        if self._counts:
            return _of_half_counts(self._counts)
        assert self._merged is not None
        return self._merged

    def _sum(self, points: np.ndarray) -> FieldMoments:
        rows, dim = points.shape
        if self._buffers.shape[1] < dim or self._buffers.shape[2] < rows:
            self._buffers = np.empty((2, dim, rows))
        # One row per component: NumPy is several times as fast along a contiguous axis.
        components, scratch = self._buffers[:, :dim, :rows]
        components[...] = points.T
        low, high = components.min(axis=1), components.max(axis=1)
        with np.errstate(over="ignore", invalid="ignore"):  # the caller finds what is not finite in the result
            mean, m2 = _mean_and_m2(components, scratch)
            # Not by torch: its last bits differ, and a sample that is converted again must get the digits that it has.
            np.log1p(np.abs(components, out=scratch), out=scratch)
            np.copysign(scratch, components, out=components)
            log_mean, log_m2 = _mean_and_m2(components, scratch)
        return FieldMoments(rows, mean, m2, low, high, log_mean, log_m2)


def _mean_and_m2(components: np.ndarray, scratch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = np.einsum("ij->i", components)
    mean = total / components.shape[1]
    squares = np.einsum("ij->i", np.square(components, out=scratch))
    m2 = squares - total * mean
    if (m2 < 1e-3 * squares).any():
        # The mean is much larger than the spread, so the difference loses most digits: use deviations.
        deviations = np.subtract(components, mean[:, None], out=scratch)
        m2 = np.einsum("ij->i", np.square(deviations, out=deviations))
    return mean, m2


_HALF_PATTERNS = 2**16


@cache
def _half_values() -> tuple[np.ndarray, np.ndarray]:
    """Value of every float16 bit pattern as float64, and its ``sign(x) * log1p(|x|)``."""
    values = np.arange(_HALF_PATTERNS, dtype=np.uint16).view(np.float16).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return values, np.copysign(np.log1p(np.abs(values)), values)


def _of_half_counts(counts: list[np.ndarray]) -> FieldMoments:
    """Moments from the counts of the 65,536 float16 bit patterns, one array per component."""
    values, logs = _half_values()
    rows = []
    for component in counts:
        occurring = np.flatnonzero(component > 0)  # twice as fast as component.nonzero()
        value, weights = values[occurring], component[occurring].astype(np.float64)
        rows.append((*_weighted(value, weights), value.min(), value.max(), *_weighted(logs[occurring], weights)))
    return FieldMoments(int(counts[0].sum()), *(np.array(column) for column in zip(*rows, strict=True)))


def _weighted(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Mean and sum of squared deviations of values that occur ``weights`` times."""
    with np.errstate(invalid="ignore"):  # infinities show in the extremes
        mean = np.einsum("i,i->", values, weights) / weights.sum()
        deviations = values - mean
        return mean, np.einsum("i,i->", np.square(deviations, out=deviations), weights)
