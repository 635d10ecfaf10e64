"""Engines execute the reads of one reader. All of ``ENGINES`` give equal results."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from zarr_core.errors import CorruptChunkError, ManifestError, StoreError, TransferError
from zarr_core.format.array_metadata import MAX_CHUNK_BYTES, MAX_CHUNKS, MAX_COMPONENTS
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.points.read.sampling import Draw
from zarr_core.points.read.selection import Pieces, SampleDraws
from zarr_core.points.store.manifest import ArrayColumn, SampleEntry
from zarr_core.storage.byte_ranges import Objects
from zarr_core.storage.retries import describe

ENGINES = ("direct", "zarr", "tensorstore")


class OutputMismatchError(StoreError):
    """An output array has another dtype or width than the stored array."""


class FieldRead(NamedTuple):
    """The wanted points of one field of one sample.

    Attributes:
        url, sample_id: store and sample, for messages.
        entry: the sample's entry in the manifest.
        column: the array according to the manifest.
        domain: domain of the field.
        drawn: the points.
    """

    url: str
    sample_id: str
    entry: SampleEntry
    column: ArrayColumn
    domain: str
    drawn: Draw

    @property
    def where(self) -> str:
        """Store, sample and field, for messages."""
        return f"{self.url}, {self.sample_id}, {self.column.field}"

    @property
    def path(self) -> str:
        """Path of the array below the store's root."""
        return f"{self.entry.relpath}/{self.column.array_name}"

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the result according to the manifest."""
        return self.drawn.num_points, self.column.dim

    def check_array(self, shape: tuple[int, ...], chunk_shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Raise ManifestError unless the stored array has the points and the chunks of the manifest, and numbers.

        Stores of other writers may have other chunks than in their manifest, up to ``MAX_CHUNKS`` and
        ``MAX_CHUNK_BYTES``. Dtype and components are those that the manifest records of the sample; if it records
        none, the array's own, because samples of a store may differ in them.
        """
        grid = self.entry.domains[self.domain]
        if len(shape) != 2 or shape[0] != grid.n_points or not 0 < shape[1] <= MAX_COMPONENTS:
            expected = f"({grid.n_points}, 1 to {MAX_COMPONENTS})"
            raise ManifestError(f"{self.where}: the manifest says {expected}, the array is {shape}")
        if self.entry.fields is not None and (dtype.name, shape[1]) != (self.column.dtype, self.column.dim):
            expected = f"({grid.n_points}, {self.column.dim}) of {self.column.dtype}"
            raise ManifestError(f"{self.where}: the manifest says {expected}, the array is {shape} of {dtype}")
        chunk_points, chunk_bytes = chunk_shape[0], math.prod(chunk_shape) * dtype.itemsize
        if dtype.kind not in "fiu" or not 0 < chunk_bytes <= MAX_CHUNK_BYTES:
            limits = f"only numbers are read, in chunks of up to {MAX_CHUNK_BYTES} bytes"
            raise ManifestError(f"{self.where}: a chunk is {chunk_shape} of {dtype}; {limits}")
        n_chunks = -(-shape[0] // chunk_points)
        if n_chunks > MAX_CHUNKS or (self.entry.is_ours and n_chunks != grid.n_chunks):
            expected_chunks = f"the manifest says {grid.chunk_points} points per chunk"
            raise ManifestError(f"{self.where}: {expected_chunks}, the array has {chunk_points}")

    def allocate(self, dtype: np.dtype[Any], dim: int) -> np.ndarray:
        """A new array for the points, with undefined content; raises StoreError if it does not fit in memory."""
        try:
            return np.empty((self.drawn.num_points, dim), dtype)
        except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
            raise self.too_large() from error

    def check_output(self, dtype: np.dtype[Any], dim: int, out: np.ndarray) -> None:
        """Raise OutputMismatchError unless an output array has the dtype and width of the stored one.

        A cast could lose values, and NumPy would repeat a single component.
        """
        if (dtype, dim) != (out.dtype, out.shape[1]):
            stored, wanted = f"{dtype} with {dim} components", f"{out.dtype} with {out.shape[1]}"
            raise OutputMismatchError(f"{self.where}: the array is stored as {stored}, the output is {wanted}")

    def drawn_of(self, points: np.ndarray) -> np.ndarray:
        """The wanted points, from all points of their span."""
        if len(self.drawn.runs) == 1:
            return points
        start = self.drawn.span[0]
        return np.concatenate([points[first - start : last - start] for first, last in self.drawn.runs])

    def too_large(self) -> StoreError:
        """The error for points that do not fit in memory."""
        return StoreError(f"{self.where}: {self.shape[0]} points do not fit in memory; draw fewer (num_points)")

    def missing_array(self) -> ManifestError:
        """The error for a group that does not hold the array."""
        return ManifestError(f"{self.where}: the manifest names this field but the sample's group does not hold it")

    def unreadable(self, reason: object) -> CorruptChunkError:
        """The error for stored bytes that are missing or damaged."""
        start, stop = self.drawn.span
        return CorruptChunkError(
            f"{self.where}: points {start} to {stop} cannot be read: {reason}; convert the sample again with --force"
        )


class Engine(Protocol):
    """Reads fields. Safe to fork, to pickle and to share between threads."""

    def read(self, reads: Sequence[FieldRead], out: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """The points of each field, (points, dim).

        Args:
            reads: reads of any samples.
            out: arrays for the results, C-contiguous, of each read's shape; new arrays of the stored dtype by default.

        Raises:
            OutputMismatchError: an array of ``out`` has another dtype or width than the stored one.
            ManifestError: a group or array that the manifest names is missing, or is another.
            CorruptChunkError: stored bytes are missing or damaged.
            StoreError: the store cannot be reached.
        """
        ...

    def mapped_pieces(self, sample: SampleDraws) -> Pieces | None:
        """Drawn points in memory, if the engine maps files and has verified the chunks.

        For each column its points in parts, one after another, to be copied at once; None if they are to be read.
        """
        return None

    def attributes(self, samples: Sequence[tuple[str, SampleEntry]]) -> list[dict[str, Any]]:
        """Attributes of the groups of samples, each given as its name in messages and its manifest entry."""
        ...

    @property
    def objects(self) -> Objects | None:
        """What the engine reads from, below all caches; None if that is not known."""
        return None


def copied(reads: Sequence[FieldRead], results: list[np.ndarray], out: Sequence[np.ndarray] | None) -> list[np.ndarray]:
    """The results of reads, in the arrays of ``out`` if there are any; raises OutputMismatchError."""
    if out is None:
        return results
    for read, target, points in zip(reads, out, results, strict=True):
        read.check_output(points.dtype, points.shape[1], target)
        target[...] = points
    return list(out)


def check_origin(where: str, entry: SampleEntry, recorded: Mapping[str, Any]) -> None:
    """Raise ManifestError if a group records another source fingerprint than the manifest."""
    fingerprint = recorded.get("fingerprint", entry.fingerprint)
    if entry.is_ours and fingerprint != entry.fingerprint:
        expected = f"the manifest says that {entry.relpath} was made from {entry.fingerprint}"
        raise ManifestError(f"{where}: {expected}, the group says {reprlib.repr(fingerprint)}")


def missing_group(where: str, entry: SampleEntry) -> ManifestError:
    """The error for a sample whose group is missing."""
    return ManifestError(f"{where}: the manifest names the group {entry.relpath}, which is missing")


def damaged_group(where: str, entry: SampleEntry, error: Exception) -> CorruptChunkError:
    """The error for a sample whose metadata is damaged."""
    reason = f"{entry.relpath}/{ZARR_JSON} cannot be read: {type(error).__name__}: {error}"
    return CorruptChunkError(f"{where}: {reason}; convert the sample again with --force")


def fetch_failure(where: str, request: str, error: Exception) -> StoreError:
    """The error for bytes that could not be fetched."""
    cause = str(error) if isinstance(error, TransferError) else describe(error)
    return StoreError(f"{where}: {request} cannot be fetched: {cause}")
