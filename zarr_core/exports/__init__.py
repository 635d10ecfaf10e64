"""Stores in other formats, and datasets over them; see ``docs/exports.md``."""

from __future__ import annotations

from typing import Any

from zarr_core._util import lazy_names

# Imported on use: they need torch.
_HOMES = {
    "ShardStream": "zarr_core.exports.stream",
    "ShardItems": "zarr_core.exports.stream",
    "ShardIndex": "zarr_core.exports.shard_index",
    "export_webdataset": "zarr_core.exports.webdataset",
    "export_npy": "zarr_core.exports.matrix",
    "export_parquet": "zarr_core.exports.matrix",
    "export_h5ad": "zarr_core.exports.h5ad",
    "export_huggingface": "zarr_core.exports.huggingface",
    "croissant_document": "zarr_core.exports.croissant",
    "write_croissant": "zarr_core.exports.croissant",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    return lazy_names.find(__name__, name, _HOMES)
