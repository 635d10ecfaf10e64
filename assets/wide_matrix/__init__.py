"""The assets of a wide matrix: warehouse batches, the rows that they become, checks, column-major copy and report."""

from zarr_core.platform.assets.wide_matrix.component import WarehouseMatrix

__all__ = ["WarehouseMatrix"]
