"""What a program reads of every sample: checked once, then applied to one sample after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from zarr_core.errors import UnknownFieldError
from zarr_core.points.read.sampling import Draw
from zarr_core.points.store.manifest import ArrayColumn, SampleEntry, StoreManifest


class Coords(NamedTuple):
    """Positions of a domain that are drawn independently of its fields.

    Attributes:
        name: of the result.
        domain: of the positions.
        num_points: points to draw; None reads all.
        stream: distinguishes the draws from others of the sample.
    """

    name: str
    domain: str
    num_points: int | None
    stream: str


class SelectedColumn(NamedTuple):
    """An array of a sample that is read.

    Attributes:
        name: of the result.
        column: the array.
        domain: of the array.
        stream: columns of one stream have the same points.
    """

    name: str
    column: ArrayColumn
    domain: str
    stream: str


class SelectedColumns(list[SelectedColumn]):
    """The columns of a sample. Samples with the same columns share the object.

    Attributes:
        domains: domain of each stream.
        names: of the results.
    """

    def __init__(self, columns: Iterable[SelectedColumn]) -> None:
        super().__init__(columns)
        self.domains = {column.stream: column.domain for column in self}
        self.names = [column.name for column in self]


class SelectedSample(NamedTuple):
    """What is read of one sample.

    Attributes:
        entry: its entry in the manifest.
        columns: the arrays to read.
        streams: name, points of the sample, points per chunk and points to draw of each stream.
        num_points: points to draw of each stream.
    """

    entry: SampleEntry
    columns: SelectedColumns
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
        # By identity, with the mapping itself: most samples share one mapping of fields.
        self._known: dict[int, tuple[Mapping[str, ArrayColumn], SelectedColumns]] = {}
        self._samples: dict[str, SelectedSample] = {}

    def of(self, manifest: StoreManifest, url: str, sample_id: str) -> SelectedSample:
        """What to read of a sample, remembered for later epochs.

        Raises:
            UnknownFieldError: the store does not hold the sample, or it lacks a field.
        """
        entry = manifest.entry(sample_id, url)
        known = self._samples.get(sample_id)
        if known is not None and known.entry is entry:
            return known
        columns = self.columns(manifest, url, sample_id)
        streams = []
        for stream, domain in columns.domains.items():
            grid = entry.domains[domain]
            wanted = min(self.num_points.get(stream) or grid.n_points, grid.n_points)
            streams.append((stream, grid.n_points, grid.chunk_points, wanted))
        if len(self._samples) >= _MAX_SAMPLES:
            self._samples.clear()
        chosen = SelectedSample(entry, columns, streams, [wanted for *_, wanted in streams])
        self._samples[sample_id] = chosen
        return chosen

    def columns(self, manifest: StoreManifest, url: str, sample_id: str) -> SelectedColumns:
        """The columns of a sample, remembered for others with the same fields.

        Raises:
            UnknownFieldError: the sample lacks a field.
        """
        own = manifest.fields_of(sample_id)
        known = self._known.get(id(own))
        if known is not None and known[0] is own:
            return known[1]
        domains = {name: domain for domain, layout in manifest.domains.items() for name in layout.arrays}
        columns = []
        for name in manifest.fields if self.fields is None else self.fields:
            if name in own:
                columns.append(SelectedColumn(name, own[name], domains[name], domains[name]))
            elif self.fields is not None:
                lacking = sum(name not in manifest.fields_of(other) for other in manifest.samples)
                raise UnknownFieldError(
                    f"{url}, {sample_id}: this sample has no {name}, like {lacking} of the store's "
                    f"{len(manifest.samples)}; read other fields, or other samples"
                )
        if self.coords is not None:
            name, domain, _, stream = self.coords
            columns.append(SelectedColumn(name, own[manifest.domains[domain].position], domain, stream))
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        chosen = SelectedColumns(columns)
        self._known[id(own)] = own, chosen
        return chosen

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": {}, "_samples": {}}


# A manifest whose samples share no mapping of fields is not kept twice.
_MAX_KNOWN = 256
# They take half a kilobyte each.
_MAX_SAMPLES = 1 << 16


#: The points of a sample that lie in memory maps: one or two parts of each column.
Pieces: TypeAlias = Sequence[Sequence[np.ndarray]]


class SampleDraws(NamedTuple):
    """The drawn points of one sample.

    Attributes:
        sample_id: of the sample.
        entry: its entry in the manifest.
        columns: the arrays to read.
        draws: by stream.
        num_points: of each draw.
    """

    sample_id: str
    entry: SampleEntry
    columns: SelectedColumns
    draws: Mapping[str, Draw]
    num_points: list[int]
