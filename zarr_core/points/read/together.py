"""A batch of samples of one store or of several, read straight into its arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from zarr_core.points.read.selection import Pieces, SampleDraws
from zarr_core.storage.local_files import AT_ONCE_BYTES


class Reader(Protocol):
    """What a reader of one store does for a batch."""

    def allocate(self, sample: SampleDraws, items: int) -> list[np.ndarray]:
        """New arrays for the columns of a number of samples."""

    def fill(
        self,
        samples: Sequence[SampleDraws],
        out: Sequence[np.ndarray],
        places: Sequence[int],
        mapped: dict[int, Pieces],
    ) -> bool:
        """Read samples into their places of the array of each column; False if a dtype differs.

        Points that lie in memory maps are not copied, but added to ``mapped``, by place.
        """


class Share(NamedTuple):
    """The samples of one store.

    Attributes:
        reader: of the store.
        samples: the draws of its samples.
        places: their places in the batch.
    """

    reader: Reader
    samples: Sequence[SampleDraws]
    places: Sequence[int]


def read_together(shares: Sequence[Share]) -> dict[str, np.ndarray] | None:
    """Read a batch.

    Returns:
        (samples, points, dim) by name, of the stored dtypes; None if fields, dtypes or numbers of points differ.
    """
    reader, (first, *_), _ = shares[0]
    columns, num_points = first.columns, first.num_points
    alike = {id(columns)}  # most samples of a store have the same object
    items = 0
    for share in shares:
        items += len(share.places)
        for sample in share.samples:
            if sample.num_points != num_points:
                return None
            if id(sample.columns) not in alike:
                if _form(sample) != _form(first):
                    return None
                alike.add(id(sample.columns))
    arrays = reader.allocate(first, items)
    mapped: dict[int, Pieces] = {}
    for share in shares:
        if not share.reader.fill(share.samples, arrays, share.places, mapped):
            return None
    if len(mapped) == items and arrays[0].nbytes * len(arrays) <= AT_ONCE_BYTES:
        join_pieces([mapped[place] for place in range(items)], arrays)  # one call per array for all samples
    else:
        for place, pieces in mapped.items():
            join_pieces([pieces], [array[place] for array in arrays])
    return dict(zip(columns.names, arrays, strict=True))


def _form(sample: SampleDraws) -> list[tuple[str, str, int, str]]:
    """What must be equal for samples to share arrays, besides the numbers of points."""
    return [(name, column.dtype, column.dim, stream) for name, column, _, stream in sample.columns]


def join_pieces(samples: Sequence[Pieces], out: Sequence[np.ndarray]) -> None:
    """Copy the points of samples, in parts for each column, into the array of each column, one after another."""
    for column, array in enumerate(out):
        parts: list[np.ndarray] = []
        for sample in samples:
            parts += sample[column]
        if parts:
            np.concatenate(parts, out=array.reshape(-1, array.shape[-1]))
