"""What a program reads of every sample, checked once and applied to one after another; and batches of their draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from zarr_core.errors import UnknownFieldError
from zarr_core.points.read.sampling import Draw
from zarr_core.points.store.manifest import ArrayColumn, SampleEntry, StoreManifest
from zarr_core.storage.local_files import AT_ONCE_BYTES

# Samples that a selection remembers; they take half a kilobyte each.
_MAX_SAMPLES = 1 << 16


class Coords(NamedTuple):
    """Positions of a domain that are drawn independently of its fields.

    Attributes:
        name: of the result.
        num_points: points to draw; None reads all.
        stream: distinguishes the draws from others of the sample.
    """

    name: str
    domain: str
    num_points: int | None
    stream: str


class SelectedColumn(NamedTuple):
    """An array that is read, and the name of the result. Columns of one stream have the same points."""

    name: str
    column: ArrayColumn
    domain: str
    stream: str


class SelectedSample(NamedTuple):
    """What is read of one sample. Samples with equal columns share the tuple of them.

    Attributes:
        streams: name, points of the sample, points per chunk and points to draw of each stream.
        num_points: points to draw of each stream.
    """

    entry: SampleEntry
    columns: tuple[SelectedColumn, ...]
    streams: list[tuple[str, int, int, int]]
    num_points: list[int]


class Selection:
    """Fields and numbers of points, made by :meth:`zarr_core.points.read.reader.ZarrChunkReader.selection`.

    Attributes:
        fields: canonical names; None: all that a sample has.
        num_points: points to draw by stream; a stream that is absent or None is read whole.
        coords: positions to read besides.
    """

    def __init__(
        self, fields: Sequence[str] | None, num_points: Mapping[str, int | None], coords: Coords | None = None
    ) -> None:
        self.fields, self.coords = fields, coords
        self.num_points = dict(num_points)
        if coords is not None:
            self.num_points[coords.stream] = coords.num_points
        self._samples: dict[str, SelectedSample] = {}
        self._shared: dict[tuple[SelectedColumn, ...], tuple[SelectedColumn, ...]] = {}

    def of(self, manifest: StoreManifest, url: str, sample_id: str) -> SelectedSample:
        """What to read of a sample, remembered for later epochs.

        Raises:
            UnknownFieldError: the store does not hold the sample, or it lacks a field.
        """
        entry = manifest.entry(sample_id, url)
        known = self._samples.get(sample_id)
        if known is not None and known.entry is entry:
            return known
        if len(self._samples) >= _MAX_SAMPLES:
            self._samples.clear()
            self._shared.clear()
        columns = tuple(self._columns(manifest, url, sample_id))
        columns = self._shared.setdefault(columns, columns)
        streams = []
        for stream, domain in {column.stream: column.domain for column in columns}.items():
            grid = entry.domains[domain]
            wanted = min(self.num_points.get(stream) or grid.n_points, grid.n_points)
            streams.append((stream, grid.n_points, grid.chunk_points, wanted))
        chosen = SelectedSample(entry, columns, streams, [wanted for *_, wanted in streams])
        self._samples[sample_id] = chosen
        return chosen

    def _columns(self, manifest: StoreManifest, url: str, sample_id: str) -> Iterator[SelectedColumn]:
        """The columns of a sample; raises UnknownFieldError if it lacks one."""
        own = manifest.fields_of(sample_id)
        domains = {name: domain for domain, layout in manifest.domains.items() for name in layout.arrays}
        for name in manifest.fields if self.fields is None else self.fields:
            if name in own:
                yield SelectedColumn(name, own[name], domains[name], domains[name])
            elif self.fields is not None:
                lacking = sum(name not in manifest.fields_of(other) for other in manifest.samples)
                raise UnknownFieldError(
                    f"{url}, {sample_id}: this sample has no {name}, like {lacking} of the store's "
                    f"{len(manifest.samples)}; read other fields, or other samples"
                )
        if self.coords is not None:
            name, domain, _, stream = self.coords
            yield SelectedColumn(name, own[manifest.domains[domain].position], domain, stream)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_samples": {}, "_shared": {}}


#: The points of a sample that lie in memory maps: one or two parts of each column.
Pieces: TypeAlias = Sequence[Sequence[np.ndarray]]


class SampleDraws(NamedTuple):
    """The drawn points of one sample: a draw for each stream of its columns, and the number of points of each draw."""

    sample_id: str
    entry: SampleEntry
    columns: tuple[SelectedColumn, ...]
    draws: Mapping[str, Draw]
    num_points: list[int]

    @property
    def names(self) -> list[str]:
        """Names of the results."""
        return [column.name for column in self.columns]


class Reader(Protocol):
    """The methods of :class:`zarr_core.points.read.reader.ZarrChunkReader` that read a batch."""

    def allocate(self, sample: SampleDraws, items: int) -> list[np.ndarray]:
        """New arrays (items, points, dim), one per column of the sample; raises StoreError if memory is short."""

    def fill(
        self,
        samples: Sequence[SampleDraws],
        out: Sequence[np.ndarray],
        places: Sequence[int],
        mapped: dict[int, Pieces],
    ) -> bool:
        """Read samples into their places of the array of each column; False if a dtype differs."""


class Share(NamedTuple):
    """The samples of one store, and their places in a batch."""

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
    return dict(zip(first.names, arrays, strict=True))


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
