"""From sample ids to a wide array: what the matrix lacks is fetched from the warehouse first, once for everybody.

Batches are taken whole: whoever asks for one sample of a batch pays for all of it, so that the next one costs nothing.
A warehouse reads a partition whole anyway, and a matrix keeps each batch in shards of its own. Samples that arrive in
a batch after it was taken are appended as a batch named "<batch>@<digest of the samples>".
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zarr_core._util.units import format_size
from zarr_core.errors import MatrixError, UnknownFieldError, WarehouseError
from zarr_core.matrix.ingest.leases import Leases
from zarr_core.matrix.ingest.scatter import WideBlock, scatter
from zarr_core.matrix.wide import WideMatrix
from zarr_core.warehouses.protocol import Cost, Unloaded, Warehouse

_LATER = "@"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IngestedBatch:
    """A batch as it came into the matrix.

    Attributes:
        batch_id: of the warehouse.
        sample_ids: that were appended.
        rows: unloaded of each value, every one of which reached a cell of its own.
        without_value: those of them whose value is missing.
        cells: of each value's table, with those that no row reached.
        seconds: for unloading, scattering and appending.
    """

    batch_id: str
    sample_ids: tuple[str, ...]
    rows: Mapping[str, int]
    without_value: Mapping[str, int]
    cells: int
    seconds: float


@dataclass(frozen=True)
class Ingested:
    """What one call brought into the matrix.

    Attributes:
        batches: that this call loaded; others may have loaded the rest.
        cost: of all that was asked of the warehouse for it.
    """

    batches: tuple[IngestedBatch, ...]
    cost: Cost


class MatrixLoader:
    """Reads a matrix as though it held the whole warehouse.

    Any number of loaders, on any hosts, may ask for the same samples at once: one of them loads a batch, and the others
    wait for it. The batch of a loader that died is taken over by one of those who wait. Memory: the wide tables of
    one batch and a few record batches of its rows.

    Args:
        warehouse: where samples come from.
        matrix: where they are kept.
        lease_seconds: of silence, after which a loader is taken for dead.

    Raises:
        WarehouseError: the warehouse has no column for one of the matrix's values.
    """

    def __init__(self, warehouse: Warehouse, matrix: WideMatrix, *, lease_seconds: float = 60.0) -> None:
        absent = [value for value in matrix.values if value not in warehouse.value_names]
        if absent:
            raise WarehouseError(
                f"{warehouse!r} was told no column for {', '.join(absent)}, which {matrix.url} keeps; name it with "
                "LongColumns, or make the matrix without it"
            )
        self.warehouse, self.matrix, self.lease_seconds = warehouse, matrix, lease_seconds

    def load(self, sample_ids: Sequence[str], value: str = "beta") -> np.ndarray:
        """Samples as rows, in the order asked for.

        Args:
            sample_ids: whom to read; those that the matrix lacks are fetched with their batches first.
            value: which table.

        Returns:
            (samples, features) of the table's dtype, NaN where nothing was measured.

        Raises:
            UnknownFieldError: neither matrix nor warehouse has the sample, or there is no such value.
            WarehouseError: rows contradict each other; names batch, sample and feature. Nothing of the batch is kept.
            MatrixError: the matrix was opened at a generation that lacks a sample.
        """
        if isinstance(sample_ids, str) or not all(isinstance(sample_id, str) for sample_id in sample_ids):
            raise UnknownFieldError(f"sample_ids is a sequence of ids, each a string; given: {sample_ids!r:.80}")
        if value not in self.matrix.values:
            raise UnknownFieldError(f"{self.matrix.url} keeps no {value!r}, only {', '.join(self.matrix.values)}")
        missing = self._lacking(sample_ids)
        if missing:
            warehouse = self._pinned_warehouse()
            self._ingest(warehouse, self._resolve(warehouse, missing))
        return self.matrix.read(sample_ids, value=value)

    def ingest(self, batch_ids: Sequence[str]) -> Ingested:
        """Bring whole batches into the matrix, as far as they are not there.

        Raises:
            UnknownFieldError: the warehouse has no such batch.
            WarehouseError: as :meth:`load`; batches before it are kept.
        """
        return self._ingest(self._pinned_warehouse(), batch_ids)

    def _pinned_warehouse(self) -> Warehouse:
        """The warehouse as it is now, to load from; raises MatrixError where the matrix takes nothing."""
        if self.matrix._pinned:
            raise MatrixError(
                f"{self.matrix.url} was opened at generation {self.matrix.generation}, which lacks what is asked for; "
                "open it without a generation to load from the warehouse"
            )
        return self.warehouse.pinned()

    def _lacking(self, sample_ids: Sequence[str]) -> list[str]:
        """Those that the matrix does not hold, each once."""
        asked = dict.fromkeys(sample_ids)
        lacking = asked.keys() - set(self.matrix.sample_ids)
        if lacking:  # others may have appended since the matrix was opened
            lacking -= set(self.matrix.refresh().sample_ids)
        return [sample_id for sample_id in asked if sample_id in lacking]

    def _resolve(self, warehouse: Warehouse, sample_ids: Sequence[str]) -> list[str]:
        """Batches that hold the samples."""
        batches = warehouse.batches_of(sample_ids)
        unknown = [sample_id for sample_id in sample_ids if sample_id not in batches]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise UnknownFieldError(f"neither {self.matrix.url} nor {warehouse!r} has the sample {unknown[0]!r}{more}")
        return sorted({batch_id for found in batches.values() for batch_id in found})

    def _ingest(self, warehouse: Warehouse, batch_ids: Sequence[str]) -> Ingested:
        batches = warehouse.samples(list(dict.fromkeys(batch_ids)))
        for batch_id in batch_ids:
            if batch_id not in batches:
                raise UnknownFieldError(f"{warehouse!r} has no batch {batch_id!r}")
        ingested: list[IngestedBatch] = []
        leases = Leases(self.matrix._storage, self.lease_seconds)
        waiting = False
        with leases.renewing():
            while todo := self._todo(batches):
                mine = leases.take(list(todo))
                if not mine:
                    if not waiting:
                        logger.info("%s: waiting for %d batches that others load", self.matrix.url, len(todo))
                    waiting = True
                    time.sleep(min(1.0, self.lease_seconds / 4) * random.uniform(0.5, 1))
                    continue
                try:
                    # Whoever had the lease may have finished just before it was ours.
                    todo = self._todo({batch_id: batches[batch_id] for batch_id in mine})
                    if todo:
                        ingested += self._take(warehouse, todo, leases)
                finally:
                    leases.release(mine)
        done = Ingested(tuple(ingested), warehouse.cost)
        if done.cost.queries:
            logger.info(
                "%s: %d batches loaded; %d queries scanned %s, about %.2f USD",
                self.matrix.url,
                len(done.batches),
                done.cost.queries,
                format_size(done.cost.bytes_scanned),
                done.cost.usd,
            )
        return done

    def _todo(self, batches: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Samples of each batch that the matrix lacks now; raises WarehouseError for a sample of two batches."""
        homes = {sample: name for name, samples in self.matrix.refresh().batches.items() for sample in samples}
        todo: dict[str, list[str]] = {}
        for batch_id, sample_ids in batches.items():
            for sample_id in sample_ids:
                home = homes.get(sample_id)
                if home is None:
                    todo.setdefault(batch_id, []).append(sample_id)
                    homes[sample_id] = batch_id
                elif home != batch_id and not home.startswith(batch_id + _LATER):
                    raise WarehouseError(
                        f"sample {sample_id} is in two batches, {home} and {batch_id}; ids must tell samples apart"
                    )
        return todo

    def _take(self, warehouse: Warehouse, todo: Mapping[str, Sequence[str]], leases: Leases) -> Iterator[IngestedBatch]:
        """Unload batches and append them one by one; those that this call has added."""
        with warehouse.unload(todo, list(self.matrix.values), self.matrix.feature_ids) as unloaded:
            for batch_id, sample_ids in todo.items():
                added = self._append(unloaded, batch_id, sample_ids)
                if added is not None:
                    yield added
                leases.release([batch_id])

    def _append(self, unloaded: Unloaded, batch_id: str, sample_ids: Sequence[str]) -> IngestedBatch | None:
        started = time.monotonic()
        tables, rows, without = {}, {}, {}
        for value, dtype in self.matrix.values.items():
            block = WideBlock(batch_id, value, sample_ids, self.matrix.feature_ids, dtype)
            done = scatter(lambda value=value: unloaded.rows(batch_id, value), block)  # type: ignore[misc]
            tables[value] = done.values
            rows[value], without[value] = done.rows, done.without_value
        if len(set(rows.values())) > 1:
            raise WarehouseError(
                f"batch {batch_id} has as many rows for each value as it holds, but there came "
                f"{', '.join(f'{n:,} for {value}' for value, n in rows.items())}: it changed meanwhile; load again"
            )
        if not self._append_once(batch_id, sample_ids, tables):
            logger.info("%s: samples of batch %s were loaded by somebody else meanwhile", self.matrix.url, batch_id)
            return None
        seconds = time.monotonic() - started
        cells = len(sample_ids) * len(self.matrix.feature_ids)
        logger.info(
            "%s: batch %s: %d samples, %s rows of %d cells, %.1f s",
            self.matrix.url,
            batch_id,
            len(sample_ids),
            ", ".join(f"{n} {value}" for value, n in rows.items()),
            cells,
            seconds,
        )
        return IngestedBatch(batch_id, tuple(sample_ids), rows, without, cells, seconds)

    def _append_once(self, batch_id: str, sample_ids: Sequence[str], tables: Mapping[str, np.ndarray]) -> bool:
        """Whether this call has added the samples; not where the lease was lost and somebody else has added some."""
        name = batch_id
        if batch_id in self.matrix.batches:
            digest = hashlib.sha256("\n".join(sample_ids).encode()).hexdigest()[:12]
            name = f"{batch_id}{_LATER}{digest}"
        try:
            return self.matrix.append(name, sample_ids, tables)
        except MatrixError:
            if set(sample_ids).isdisjoint(self.matrix.refresh().sample_ids):
                raise
            return False  # the others of them, if any, are still to be done
