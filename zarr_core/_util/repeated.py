"""Indices of samples that occur several times in an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np

from zarr_core.errors import ZarrCoreError


class Repeated(int):
    """An index that occurred in the epoch before.

    A sampler yields it, and a dataset draws other points for it: those of its ``repetition``. It is the same integer
    everywhere else. A number is subtracted from it, as ``ConcatDataset`` does, without losing the repetition.

    Attributes:
        earlier: number of earlier occurrences in the epoch, in this part of a mixture.
        turn: number of the part among those that have samples in common.
        turns: how many of these parts there are.
    """

    earlier: int
    turn: int
    turns: int

    def __new__(cls, index: int, earlier: int = 0, turn: int = 0, turns: int = 1) -> Repeated:
        repeated = super().__new__(cls, index)
        repeated.earlier, repeated.turn, repeated.turns = earlier, turn, turns
        return repeated

    @property
    def repetition(self) -> int:
        """A number of its own for each occurrence in the epoch, in all parts."""
        return self.earlier * self.turns + self.turn

    def __sub__(self, other: int) -> Repeated:
        return Repeated(int(self) - other, self.earlier, self.turn, self.turns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Repeated, (int(self), self.earlier, self.turn, self.turns)


def repetition_of(index: Any) -> int:
    """How often an index occurred in the epoch before; 0 for a plain integer."""
    return index.repetition if type(index) is Repeated else 0


class CountedIndices(list[int]):
    """Indices of a ``Subset``, which may have some of them several times.

    The later ones are repetitions, and so are those of a place of the subset that a sampler repeats.
    """

    def __init__(self, indices: Iterable[int]) -> None:
        given = np.asarray(indices)
        if given.size and (given.dtype.kind not in "iu" or given.ndim != 1):  # a mask is not a list of 0 and 1
            raise ZarrCoreError(
                f"indices of a Subset must be a list of whole numbers, not {given.dtype} of shape {given.shape}; of a "
                "mask, take np.flatnonzero(mask)"
            )
        super().__init__(given.tolist())
        # Of the indices that occur several times, and of their later places.
        self._times: dict[int, int] = {}
        self._earlier: dict[int, int] = {}
        if len(set(self)) == len(self):
            return
        seen: Counter[int] = Counter()
        for place, index in enumerate(self):
            if seen[index]:
                self._earlier[place] = seen[index]
            seen[index] += 1
        self._times = {index: times for index, times in seen.items() if times > 1}

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        if isinstance(place, slice):
            return super().__getitem__(place)
        index = super().__getitem__(place)
        given = place if type(place) is Repeated else Repeated(0)
        earlier = given.earlier * self._times.get(index, 1) + self._earlier.get(range(len(self))[place], 0)
        return Repeated(index, earlier, given.turn, given.turns)
