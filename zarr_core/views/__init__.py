"""Lazy views of stores, for xarray, dask and TensorStore; see ``docs/views.md``."""

from zarr_core.views.tensorstore import as_tensorstore
from zarr_core.views.tree import open_store

__all__ = ["as_tensorstore", "open_store"]
