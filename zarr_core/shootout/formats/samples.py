"""Input of every format: samples as ``.npy`` files, and which of their points to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Runs = Sequence[tuple[int, int]]


class Samples:
    """Arrays of samples whose points are in random order, below ``SAMPLE/FIELD.npy``.

    Attributes:
        folder: where they are.
        ids: the samples.
        fields: of each.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids = sorted(path.name for path in folder.iterdir())
        self.fields = sorted(path.stem for path in (folder / self.ids[0]).iterdir())

    def arrays(self, sample: str) -> dict[str, np.ndarray]:
        """Each field whole, (points, dim)."""
        return {field: np.load(self.folder / sample / f"{field}.npy") for field in self.fields}


@dataclass(frozen=True)
class Draws:
    """Which rows to read.

    Attributes:
        runs: by sample, epoch and domain: one or two half-open ranges of rows.
        num_points: points of a draw by domain; a domain that is not named is read whole.
        chunk_points: that the ranges were made for.
        domains: domain of each field.
    """

    runs: Mapping[str, Sequence[Mapping[str, Runs]]]
    num_points: Mapping[str, int]
    chunk_points: int
    domains: Mapping[str, str]

    @property
    def ids(self) -> list[str]:
        """The samples."""
        return list(self.runs)

    def of(self, sample: str, epoch: int, field: str) -> Runs:
        """The ranges of a field; epochs repeat when there are no more."""
        epochs = self.runs[sample]
        return epochs[epoch % len(epochs)][self.domains[field]]

    def rows(self, array: Any, sample: str, epoch: int, field: str) -> np.ndarray:
        """The rows of a whole array, copied."""
        runs = self.of(sample, epoch, field)
        return np.concatenate([array[first:last] for first, last in runs])

    def cut(self, arrays: Mapping[str, Any], sample: str, epoch: int) -> dict[str, np.ndarray]:
        """The rows of whole fields, copied."""
        return {field: self.rows(array, sample, epoch, field) for field, array in arrays.items()}
