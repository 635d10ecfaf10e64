"""Numbers per component of a field, as documents record them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def to_lists(record: object, names: Sequence[str], digits: int) -> dict[str, list[float]]:
    """Arrays of a record as lists of rounded numbers, because further digits depend on the processor."""
    lists = {}
    for name in names:
        lists[name] = [float(f"{value:.{digits}g}") for value in getattr(record, name)]
    return lists


def to_arrays(data: Mapping[str, Any], names: Sequence[str]) -> list[np.ndarray]:
    """Lists of numbers as float64 arrays of one length.

    Raises:
        ValueError: something else is recorded.
        OverflowError: an integer does not fit into float64.
    """
    arrays = []
    for name in names:
        numbers = data.get(name)
        if not isinstance(numbers, list) or not all(type(number) in (int, float) for number in numbers):
            raise ValueError(f"{name} is not a list of numbers")
        arrays.append(np.array(numbers, np.float64))
        if not numbers or len(numbers) != len(arrays[0]):
            raise ValueError(f"{name} has {len(numbers)} numbers; each list must have one per component")
    return arrays
