"""Sharded, pre-shuffled Zarr v3 stores of point-cloud samples: write them, read a few thousand points of each.

The names below are imported on first use, so that ``import zarr_core`` costs neither torch nor zarr.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from zarr_core import errors
from zarr_core._util import lazy_names

_ERRORS = [name for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)]
_HOMES = {
    "ZarrChunkReader": "zarr_core.points.read.reader",
    "StoreManifest": "zarr_core.points.store.manifest",
    "load_manifest": "zarr_core.points.store.head",
    "ZarrStoreWriter": "zarr_core.points.convert.write_sample",
    "ConversionSettings": "zarr_core.points.store.settings",
    "write_sample": "zarr_core.points.convert.write_sample",
    "make_store": "zarr_core.storage.zarr_stores",
    "build_dataset": "zarr_core.datasets",
    "ZarrPointDataset": "zarr_core.datasets",
    "ZarrPointDatasetConfig": "zarr_core.datasets",
    "Collate": "zarr_core.datasets",
    "MatrixDataset": "zarr_core.datasets",
    "MixedDataset": "zarr_core.datasets",
    "Normalizers": "zarr_core.datasets",
    "m_values": "zarr_core.datasets",
    "Predictions": "zarr_core.datasets",
    "write_vtk": "zarr_core.datasets",
    "EpochBatchSampler": "zarr_core.loader",
    "ResumableLoader": "zarr_core.loader",
    "ZarrIterableDataset": "zarr_core.loader",
    "to_device": "zarr_core.loader",
    "calculate_store_statistics": "zarr_core.points.statistics",
    "verify_store": "zarr_core.points.verify.store",
    "stage_store": "zarr_core.points.stage.store",
    "DiskCache": "zarr_core.storage.disk_cache",
    "WideMatrix": "zarr_core.matrix",
    "MatrixLoader": "zarr_core.matrix.ingest.loader",
    "DuckDBWarehouse": "zarr_core.warehouses",
    "IcebergWarehouse": "zarr_core.warehouses",
    "AthenaWarehouse": "zarr_core.warehouses",
    "LongColumns": "zarr_core.warehouses",
    "store_info": "zarr_core.stores.summary",
    "sample_info": "zarr_core.stores.summary",
    "open_store": "zarr_core.views",
    "as_tensorstore": "zarr_core.views",
    "export_webdataset": "zarr_core.exports",
    "ShardStream": "zarr_core.exports",
    **dict.fromkeys(_ERRORS, "zarr_core.errors"),
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("zarr-core")
    return lazy_names.find(__name__, name, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
