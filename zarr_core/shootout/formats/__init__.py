"""Ways to hold samples and to read them, each with the same methods: this library, and common alternatives.

Samples are sets of points, or rows of a matrix (``matrices.py``). A format of points is given samples whose points are
already in random order, as our stores hold them, so that each may read a draw as a slice. One that cannot read part of
a sample reads all of it. The modules import their packages inside functions, so that a package may be missing, or live
in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: Items of a batch by field: (items, points, dim), or a list of (points, dim) where their numbers of points differ.
Arrays = dict[str, np.ndarray | list[np.ndarray]]


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


class Format:
    """One way to hold samples and to read them.

    Attributes:
        remote: whether it can read from a URL.
        streams: whether it has :meth:`stream` instead of :meth:`read`.
        without_threads: why threads of one process cannot share it; "" if they can.
        requests: objects or byte ranges requested from a URL so far; None if it is not counted.
    """

    remote = True
    streams = False
    without_threads = ""
    requests: int | None = None

    def prepare(self, samples: Any, folder: Path) -> None:
        """Write the samples (of a :class:`~zarr_core.shootout.workload.Workload`) into an empty folder."""
        raise NotImplementedError

    def open(self, place: str | Path, draws: Any) -> None:
        """Get ready to read draws from the prepared folder or a copy of it at a URL, in this process."""
        raise NotImplementedError

    def read(self, sample: str, epoch: int) -> dict[str, np.ndarray]:
        """The drawn points of each field, (points, dim), in memory."""
        return self.read_items([(sample, epoch)])[0]

    def read_items(self, items: Sequence[tuple[str, int]]) -> list[dict[str, np.ndarray]]:
        """Those of several ids of the draws, each with its epoch. A subclass has this or :meth:`read`."""
        return [self.read(sample, epoch) for sample, epoch in items]

    def read_batch(self, items: Sequence[tuple[Any, int]]) -> Arrays:
        """The same as a batch."""
        return stacked(self.read_items(items))

    def stream(self, epoch: int, worker: int, workers: int) -> Iterator[dict[str, np.ndarray]]:
        """The items of an epoch that one of several workers reads, in the order of the format."""
        raise NotImplementedError


def stacked(items: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """Items as a batch."""
    batch: Arrays = {}
    for name in items[0]:
        arrays = [item[name] for item in items]
        shapes = set(map(np.shape, arrays))
        batch[name] = np.stack(arrays) if len(shapes) == 1 else arrays
    return batch
