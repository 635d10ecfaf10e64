"""Ways to carry out reads, behind one reader and with equal results: ``ENGINES`` says which there are."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from zarr_core.errors import CorruptChunkError, ManifestError, StoreError
from zarr_core.format.array_metadata import MAX_CHUNKS
from zarr_core.points.manifest import SampleEntry
from zarr_core.points.sampling import Draw

ENGINES = ("direct", "zarr", "tensorstore")


class FieldRead(NamedTuple):
    """One field of one sample, and the points of it that are wanted.

    Attributes:
        url, sample_id, field: what it is, for messages.
        entry: the sample as the manifest knows it.
        array_name: the array below the sample's group.
        dim: components per point.
        dtype: stored dtype, as the manifest says.
        domain: domain of the field.
        drawn: the points.
    """

    url: str
    sample_id: str
    field: str
    entry: SampleEntry
    array_name: str
    dim: int
    dtype: str
    domain: str
    drawn: Draw

    @property
    def where(self) -> str:
        """Store, sample and field, for messages."""
        return f"{self.url}, {self.sample_id}, {self.field}"

    @property
    def path(self) -> str:
        """The array below the store's root."""
        return f"{self.entry.relpath}/{self.array_name}"

    @property
    def shape(self) -> tuple[int, int]:
        """Of the result."""
        return self.drawn.num_points, self.dim

    def check_shape(self, shape: tuple[int, ...], chunk_points: int) -> None:
        """Raise ManifestError unless the stored array has the shape and the chunks that the manifest gives it.

        Stores of other writers may have other chunks than their manifest says, within reason.
        """
        grid = self.entry.domains[self.domain]
        expected = (grid.n_points, self.dim)
        if shape != expected:
            raise ManifestError(f"{self.where}: the manifest says {expected}, the array is {shape}")
        n_chunks = -(-shape[0] // chunk_points)
        if n_chunks > MAX_CHUNKS or (self.entry.fingerprint and n_chunks != grid.n_chunks):
            said = f"the manifest says {grid.chunk_points} points a chunk"
            raise ManifestError(f"{self.where}: {said}, the array has {chunk_points}")

    def allocate(self, dtype: np.dtype[Any]) -> np.ndarray:
        """Room for the points, of undefined content; raises StoreError where they do not fit in memory."""
        try:
            return np.empty(self.shape, dtype)
        except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
            raise self.too_large() from error

    def too_large(self) -> StoreError:
        """What to raise where the points do not fit in memory."""
        return StoreError(f"{self.where}: {self.shape[0]} points do not fit in memory; draw fewer (num_points)")

    def missing_array(self) -> ManifestError:
        """What to raise where the group does not hold the array."""
        return ManifestError(f"{self.where}: the manifest names this field but the sample's group does not hold it")

    def points(self) -> str:
        """The span of points, for messages."""
        start, stop = self.drawn.span
        return f"points {start} to {stop}"


class Engine(Protocol):
    """Reads fields. Safe to fork, to pickle and to share between threads."""

    def read(self, reads: Sequence[FieldRead], out: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """The points of each field, (points, dim).

        Args:
            reads: what to read, of any samples.
            out: where the results go: C-contiguous, of the right shape; new arrays of the stored dtype by default.

        Raises:
            ManifestError: a group or array that the manifest names is not there, or is another.
            CorruptChunkError: stored bytes are missing or damaged.
            StoreError: the store cannot be reached.
        """
        ...

    def attributes(self, where: str, entry: SampleEntry) -> dict[str, Any]:
        """Attributes of a sample's group."""
        ...


def check_origin(where: str, entry: SampleEntry, recorded: Mapping[str, Any]) -> None:
    """Raise ManifestError where a group records that it was made from other files than the manifest says."""
    made_from = recorded.get("fingerprint", entry.fingerprint)
    if entry.fingerprint and made_from != entry.fingerprint:
        said = f"the manifest says that {entry.relpath} was made from {entry.fingerprint}"
        raise ManifestError(f"{where}: {said}, the group that it was made from {reprlib.repr(made_from)}")


def missing_group(where: str, entry: SampleEntry) -> ManifestError:
    """What to raise where a sample's group is not there."""
    return ManifestError(f"{where}: the manifest names the group {entry.relpath}, which is not there")


def damaged_group(where: str, entry: SampleEntry, error: Exception) -> CorruptChunkError:
    """What to raise where a sample's metadata is not what it should be."""
    reason = f"{entry.relpath}/zarr.json cannot be read: {type(error).__name__}: {error}"
    return CorruptChunkError(f"{where}: {reason}; convert the sample again")
