"""Does a matrix hold what its warehouse holds: rows unloaded again, counted and compared cell by cell.

It shares nothing with the way in but the query, so that a fault of the way in shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from zarr_core.matrix.wide import WideMatrix
from zarr_core.warehouses.protocol import Unloaded, Warehouse


@dataclass
class ValueAudit:
    """What one value table of a batch came to.

    Attributes:
        rows: of the warehouse that have a value.
        cells: of the matrix that have one.
        doubled: rows beyond the first of their cell, with a value or without.
        outside: rows of features that are not on the axis.
        differing: cells that are not what the last of their rows says, missing ones included.
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
    """A batch of the warehouse, held against the matrix.

    Attributes:
        batch_id: of the warehouse.
        samples: that the warehouse has in it.
        absent: those of them that the matrix lacks.
        elsewhere: those that are in other batches, too.
        values: by table.
    """

    batch_id: str
    samples: int
    absent: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    values: dict[str, ValueAudit] = field(default_factory=dict)

    @property
    def doubles(self) -> list[str]:
        """What is there twice, in words."""
        said = [f"sample {sample_id} is in another batch, too" for sample_id in self.elsewhere[:1]]
        for value, found in self.values.items():
            if found.doubled:
                said.append(f"{found.doubled:,} doubled {value} rows, such as {found.example}")
        return [f"batch {self.batch_id}: {words}" for words in said]

    @property
    def losses(self) -> list[str]:
        """Where warehouse and matrix differ, in words."""
        said = []
        if self.absent:
            said.append(f"{len(self.absent)} samples are not in the matrix, such as {self.absent[0]}")
        for value, found in self.values.items():
            if found.rows != found.cells:
                said.append(f"{found.rows:,} {value} rows with a value, {found.cells:,} cells")
            if found.outside:
                said.append(f"{found.outside:,} {value} rows of features outside the axis")
            if found.differing:
                said.append(f"{found.differing:,} {value} cells differ, such as {found.example}")
        return [f"batch {self.batch_id}: {words}" for words in said]


def audit_batches(warehouse: Warehouse, matrix: WideMatrix, batch_ids: Sequence[str]) -> list[BatchAudit]:
    """Unload batches and hold them against the matrix. Memory: twice the wide size of one batch and value.

    Args:
        warehouse: where they came from; batches that it no longer has are passed over.
        matrix: where they are.
        batch_ids: of the warehouse.

    Raises:
        WarehouseError: the warehouse cannot be asked.
        ZarrCoreError: the matrix cannot be read.
    """
    warehouse = warehouse.pinned()
    batches = {name: ids for name, ids in warehouse.samples(list(batch_ids)).items() if ids}
    homes = warehouse.batches_of([sample_id for ids in batches.values() for sample_id in ids])
    there = set(matrix.sample_ids)
    with warehouse.unload(batches, list(matrix.values), matrix.feature_ids) as unloaded:
        return [_audit(unloaded, matrix, name, ids, homes, there) for name, ids in batches.items()]


def _audit(
    unloaded: Unloaded,
    matrix: WideMatrix,
    batch_id: str,
    sample_ids: Sequence[str],
    homes: Mapping[str, Sequence[str]],
    there: set[str],
) -> BatchAudit:
    absent = [sample_id for sample_id in sample_ids if sample_id not in there]
    elsewhere = [sample_id for sample_id in sample_ids if len(homes[sample_id]) > 1]
    audit = BatchAudit(batch_id, len(sample_ids), absent, elsewhere)
    for value in matrix.values:
        audit.values[value] = _audit_value(unloaded, matrix, batch_id, sample_ids, there, value)
    return audit


def _audit_value(
    unloaded: Unloaded, matrix: WideMatrix, batch_id: str, sample_ids: Sequence[str], there: set[str], value: str
) -> ValueAudit:
    found = ValueAudit()
    shape = len(sample_ids), matrix.shape[1]
    expected = np.full(shape, np.nan, matrix.values[value])
    reached = np.zeros(shape, np.uint8)

    def name(cell: tuple[int, int]) -> str:
        return f"{sample_ids[cell[0]]}, {matrix.feature_ids[int(cell[1])]}"

    for rows in unloaded.rows(batch_id, value):
        on_axis = rows.column("feature").is_valid().to_numpy(zero_copy_only=False)
        found.outside += int(np.count_nonzero(~on_axis))
        rows = rows.filter(rows.column("feature").is_valid())
        samples, features = rows.column("sample").to_numpy(), rows.column("feature").to_numpy()
        values = rows.column("value").cast("float64").to_numpy(zero_copy_only=False)
        found.rows += int(np.count_nonzero(~np.isnan(values)))
        again = reached[samples, features] > 0
        first = np.zeros(len(samples), bool)
        first[np.unique(samples.astype(np.int64) * shape[1] + features, return_index=True)[1]] = True
        again |= ~first
        if again.any():
            found.doubled += int(np.count_nonzero(again))
            at = int(np.argmax(again))
            found.example = found.example or name((samples[at], features[at]))
        reached[samples, features] = 1
        expected[samples, features] = values
    for number, sample_id in enumerate(sample_ids):
        if sample_id not in there:
            continue
        row = matrix.read([sample_id], value=value)[0]
        found.cells += int(np.count_nonzero(~np.isnan(row)))
        wrong = ~((row == expected[number]) | (np.isnan(row) & np.isnan(expected[number])))
        if wrong.any():
            found.differing += int(np.count_nonzero(wrong))
            found.example = found.example or name((number, int(np.argmax(wrong))))
    return found
