"""A wide matrix as Dagster sees it: warehouse batches, the rows they become, and what follows from them."""

from assets.wide_matrix.component import WarehouseMatrix

__all__ = ["WarehouseMatrix"]
