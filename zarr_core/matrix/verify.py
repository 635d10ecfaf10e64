"""Verify a matrix: every shard of every kept generation, the metadata, and both copies compared cell by cell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from tqdm import tqdm

from zarr_core._util.documents import parse_json
from zarr_core.errors import CorruptChunkError, ManifestError, StoreError, ZarrCoreError
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.matrix.read.cells import feature_parts, read_copy
from zarr_core.matrix.read.fetch import ChunkFetcher
from zarr_core.matrix.store.axis import load_axis
from zarr_core.matrix.store.claims import announced_rows
from zarr_core.matrix.store.copies import ChunkLayout
from zarr_core.matrix.store.head import HEAD, SHARD
from zarr_core.matrix.store.sample_table import read_table_file
from zarr_core.matrix.store.state import MatrixState
from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import open_objects
from zarr_core.storage.checked import StoredShard
from zarr_core.versioning.archive import documents, generation_name
from zarr_core.versioning.generations import archive_problem, load
from zarr_core.versioning.history import brought_by


@dataclass
class MatrixVerification:
    """Result of :func:`verify_matrix`.

    Attributes:
        generations, samples, shards, chunks, bytes: amount checked; samples are those of the current generation.
        unnamed: shards that no kept generation names, left by writers that died or have not committed yet.
        problems: all damage found, with the commit that added the damaged object; empty if there is none.
    """

    generations: int = 0
    samples: int = 0
    shards: int = 0
    chunks: int = 0
    bytes: int = 0
    unnamed: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def verify_matrix(url: str | os.PathLike[str], *, progress: bool = False) -> MatrixVerification:
    """Check the names of the features, every chunk's checksum, the arrays' metadata, and compare both copies.

    Others may append, retire and collect garbage at the same time: what a collection deletes meanwhile is not damage.

    Args:
        url: location of the matrix.
        progress: show progress bars.

    Returns:
        The report. Damage is listed in it and never raised.

    Raises:
        StoreError, ManifestError: there is no readable head, or it records another number of features than there are.
    """
    storage = Storage(url)
    current = load(storage, HEAD)
    report = MatrixVerification(samples=len(current.rows))
    found = list(_metadata_problems(storage, current))
    shards: dict[str, ChunkLayout] = {}
    for state in _states(storage, current, found):
        report.generations += 1
        shards.update(state.row_copy.shards())
        shards.update(state.column_copy.shards())
    damaged: dict[str, str] = {}
    for name in tqdm(sorted(shards), unit="shard", desc="verify", disable=not progress):
        if problem := _check_shard(storage, shards[name], name, report):
            damaged[name] = problem
    try:
        differences = [] if damaged else list(_differences(storage, current, progress))
    except CorruptChunkError as error:  # since the check of the shards, unless the generation has been collected
        differences = [(generation_name(current.generation), str(error))]
    latest = load(storage, HEAD)
    collected = latest.retention.tombstones
    commits = brought_by(storage, HEAD, damaged) if damaged else {}
    for name, problem in damaged.items():
        found.append((name, f"{name}: {problem}; generation {commits.get(name, '?')} added it"))
    for name, problem in [*found, *differences]:
        if name not in collected:
            report.problems.append(problem)
    checked = shards.keys() | set(HEAD.named(latest))
    for root in HEAD.roots(current):
        for stored in storage.objects(root):
            if SHARD.fullmatch(stored.name) and stored.name not in checked:
                report.unnamed += 1
    return report


def _states(storage: Storage, current: MatrixState, found: list[tuple[str, str]]) -> Iterator[MatrixState]:
    """Every kept state, newest first; adds those that cannot be read to the problems, each with its object."""
    yield current
    for number in sorted(documents(storage), reverse=True):
        if number < current.generation:
            try:
                yield load(storage, HEAD, number)
            except (ManifestError, StoreError) as error:
                found.append((generation_name(number), str(error)))


def _metadata_problems(storage: Storage, state: MatrixState) -> Iterator[tuple[str, str]]:
    """Problems with the objects beside the shards, each with the name of the object."""
    try:
        load_axis(storage, state.axis)
    except ManifestError:
        raise  # a head that claims other features than there are claims other shards, perhaps millions
    except ZarrCoreError as error:
        yield state.axis.path, str(error)
    for kind, table in state.metadata.items():
        try:
            read_table_file(storage, table, kind)
        except CorruptChunkError as error:
            yield table.path, str(error)
    if problem := archive_problem(storage, HEAD, state):
        yield generation_name(state.generation), problem
    for copy in (state.row_copy, state.column_copy) if state.column_blocks else (state.row_copy,):
        for value, layout in copy.layouts.items():
            name = f"{copy.path(value)}/{ZARR_JSON}"
            try:
                data = storage.read(name)
                announced = announced_rows(layout, data)
                if announced is None and parse_json(data) != layout.to_zarr_json():  # the latter by an earlier version
                    yield name, f"{name}: does not describe the array that the head records"
                elif announced is not None and announced < copy.end:
                    rows = f"{announced:,} of {copy.end:,} rows"
                    yield name, f"{name}: other Zarr readers see {rows}; the next append repairs it"
            except (FileNotFoundError, ValueError) as error:
                if not copy.end and isinstance(error, FileNotFoundError):
                    continue  # whoever created the matrix died before this; the first append describes the array
                yield name, f"{name}: other Zarr readers cannot open the array: {type(error).__name__}"


def _check_shard(storage: Storage, layout: ChunkLayout, name: str, report: MatrixVerification) -> str:
    """Check the index and every chunk of a shard; returns the problem, or ""."""
    try:
        shard = StoredShard(storage, name, layout.flat, sparse=True)
        report.shards += 1
        report.chunks += len(shard.chunks)
        report.bytes += shard.size
        for _ in shard.pieces():
            pass
    except FileNotFoundError:
        return "committed but missing"
    except (CorruptChunkError, OSError) as error:
        return str(error)
    return ""


def _differences(storage: Storage, state: MatrixState, progress: bool) -> Iterator[tuple[str, str]]:
    """Cells that differ between the two copies, each with the array of the column-major copy."""
    fetcher = ChunkFetcher(open_objects(storage.root), storage.url)
    blocks = state.column_copy.blocks
    for block in tqdm(blocks, unit="block", desc="compare both copies", disable=not (progress and blocks)):
        members = block.sample_ids
        for value, layout in state.column_copy.layouts.items():
            height, width = layout.shard
            for start in range(0, len(members), width):
                sample_ids = members[start : start + width]
                for first in range(0, layout.shape[0], height):
                    columns = np.arange(first, min(first + height, layout.shape[0]))
                    by_rows = np.empty((len(sample_ids), len(columns)), layout.dtype)
                    by_columns = np.empty_like(by_rows)
                    for copy, out in ((state.row_copy, by_rows), (state.column_copy, by_columns)):
                        read_copy(fetcher, copy, value, sample_ids, feature_parts(copy, value, columns), out)
                    same = (by_rows == by_columns) | (np.isnan(by_rows) & np.isnan(by_columns))
                    if not same.all():
                        row, column = np.argwhere(~same)[0]
                        path = state.column_copy.path(value)
                        where = f"sample {sample_ids[row]!r}, column {columns[column]}"
                        yield path, f"{path}: {where}: differs from the row-major copy"
