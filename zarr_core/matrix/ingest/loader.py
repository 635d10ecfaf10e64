"""Read samples of a warehouse as a wide array. Samples that the matrix lacks are loaded first, once for all users.

Batches are loaded whole, so later reads of other samples of a batch cost nothing: a warehouse scans whole partitions
anyway, and a matrix keeps each batch in shards of its own. Samples that join a batch after it was loaded are appended
as a batch named "<batch>@<digest of the samples>".
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal, overload

import numpy as np

from zarr_core._util.arguments import check_names
from zarr_core._util.commands import shell
from zarr_core._util.units import format_size
from zarr_core.errors import BatchError, MatrixError, UnknownFieldError, WarehouseError
from zarr_core.matrix.ingest.append import MOST_NAMED
from zarr_core.matrix.ingest.audit import check_unchanged
from zarr_core.matrix.ingest.leases import Leases
from zarr_core.matrix.ingest.scatter import WideBlock, scatter
from zarr_core.matrix.store.batch_names import among, home_of, later_part, outside
from zarr_core.matrix.wide import WideMatrix
from zarr_core.warehouses.protocol import Cost, Unloaded, Versioned, Warehouse

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IngestedBatch:
    """A batch that was loaded into the matrix.

    Attributes:
        batch_id: id of the batch in the warehouse.
        sample_ids: samples that were appended.
        rows: number of unloaded rows by value; each row has a cell of its own.
        without_value: number of rows without a value, by value.
        cells: number of cells of each value's table, including cells without a row.
        source: the state of the warehouse that the batch came from.
        seconds: time for unloading, scattering and appending.
    """

    batch_id: str
    sample_ids: tuple[str, ...]
    rows: Mapping[str, int]
    without_value: Mapping[str, int]
    cells: int
    source: Mapping[str, str]
    seconds: float


@dataclass(frozen=True)
class Ingested:
    """Result of one load.

    Attributes:
        batches: batches that this call loaded; other loaders may have loaded the rest.
        cost: cost of the warehouse's queries.
        retired: samples of the warehouse that were left out, because they were retired from the matrix.
        unchecked: batches that the matrix held before, and that may have other values in the warehouse now: a warehouse
            of this kind does not tell without a query.
    """

    batches: tuple[IngestedBatch, ...]
    cost: Cost
    retired: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


class MatrixLoader:
    """Reads a matrix as though it held the whole warehouse.

    Any number of loaders, on any hosts, may read the same samples at the same time: one of them loads a batch, and the
    others wait for it. If that loader dies, a waiting one takes over. Memory: the wide tables of one batch and a few
    record batches of its rows.

    Args:
        warehouse: source of the samples.
        matrix: stores the samples.
        lease_seconds: time without renewal of its lease after which a loader is considered dead.

    Raises:
        WarehouseError: the warehouse has no column for one of the matrix's values, or ``lease_seconds`` is invalid.

    Examples:
        >>> import duckdb
        >>> row = "'study_1' AS batch_id, 'person_1' AS sample_id, 'cg1' AS cpg_id, 0.5 AS beta"
        >>> _ = duckdb.sql(f"COPY (SELECT {row}) TO 'long.parquet'")
        >>> matrix = WideMatrix.create("betas", ["cg1"], {"beta": "float32"})
        >>> warehouse = DuckDBWarehouse("long.parquet", LongColumns(values={"beta": "beta"}))
        >>> MatrixLoader(warehouse, matrix).load(["person_1"])
        array([[0.5]], dtype=float32)
    """

    def __init__(self, warehouse: Warehouse, matrix: WideMatrix, *, lease_seconds: float = 60.0) -> None:
        absent = outside(matrix.values, warehouse.value_names)
        if absent:
            raise WarehouseError(
                f"{warehouse!r} has no column for {', '.join(absent)}, a value table of {matrix.url}; set the column "
                "with LongColumns, or create the matrix without the table"
            )
        if not isinstance(lease_seconds, int | float) or not lease_seconds > 0:
            raise WarehouseError(f"lease_seconds must be a positive number, not {lease_seconds!r:.80}")
        self.warehouse, self.matrix, self.lease_seconds = warehouse, matrix, lease_seconds

    @overload
    def load(
        self, sample_ids: Sequence[str], value: str | None = ..., *, metadata: Literal[False] = ...
    ) -> np.ndarray: ...

    @overload
    def load(
        self, sample_ids: Sequence[str], value: str | None = ..., *, metadata: Literal[True]
    ) -> tuple[np.ndarray, pa.Table]: ...

    def load(
        self, sample_ids: Sequence[str], value: str | None = None, *, metadata: bool = False
    ) -> np.ndarray | tuple[np.ndarray, pa.Table]:
        """Read samples as rows, in the given order.

        Args:
            sample_ids: samples to read; batches with samples that the matrix lacks are loaded first.
            value: name of the value table; by default "beta", or the only one.
            metadata: return the metadata of the samples, too, from the same generation.

        Returns:
            (samples, features) of the table's dtype, NaN for missing cells; with ``metadata`` also the table of
            ``WideMatrix.samples``, a row per sample in the same order.

        Raises:
            UnknownFieldError: neither the matrix nor the warehouse has a sample, it was retired, or there is no such
                value table.
            WarehouseError: rows of a batch contradict each other. Nothing of the batch is kept.
            MatrixError: the matrix was opened at a generation that lacks a sample.
        """
        if isinstance(sample_ids, str) or not all(isinstance(sample_id, str) for sample_id in sample_ids):
            raise UnknownFieldError(f"sample_ids must be a sequence of strings; given: {sample_ids!r:.80}")
        value = self.matrix.table_name(value)
        if missing := self.lacking(sample_ids):
            warehouse = self._pinned_warehouse()
            self._ingest(warehouse, self.batches_of(missing, warehouse))
        cells = self.matrix.read(sample_ids, value=value)
        return (cells, self.matrix.samples(sample_ids=sample_ids)) if metadata else cells

    def ingest(self, batch_ids: Sequence[str]) -> Ingested:
        """Load whole batches into the matrix; samples that it already holds are skipped.

        Batches that it holds are compared with the warehouse, cell by cell, if the warehouse is not in the recorded
        state any more: other files of the batch, or another snapshot in which the batch has other files.

        Raises:
            UnknownFieldError: the warehouse has no such batch, or ``batch_ids`` is one string.
            WarehouseError: as for :meth:`load`, or the matrix holds a batch with other values; all others are kept.
        """
        check_names("batch_ids", batch_ids, error=UnknownFieldError)
        batch_ids = list(batch_ids)  # "in" asks a pandas.Series for its labels
        warehouse = self._pinned_warehouse()
        held: dict[str, list[Mapping[str, str]]] = {}
        for name, source in self.matrix.refresh().batch_sources.items():
            batch_id = home_of(name, batch_ids)
            if batch_id is not None:
                held.setdefault(batch_id, []).append(source)
        done = self._ingest(warehouse, batch_ids)
        if not isinstance(warehouse, Versioned):
            return replace(done, unchecked=tuple(held))
        changed = []
        for batch_id, sources in held.items():
            if not all(warehouse.is_unchanged(batch_id, source) for source in sources):
                changed.append(batch_id)
        if changed:
            check_unchanged(warehouse, self.matrix, changed)
        return done

    def _pinned_warehouse(self) -> Warehouse:
        """The current state of the warehouse; raises MatrixError if the matrix is read-only."""
        self.matrix._check_writable("load from the warehouse")
        return self.warehouse.pinned()

    def lacking(self, sample_ids: Sequence[str]) -> list[str]:
        """Samples that the matrix does not hold, without duplicates.

        Raises:
            UnknownFieldError: one of them was retired.
        """
        requested = dict.fromkeys(sample_ids)
        if retired := requested.keys() & self.matrix.retired.sample_ids:
            raise UnknownFieldError(f"{self.matrix.url}: sample {min(retired)!r} was retired")
        lacking = outside(requested, set(self.matrix.sample_ids))
        if lacking:  # others may have appended since the matrix was opened
            lacking = outside(lacking, set(self.matrix.refresh().sample_ids))
        return lacking

    def batches_of(self, sample_ids: Sequence[str], warehouse: Warehouse | None = None) -> list[str]:
        """Ids of the batches of the warehouse (or of a pinned state of it) that hold the samples.

        Raises:
            UnknownFieldError: no batch holds one of them.
        """
        warehouse = warehouse or self.warehouse
        batches = warehouse.batches_of(sample_ids)
        if unknown := outside(sample_ids, batches):
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise UnknownFieldError(f"neither {self.matrix.url} nor {warehouse!r} has the sample {unknown[0]!r}{more}")
        return sorted(set(chain(*batches.values())))

    def _ingest(self, warehouse: Warehouse, batch_ids: Sequence[str]) -> Ingested:
        batches = warehouse.samples(list(dict.fromkeys(batch_ids)))
        for batch_id in outside(batch_ids, batches):
            raise UnknownFieldError(f"{warehouse!r} has no rows of a batch {batch_id!r}")
        url = self.matrix.url
        ingested: list[IngestedBatch] = []
        leases = Leases(self.matrix._storage, self.lease_seconds)
        waiting = False
        with leases.renewing():
            while todo := self._todo(batches):
                mine = leases.take(list(todo))
                if mine:
                    ingested += self._take(warehouse, batches, mine, leases)
                    continue
                if not waiting:
                    text = "%s: waits for %d batches that others are loading, such as %s (%s)"
                    text += "; takes over what is not renewed for %g s"
                    example, holder = next(iter(leases.holders.items()))
                    logger.warning(text, url, len(todo), example, holder, self.lease_seconds)
                waiting = True
                time.sleep(min(1.0, self.lease_seconds / 4) * random.uniform(0.5, 1))
        retired = self.matrix.retired
        gone = retired.sample_ids
        left_out: list[str] = []
        for batch_id, sample_ids in batches.items():
            left_out += sample_ids if batch_id in retired.batches else among(sample_ids, gone)
        if left_out:
            logger.warning("%s: left out %d retired samples, such as %s", url, len(left_out), left_out[0])
        cost = warehouse.cost
        if cost.queries:
            text = "%s: %d batches loaded; %d queries scanned %s, about %.2f USD"
            logger.info(text, url, len(ingested), cost.queries, format_size(cost.bytes_scanned), cost.usd)
        return Ingested(tuple(ingested), cost, tuple(left_out))

    def _todo(self, batches: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Samples that the matrix lacks and may hold, by batch; raises WarehouseError if a sample is in two batches."""
        held = self.matrix.refresh()._state.batch_of
        homes = dict(held)
        retired = self.matrix.retired
        gone = retired.sample_ids
        todo: dict[str, list[str]] = {}
        for batch_id in outside(batches, retired.batches):
            for sample_id in outside(batches[batch_id], gone):
                home = homes.get(sample_id)
                if home is None:
                    todo.setdefault(batch_id, []).append(sample_id)
                    homes[sample_id] = batch_id
                elif home_of(home, [batch_id]) is None:
                    text = f"sample {sample_id} is in two batches, {home} and {batch_id}; sample ids must be unique"
                    if sample_id in held:
                        moved = [name for name in batches[batch_id] if held.get(name) == home]
                        retire = shell("matrix", "retire", self.matrix.url, "--samples", *moved[:MOST_NAMED])
                        text += f". The matrix holds it in {home}; if the warehouse has it in {batch_id} alone now, "
                        text += f"`{retire}` retires it, `{retire} --undo` allows it again; then load it again"
                    raise BatchError(text)
        return todo

    def _take(
        self, warehouse: Warehouse, batches: Mapping[str, Sequence[str]], mine: Sequence[str], leases: Leases
    ) -> Iterator[IngestedBatch]:
        """Unload the leased batches and append them one by one; yields the batches that this call added."""
        try:
            # The previous holder may have finished just before this loader got the lease.
            todo = self._todo({batch_id: batches[batch_id] for batch_id in mine})
            if not todo:
                return
            with warehouse.unload(todo, list(self.matrix.values), self.matrix.feature_ids) as unloaded:
                for batch_id, sample_ids in todo.items():
                    added = self._append(unloaded, batch_id, sample_ids)
                    if added is not None:
                        yield added
                    leases.release([batch_id])
        finally:
            leases.release(mine)

    def _append(self, unloaded: Unloaded, batch_id: str, sample_ids: Sequence[str]) -> IngestedBatch | None:
        """Append a leased batch; None if the lease was lost, and another loader added some of the samples."""
        started = time.monotonic()
        tables, rows, without = {}, {}, {}
        for value, dtype in self.matrix.values.items():
            block = WideBlock(batch_id, value, sample_ids, self.matrix.feature_ids, dtype)
            done = scatter(lambda value=value: unloaded.rows(batch_id, value), block)  # type: ignore[misc]
            tables[value] = done.values
            rows[value], without[value] = done.rows, done.without_value
        counted = ", ".join(f"{n} {value}" for value, n in rows.items())
        if len(set(rows.values())) > 1:
            text = f"batch {batch_id} returned different numbers of rows: {counted}. It changed meanwhile; load again"
            raise WarehouseError(text)
        url, source = self.matrix.url, unloaded.source(batch_id)
        name = later_part(batch_id, sample_ids) if batch_id in self.matrix.batches else batch_id
        try:
            appended = self.matrix.append(name, sample_ids, tables, source=source)
        except MatrixError:
            if set(sample_ids).isdisjoint(self.matrix.refresh().sample_ids):
                raise
            appended = False  # samples that are still missing are loaded in the next round
        if not appended:
            logger.info("%s: samples of batch %s were loaded by another loader in the meantime", url, batch_id)
            return None
        seconds = time.monotonic() - started
        cells = len(sample_ids) * len(self.matrix.feature_ids)
        text = "%s: batch %s: %d samples, %s rows of %d cells, %.1f s"
        logger.info(text, url, batch_id, len(sample_ids), counted, cells, seconds)
        return IngestedBatch(batch_id, tuple(sample_ids), rows, without, cells, source, seconds)
