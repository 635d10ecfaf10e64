"""Input of every rival: samples as ``.npy`` files, and the draws to read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


class Samples:
    """Arrays of samples whose points are in random order, below ``SAMPLE/FIELD.npy``.

    Attributes:
        folder: where they are.
        store: the store of the same rows.
        ids: the samples.
        fields: of each.
    """

    def __init__(self, folder: Path, store: Path) -> None:
        self.folder, self.store = folder, store
        self.ids = sorted(path.name for path in folder.iterdir())
        self.fields = sorted(path.stem for path in (folder / self.ids[0]).iterdir())

    def arrays(self, sample: str) -> dict[str, np.ndarray]:
        """Each field whole, (points, dim)."""
        return {field: np.load(self.folder / sample / f"{field}.npy") for field in self.fields}


class Draws:
    """Which rows are drawn.

    Attributes:
        runs: by sample and epoch, one or two half-open ranges of rows.
        num_points: in a draw.
        chunk_points: that the window was made for.
    """

    def __init__(self, runs: dict[str, list[tuple[tuple[int, int], ...]]], num_points: int, chunk_points: int) -> None:
        self.runs, self.num_points, self.chunk_points = runs, num_points, chunk_points

    @classmethod
    def load(cls, path: Path) -> Draws:
        """What :meth:`save` wrote."""
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        """Write them as JSON."""
        path.write_text(json.dumps(vars(self)))

    def rows(self, array: np.ndarray, sample: str, epoch: int) -> np.ndarray:
        """The drawn rows of a whole array, copied."""
        return np.concatenate([array[first:last] for first, last in self.runs[sample][epoch]])
