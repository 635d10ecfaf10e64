"""List a warehouse's batches with fingerprints, which a sensor compares from one listing to the next."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from zarr_core._util.digests import short_digest
from zarr_core.warehouses.duckdb import DuckDBWarehouse, batch_folder, list_files
from zarr_core.warehouses.protocol import Warehouse


@dataclass(frozen=True)
class WarehouseBatch:
    """A batch and a fingerprint of its content.

    Attributes:
        fingerprint: digest that changes with the content described by ``of``.
        of: source of the fingerprint: "files" (names, sizes and versions of the files) or "samples" (ids).
        n_bytes: size of the batch's files in bytes; 0 if unknown.
    """

    batch_id: str
    fingerprint: str
    of: str
    n_bytes: int = 0


def list_batches(warehouse: Warehouse) -> dict[str, WarehouseBatch]:
    """Every batch by id, sorted.

    Parquet files in one folder per batch are listed, not read. For other warehouses the fingerprint is of the sample
    ids, so it does not change if only the values of a batch change.

    Raises:
        WarehouseError: the query fails, or a file or folder cannot be read.
    """
    if isinstance(warehouse, DuckDBWarehouse):
        found = _by_files(warehouse)
        if found is not None:
            return found
    samples = warehouse.samples(warehouse.batch_ids())
    return {name: WarehouseBatch(name, short_digest(ids), "samples") for name, ids in sorted(samples.items())}


def _by_files(warehouse: DuckDBWarehouse) -> dict[str, WarehouseBatch] | None:
    """Batches from a file listing; None if a file name does not contain its batch. Without files: no batches."""
    folder = batch_folder(warehouse.columns.batch)
    files: dict[str, list[tuple[str, int, str]]] = {}
    for name, size, version in list_files(warehouse.files):
        batch = folder.search(name)
        if batch is None:
            return None
        files.setdefault(unquote(batch[1]), []).append((name[batch.end() :], size, version))
    batches = {}
    for name, found in sorted(files.items()):
        n_bytes = sum(size for _, size, _ in found)
        batches[name] = WarehouseBatch(name, short_digest(map(repr, sorted(found))), "files", n_bytes)
    return batches
