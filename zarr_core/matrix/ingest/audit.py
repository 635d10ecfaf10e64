"""Audit a matrix against its warehouse: unload the rows again, count them, and compare every cell.

The audit shares only the query with the loader, so that it finds the loader's errors.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from zarr_core._util.commands import shell
from zarr_core._util.units import format_count
from zarr_core.errors import BatchError
from zarr_core.matrix.ingest.append import MOST_NAMED
from zarr_core.matrix.store.batch_names import among, home_of, outside
from zarr_core.matrix.wide import WideMatrix
from zarr_core.warehouses.protocol import Unloaded, Warehouse

logger = logging.getLogger(__name__)


@dataclass
class ValueAudit:
    """Audit of one value table of a batch.

    Attributes:
        rows: number of warehouse rows with a value.
        cells: number of matrix cells with a value.
        doubled: number of rows after the first of their cell, with or without a value.
        outside: number of rows whose feature is not on the axis.
        differing: number of cells that differ from the last of their rows, including missing cells.
        example: the first doubled or differing cell, as "sample, feature".
    """

    rows: int = 0
    cells: int = 0
    doubled: int = 0
    outside: int = 0
    differing: int = 0
    example: str = ""


@dataclass
class BatchAudit:
    """A batch of the warehouse, compared with the matrix.

    Attributes:
        batch_id: id of the batch in the warehouse.
        samples: number of its samples in the warehouse.
        absent: its samples that the matrix lacks.
        withdrawn: samples of the matrix's batch that the warehouse's batch no longer has.
        elsewhere: its samples that are also in other batches.
        values: audit by value table.
    """

    batch_id: str
    samples: int
    absent: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    values: dict[str, ValueAudit] = field(default_factory=dict)

    @property
    def doubles(self) -> list[str]:
        """Duplicates in the warehouse, one message each."""
        messages = []
        if self.elsewhere:
            messages.append(f"sample {self.elsewhere[0]} is also in another batch")
        for value, found in self.values.items():
            if found.doubled:
                messages.append(f"{found.doubled:,} duplicate {value} rows, such as {found.example}")
        return [f"batch {self.batch_id}: {message}" for message in messages]

    @property
    def losses(self) -> list[str]:
        """Differences between warehouse and matrix, one message each."""
        messages = []
        if self.absent:
            messages.append(f"{len(self.absent)} samples are not in the matrix, such as {self.absent[0]}")
        for value, found in self.values.items():
            if found.rows != found.cells:
                messages.append(f"{found.rows:,} {value} rows with a value, {found.cells:,} cells")
            if found.outside:
                messages.append(f"{found.outside:,} {value} rows of features outside the axis")
            if found.differing:
                messages.append(f"{found.differing:,} {value} cells differ, such as {found.example}")
        return [f"batch {self.batch_id}: {message}" for message in messages]


def withdrawn_batches(matrix: WideMatrix, batch_ids: Collection[str]) -> list[str]:
    """Batches of the matrix that are not among all of the warehouse's: withdrawn there, but still readable here."""
    return [name for name in matrix.batches if home_of(name, batch_ids) is None]


def withdrawn_samples(
    warehouse: Warehouse, matrix: WideMatrix, sample_ids: Collection[str], batch_ids: Collection[str]
) -> list[str]:
    """Those of some samples that the matrix holds in a batch whose batch of the warehouse does not have them.

    Args:
        batch_ids: every batch of the warehouse; samples of other batches are left out.

    Raises:
        WarehouseError: the query fails.
    """
    batches_of = warehouse.batches_of(list(sample_ids))
    found = []
    for name, stored in matrix.batches.items():
        home = home_of(name, batch_ids)
        if home is not None:
            found += [each for each in among(stored, sample_ids) if home not in batches_of.get(each, ())]
    return found


def audit_batches(warehouse: Warehouse, matrix: WideMatrix, batch_ids: Sequence[str]) -> list[BatchAudit]:
    """Unload batches and compare them with the matrix. Batches that the warehouse no longer has are skipped.

    Memory: twice the wide size of one batch and value.

    Raises:
        WarehouseError: a query fails.
        ZarrCoreError: the matrix cannot be read.
    """
    warehouse = warehouse.pinned()
    there, retired = set(matrix.sample_ids), matrix.retired.sample_ids
    batches = {}
    for name, sample_ids in warehouse.samples(outside(batch_ids, matrix.retired.batches)).items():
        if kept := outside(sample_ids, retired):
            batches[name] = kept
    batches_of = warehouse.batches_of(list(chain(*batches.values())))
    audits = []
    with warehouse.unload(batches, list(matrix.values), matrix.feature_ids) as unloaded:
        for batch_id, sample_ids in batches.items():
            audit = BatchAudit(batch_id, len(sample_ids), absent=outside(sample_ids, there))
            audit.elsewhere = [sample_id for sample_id in sample_ids if len(batches_of[sample_id]) > 1]
            for name, stored in matrix.batches.items():
                if home_of(name, [batch_id]):
                    audit.withdrawn += outside(stored, set(sample_ids))
            for value in matrix.values:
                audit.values[value] = _audit_value(unloaded, matrix, batch_id, sample_ids, there, value)
            audits.append(audit)
    return audits


def check_unchanged(warehouse: Warehouse, matrix: WideMatrix, batch_ids: Sequence[str]) -> list[BatchAudit]:
    """Audit batches that the matrix holds. Arguments as for :func:`audit_batches`.

    Samples that the warehouse no longer has in these batches are a warning: whether the matrix may keep them is for a
    person to decide.

    Raises:
        WarehouseError: the warehouse has other samples or values now; names them and the way out.
    """
    audits = audit_batches(warehouse, matrix, batch_ids)
    for audit in audits:
        if audit.withdrawn:
            count, named = format_count(len(audit.withdrawn), "samples"), audit.withdrawn[:MOST_NAMED]
            way_out = shell("matrix", "retire", matrix.url, "--samples", *named)
            text = "%s: batch %s of the warehouse no longer has %s that the matrix holds; to remove them: `%s`"
            logger.warning(text, matrix.url, audit.batch_id, count, way_out)
    changed = [audit for audit in audits if audit.doubles or audit.losses]
    if changed:
        wrong = "; ".join(chain(*(audit.doubles + audit.losses for audit in changed)))
        retire = shell("matrix", "retire", matrix.url, "--batches", *(audit.batch_id for audit in changed))
        metadata = ", and set its metadata, which go with it" if "samples" in matrix._state.metadata else ""
        raise BatchError(
            f"{wrong}: the warehouse changed after the batch was loaded. Undo it there, or replace the batch: "
            f"`{retire}` retires it, `{retire} --undo` allows it again; then load it again{metadata}. Earlier "
            "generations keep the old values"
        )
    return audits


def _audit_value(
    unloaded: Unloaded, matrix: WideMatrix, batch_id: str, sample_ids: Sequence[str], there: set[str], value: str
) -> ValueAudit:
    """Unload the rows of one value into an array of their own, and compare the matrix with it row by row."""
    found = ValueAudit()
    shape = len(sample_ids), matrix.shape[1]
    expected = np.full(shape, np.nan, matrix.values[value])
    reached = np.zeros(shape, bool)

    def name(row: int, column: int) -> str:
        return f"{sample_ids[row]}, {matrix.feature_ids[int(column)]}"

    for rows in unloaded.rows(batch_id, value):
        on_axis = rows.column("feature").is_valid().to_numpy(zero_copy_only=False)
        found.outside += int(np.count_nonzero(~on_axis))
        rows = rows.filter(rows.column("feature").is_valid())
        samples, features = rows.column("sample").to_numpy(), rows.column("feature").to_numpy()
        values = rows.column("value").cast("float64").to_numpy(zero_copy_only=False)
        found.rows += int(np.count_nonzero(~np.isnan(values)))
        again = np.ones(len(samples), bool)
        _, first = np.unique(samples.astype(np.int64) * shape[1] + features, return_index=True)
        again[first] = reached[samples[first], features[first]]
        if again.any():
            found.doubled += int(np.count_nonzero(again))
            at = int(np.argmax(again))
            found.example = found.example or name(samples[at], features[at])
        reached[samples, features] = True
        expected[samples, features] = values
    for number, sample_id in enumerate(sample_ids):
        if sample_id not in there:
            continue
        row = matrix.read([sample_id], value=value)[0]
        found.cells += int(np.count_nonzero(~np.isnan(row)))
        wrong = ~((row == expected[number]) | (np.isnan(row) & np.isnan(expected[number])))
        if wrong.any():
            found.differing += int(np.count_nonzero(wrong))
            found.example = found.example or name(number, int(np.argmax(wrong)))
    return found
