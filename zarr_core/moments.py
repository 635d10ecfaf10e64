"""Per-field moments that merge: taken while a sample is written, added up without reading it again.

Merging follows Chan, Golub and LeVeque: counts, means and sums of squared deviations of two parts give those of the
whole. Everything is float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class FieldMoments:
    """Moments of a field's components, each array of shape (dim,).

    Attributes:
        count: points.
        mean, m2: mean and sum of squared deviations from it.
        min, max: extremes.
        log_mean, log_m2: the same of ``sign(x) * log1p(|x|)``.
    """

    count: int
    mean: np.ndarray
    m2: np.ndarray
    min: np.ndarray
    max: np.ndarray
    log_mean: np.ndarray
    log_m2: np.ndarray

    @classmethod
    def of(cls, points: np.ndarray) -> FieldMoments:
        """Moments of the rows of a (n, dim) array, n > 0; extremes that are not finite where a value is not."""
        accumulator = MomentsAccumulator()
        accumulator.add(points)
        return accumulator.result()

    def merge(self, other: FieldMoments) -> FieldMoments:
        """Moments of both parts together."""
        count = self.count + other.count
        share = other.count / count

        def merged(mean: np.ndarray, m2: np.ndarray, mean2: np.ndarray, m22: np.ndarray) -> tuple[np.ndarray, ...]:
            delta = mean2 - mean
            return mean + delta * share, m2 + m22 + delta**2 * (self.count * share)

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

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, rounded to 12 digits: beyond them the last bits depend on the processor that summed."""
        arrays = ("mean", "m2", "min", "max", "log_mean", "log_m2")
        return {"count": self.count} | {name: [float(f"{v:.12g}") for v in getattr(self, name)] for name in arrays}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FieldMoments:
        """What :meth:`to_json` wrote."""
        arrays = ("mean", "m2", "min", "max", "log_mean", "log_m2")
        return cls(int(data["count"]), *(np.asarray(data[name], np.float64) for name in arrays))


class MomentsAccumulator:
    """Moments of an array that is seen in blocks of rows, (n, dim) each.

    Works in buffers of its own: fresh ones for every block would cost more, in pages that the kernel has to clear, than
    all the arithmetic.
    """

    def __init__(self) -> None:
        self._merged: FieldMoments | None = None
        self._buffers = np.empty((2, 0, 0))

    def add(self, points: np.ndarray) -> None:
        """Take in a block; it must not be empty."""
        rows, dim = points.shape
        if self._buffers.shape[1] < dim or self._buffers.shape[2] < rows:
            self._buffers = np.empty((2, dim, rows))
        components, scratch = self._buffers[:, :dim, :rows]
        # One row a component: NumPy sums along a contiguous axis several times as fast, and in pairs.
        components[...] = points.T
        low, high = components.min(axis=1), components.max(axis=1)
        with np.errstate(invalid="ignore"):  # infinities: the extremes tell
            mean, m2 = _mean_and_m2(components, scratch)
            logs = np.log1p(np.abs(components, out=scratch), out=scratch)
            np.copysign(logs, components, out=components)
            log_mean, log_m2 = _mean_and_m2(components, scratch)
        block = FieldMoments(rows, mean, m2, low, high, log_mean, log_m2)
        self._merged = block if self._merged is None else self._merged.merge(block)

    def result(self) -> FieldMoments:
        """Moments of all blocks together; there must have been one."""
        assert self._merged is not None
        return self._merged


def _mean_and_m2(components: np.ndarray, scratch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = components.mean(axis=1)
    deviations = np.subtract(components, mean[:, None], out=scratch)
    return mean, np.square(deviations, out=deviations).sum(axis=1)
