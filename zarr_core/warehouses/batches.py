"""Which batches a warehouse holds, and in which version: what a watcher compares from one look to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from fsspec.core import url_to_fs

from zarr_core.warehouses.duckdb import DuckDBWarehouse, batch_folder
from zarr_core.warehouses.protocol import Warehouse


@dataclass(frozen=True)
class WarehouseBatch:
    """A batch, known without reading its rows where the warehouse can tell.

    Attributes:
        batch_id: its id.
        fingerprint: changes with what the batch holds, as far as ``of`` shows it.
        of: what the fingerprint is of: names, sizes and versions of the files, or the ids of the samples.
        n_bytes: of its files, 0 where they are not known.
    """

    batch_id: str
    fingerprint: str
    of: str
    n_bytes: int = 0


def list_batches(warehouse: Warehouse) -> dict[str, WarehouseBatch]:
    """Every batch by id, sorted.

    Parquet files in folders by batch are only listed. Of other warehouses the ids of the samples are asked: a batch
    whose values change under the same samples does not show there.

    Raises:
        WarehouseError: the warehouse cannot be asked.
    """
    if isinstance(warehouse, DuckDBWarehouse):
        found = _by_files(warehouse)
        if found is not None:
            return found
    samples = warehouse.samples(warehouse.batch_ids())
    return {name: WarehouseBatch(name, _digest(ids), "samples") for name, ids in sorted(samples.items())}


def _by_files(warehouse: DuckDBWarehouse) -> dict[str, WarehouseBatch] | None:
    """From a listing; None where the names of the files do not tell the batch. No files are no batches."""
    fs, pattern = url_to_fs(warehouse.files)
    fs.invalidate_cache()
    folder = batch_folder(warehouse.columns.batch)
    files: dict[str, list[tuple[str, int, str]]] = {}
    for name, info in fs.glob(pattern, detail=True).items():
        batch = folder.search(name)
        if batch is None:
            return None
        version = str(info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified") or "")
        files.setdefault(unquote(batch[1]), []).append((name[batch.end() :], int(info["size"]), version))
    return {
        name: WarehouseBatch(name, _digest(map(repr, sorted(found))), "files", sum(size for _, size, _ in found))
        for name, found in sorted(files.items())
    }


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
