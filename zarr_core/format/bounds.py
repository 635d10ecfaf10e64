"""Bounds of the error of stored values: what is asked for, and the multiples that values are rounded to.

Values with a bound are rounded to multiples of 1 / scale, which compress to few bits
(:mod:`zarr_core.format.codecs`). A stored value is the multiple as the nearest float32, so all readers decode the same
numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zarr_core.errors import SourceError
from zarr_core.format.codecs import INTEGERS

if TYPE_CHECKING:
    import torch

_STD = "std"
# Integers up to this one, times the scale, are found again from the float32 numbers that they were decoded to.
_MOST = 1 << 22
# Smaller numbers lose digits in float32.
_LEAST_SCALE = 1e-30
# Values that are summed at a time.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class ErrorBound:
    """The largest difference of a stored value and its source that is allowed.

    Attributes:
        number: positive.
        relative: whether it is a multiple of the standard deviation of the sample's field, all components together.
    """

    number: float
    relative: bool

    @classmethod
    def parse(cls, given: object) -> ErrorBound:
        """Read a positive number, or a multiple of the standard deviation, as "1e-3std"; raises SourceError."""
        text = str(given)
        try:
            number = float("nan" if isinstance(given, bool) else text.removesuffix(_STD))
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            reason = "is neither a positive number nor one with std, as 1e-3std"
            raise SourceError(f"error bound {given!r} {reason}")
        return cls(number, text.endswith(_STD))

    def __str__(self) -> str:
        return f"{self.number!r}{_STD if self.relative else ''}"

    def of(self, values: torch.Tensor) -> float:
        """The bound as a number, rounded down to six digits; 0 if the values are constant or not finite."""
        bound = self.number * (_std(values) if self.relative else 1.0)
        if not 0 < bound < math.inf:
            return 0.0
        unit = 10.0 ** (math.floor(math.log10(bound)) - 5)
        rounded = math.floor(bound / unit) * unit
        return rounded if 0 < rounded <= bound else bound


def scale_for(bound: float, largest: float) -> float | None:
    """The scale of values of at most this magnitude; None if only unrounded float32 values keep the bound.

    Half a multiple is less than the bound by the distance of a float32 number to its neighbour, because values are
    rounded to float32 before and after.
    """
    with np.errstate(all="ignore"):
        spacing = float(np.spacing(np.float32(largest)))
        step = 2 * (bound - spacing) * (1 - 1e-6)
        if not step > 0:
            return None
        scale = float(np.nextafter(np.float32(1 / step), np.float32(np.inf)))
    return scale if _LEAST_SCALE < scale < math.inf and largest * scale <= _MOST else None


def integers_for(scale: float | None, largest: float) -> str:
    """The shortest dtype of :data:`INTEGERS` that holds values of at most this magnitude, times the scale."""
    fits = scale is not None and largest * scale < np.iinfo(np.int16).max
    return INTEGERS[0] if fits else INTEGERS[-1]


def to_multiples(values: np.ndarray, scale: float) -> None:
    """Round float32 values to multiples of 1 / scale, in place."""
    integers = np.rint(values * np.float64(scale)).astype(np.float32)
    np.divide(integers, np.float32(scale), out=values)


def _std(values: torch.Tensor) -> float:
    """The standard deviation of all values, in blocks, of float64 numbers."""
    flat = values.detach().reshape(-1)
    blocks = [flat[at : at + _BLOCK] for at in range(0, len(flat), _BLOCK)]
    total = squares = 0.0
    with np.errstate(all="ignore"):
        # NumPy's sum does not depend on the number of threads.
        for block in blocks:
            total += float(block.double().numpy().sum())
        mean = total / len(flat)
        for block in blocks:
            squares += float(np.square(block.double().numpy() - mean).sum())
    return math.sqrt(squares / len(flat))
