"""Stores as ``xarray`` trees that read values when they are used; see ``docs/views.md``."""

from zarr_core.views.tree import open_store

__all__ = ["open_store"]
