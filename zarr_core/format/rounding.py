"""The error that storing a field in another dtype makes, per component: measured while the field is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator

from zarr_core.format.moments import Components, to_lists

# Limits above which a field is refused. Rounding to nearest in float16 makes an RMS error of at most 2**-11 / sqrt(3) =
# 0.00028 of a value, so the first limit is reached when the mean is about 35 to 70 times the standard deviation.
MAX_RMS = 0.01
MAX_ZEROED = 0.01

_NAMES = ("rms", "max", "zeroed")
# Rows are summed side by side: NumPy is many times as fast along an axis of some hundred values as along one of three.
_SIDE_BY_SIDE = 256
# Squares of differences between these are float32 numbers, and so are their sums.
_LEAST, _MOST = 1e-15, 1e15


def _check_range(numbers: np.ndarray) -> np.ndarray:
    if not ((numbers >= 0) & (numbers < 1e300)).all():
        raise ValueError("it holds a number that is negative or not finite")
    return numbers


_Errors = Annotated[Components, AfterValidator(_check_range)]


@dataclass(frozen=True, eq=False)
class RoundingError:
    """Error of the stored values, each array of shape (dim,).

    Attributes:
        rms: root mean square of stored minus source value, divided by the standard deviation of the stored values, or
            of the source's where an error bound made all of them equal.
        max: largest absolute difference, divided by the same.
        zeroed: share of the non-zero source values that are stored as 0.
    """

    rms: _Errors
    max: _Errors
    zeroed: _Errors

    @classmethod
    def none(cls, dim: int) -> RoundingError:
        """Of a field whose dtype is stored without loss."""
        return cls(np.zeros(dim), np.zeros(dim), np.zeros(dim))

    @property
    def lossy(self) -> np.ndarray:
        """Which components exceed a limit."""
        return (self.rms > MAX_RMS) | (self.zeroed > MAX_ZEROED)

    @property
    def largest(self) -> tuple[float, float, float]:
        """Largest RMS error, error and share of any component."""
        return float(self.rms.max()), float(self.max.max()), float(self.zeroed.max())

    def without(self, components: np.ndarray) -> RoundingError:
        """The same with an error of 0 for some components, given as booleans."""
        rms, largest, zeroed = (np.where(components, 0.0, array) for array in (self.rms, self.max, self.zeroed))
        return RoundingError(rms, largest, zeroed)

    def exceeds(self, recorded: RoundingError) -> bool:
        """Whether this error is larger than the recorded one, which is rounded to 4 digits."""
        for name in _NAMES:
            now, then = getattr(self, name), getattr(recorded, name)
            if now.shape != then.shape or (now > then * 1.001 + 1e-12).any():
                return True
        return False

    def describe(self) -> str:
        """The largest error in words."""
        if (self.rms > MAX_RMS).any():
            at = int(np.argmax(self.rms))
            share = f"{100 * self.rms[at]:.3g} %" if np.isfinite(self.rms[at]) else "more than 100 %"
            text = f"an RMS error of {share} of its standard deviation"
        else:
            at = int(np.argmax(self.zeroed))
            text = f"{100 * self.zeroed[at]:.3g} % of its non-zero values become 0"
        return text + (f" (component {at})" if len(self.rms) > 1 else "")

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, rounded to 4 digits."""
        return to_lists(self, _NAMES, 4)


class RoundingAccumulator:
    """Sums the error of a field given in blocks of rows, (n, dim) each."""

    def __init__(self, dim: int) -> None:
        self._rows = 0
        self._squares = np.zeros(_SIDE_BY_SIDE * dim)
        self._largest = np.zeros(_SIDE_BY_SIDE * dim)
        self._zeroed = np.zeros(dim, np.int64)
        self._zeros = np.zeros(dim, np.int64)

    def add(self, stored: np.ndarray, difference: np.ndarray) -> None:
        """Add a block: values after the cast, and those before it minus these; both C-contiguous.

        A difference is not 0 where a value became 0.
        """
        rows, dim = difference.shape
        self._rows += rows
        magnitudes = stored.view(f"u{stored.itemsize}") << 1  # of 0 and -0: 0; faster than stored == 0
        if not magnitudes.min():
            zeros = np.flatnonzero(magnitudes == 0)
            zeroed = zeros[difference.reshape(-1)[zeros] != 0]
            self._zeros += np.bincount(zeros % dim, minlength=dim)
            self._zeroed += np.bincount(zeroed % dim, minlength=dim)
        even = rows - rows % _SIDE_BY_SIDE
        for part in (difference[:even].reshape(-1, _SIDE_BY_SIDE * dim), difference[even:].reshape(1, -1)):
            if part.size:
                width = part.shape[1]
                largest = np.maximum(part.max(axis=0), -part.min(axis=0))
                np.maximum(self._largest[:width], largest, out=self._largest[:width])
                if not _LEAST < largest.max() < _MOST:
                    part = part.astype(np.float64)
                self._squares[:width] += np.einsum("ij,ij->j", part, part)

    @property
    def largest(self) -> float:
        """The largest absolute difference."""
        return float(self._largest.max())

    def result(self, std: np.ndarray) -> RoundingError:
        """The error relative to standard deviations, shape (dim,); infinite where one is 0 but values were changed."""
        squares = self._squares.reshape(_SIDE_BY_SIDE, -1).sum(axis=0)
        differences = self._largest.reshape(_SIDE_BY_SIDE, -1).max(axis=0)
        nonzero = self._rows - self._zeros + self._zeroed
        with np.errstate(divide="ignore", invalid="ignore"):
            rms = np.where(squares > 0, np.sqrt(squares / self._rows) / std, 0.0)
            largest = np.where(differences > 0, differences / std, 0.0)
        return RoundingError(rms, largest, self._zeroed / np.maximum(nonzero, 1))
