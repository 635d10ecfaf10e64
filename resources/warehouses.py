"""Access to warehouses and wide matrices; credentials come from the environment, as for stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg
import numpy as np

from zarr_core.errors import MatrixError, StoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.store.axis_file import read_feature_ids
from zarr_core.matrix.store.state import HEAD_NAME
from zarr_core.storage import Storage
from zarr_core.warehouses import Warehouse
from zarr_core.warehouses.build import build_warehouse


class WarehouseAccess(dg.ConfigurableResource):
    """Opens the warehouses and matrices of wide datasets."""

    def warehouse(self, settings: Mapping[str, Any]) -> Warehouse:
        """The long table that the settings of a declaration name; raises WarehouseError."""
        return build_warehouse(settings)

    def matrix(self, url: str) -> WideMatrix:
        """The matrix in its present state; raises StoreError if there is none."""
        return WideMatrix.open(url)

    def matrix_if_any(self, url: str) -> WideMatrix | None:
        """The matrix in its present state; None if there is none yet."""
        return WideMatrix.open(url) if Storage(url).exists(HEAD_NAME) else None

    def open_or_create(
        self, url: str, values: Mapping[str, str], features: str | None, warehouse: Mapping[str, Any]
    ) -> WideMatrix:
        """The matrix, created if there is none.

        Args:
            url: where it is.
            values: stored dtype by value table.
            features, warehouse: as for :meth:`feature_ids`, which gives a new matrix its axis.

        Raises:
            MatrixError: the matrix has other value tables.
        """
        try:
            matrix = self.matrix(url)
        except StoreError:
            try:
                return WideMatrix.create(url, self.feature_ids(features, warehouse), dict(values))
            except MatrixError:
                matrix = self.matrix(url)  # another run has just created it; if not, this raises the reason
        if matrix.values != dict(values):
            raise MatrixError(
                f"{matrix.url} has the tables {matrix.values}, declared are {dict(values)}; the tables of a "
                "matrix never change: declare another place for it"
            )
        return matrix

    def feature_ids(self, features: str | None, warehouse: Mapping[str, Any]) -> list[str] | np.ndarray:
        """The axis: the first column of a Parquet file, the words of a text file, or (None) the warehouse's features.

        Raises:
            MatrixError: the file cannot be read.
            WarehouseError: the warehouse cannot be queried.
        """
        if features is None:
            return self.warehouse(warehouse).feature_ids()
        return read_feature_ids(features)
