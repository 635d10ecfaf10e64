"""Reads a whole sample slab by slab in bounded memory, and tells where its points are in the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from zarr_core._util.arguments import whole_number
from zarr_core._util.documents import expect
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.read.sampling import Draw
from zarr_core.points.read.selection import SampleDraws
from zarr_core.points.store.group import source_points


class ReadSlab(NamedTuple):
    """Consecutive points of one domain of a sample.

    Attributes:
        rows: their places in the stored order.
        values: (points, dim) of the stored dtype by canonical name.
    """

    domain: str
    rows: slice
    sample: SampleDraws
    values: dict[str, np.ndarray]


def read_slabs(
    reader: ZarrChunkReader,
    sample_id: str,
    points: int,
    fields: Iterable[str] | None = None,
    domain: str | None = None,
) -> Iterator[ReadSlab]:
    """Read a sample whole, in stored order, each point once. In memory are a slab and a chunk.

    Args:
        reader, sample_id: what to read.
        points: of a slab, at most; the last one of a domain may have fewer.
        fields: canonical names; all that the sample has by default.
        domain: read this one only; by default one domain after another.

    Raises:
        UnknownFieldError: there is no such sample or field, or no field of the domain is read.
        ZarrCoreError: ``points`` is not a positive integer.
        CorruptChunkError: stored bytes are missing or damaged.
    """
    points = whole_number("points", points, 1)
    whole = reader.draws(reader.selection(None, fields), sample_id)
    if domain is not None and domain not in whole.draws:
        raise UnknownFieldError(
            f"{sample_id}: no field of the domain {domain!r} is read; domains are {', '.join(whole.draws)}"
        )
    return _slabs(reader, whole, points, [*whole.draws] if domain is None else [domain])


def _slabs(reader: ZarrChunkReader, whole: SampleDraws, points: int, domains: Iterable[str]) -> Iterator[ReadSlab]:
    for domain in domains:
        drawn = whole.draws[domain]
        columns = tuple(column for column in whole.columns if column.domain == domain)
        for start in range(0, drawn.num_points, points):
            stop = min(start + points, drawn.num_points)
            draws = {domain: Draw(((start, stop),), drawn.chunk_points)}
            sample = SampleDraws(whole.sample_id, whole.entry, columns, draws, [stop - start])
            (values,) = reader.read_items([sample])
            yield ReadSlab(domain, slice(start, stop), sample, values)


def source_order(reader: ZarrChunkReader, sample_id: str, domain: str) -> np.ndarray:
    """Row in the source of each stored point, (points,) int64: point i is row ``order[i]`` of the source's arrays.

    Raises:
        UnknownFieldError: there is no such sample, or it has no such domain.
        ZarrCoreError: another program wrote the sample and did not record the order.
    """
    recorded = reader.read_attributes(sample_id)
    grids = reader.manifest.samples[sample_id].domains
    if domain not in grids:
        raise UnknownFieldError(f"{sample_id}: no domain {domain!r}; domains are {', '.join(grids)}")
    if "shuffle_seed" not in recorded:
        raise ZarrCoreError(
            f"{sample_id}: the order of its points is not known, because another program wrote this sample; compare "
            "its positions with those of the source"
        )
    seed = expect(int, recorded["shuffle_seed"], "shuffle_seed")
    # A thin copy has the first of the source's points, in the same order.
    in_source = points_in_source(reader, sample_id, domain)
    return shuffle_permutation(seed, sample_id, domain, in_source)[: grids[domain].n_points]


def points_in_source(reader: ZarrChunkReader, sample_id: str, domain: str) -> int:
    """Number of points of a domain of a sample in its source; a thin copy has fewer."""
    stored = reader.manifest.samples[sample_id].domains[domain].n_points
    return source_points(reader.read_attributes(sample_id)).get(domain, stored)
