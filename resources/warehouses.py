"""How warehouses and matrices are reached; credentials come from the environment, as for stores."""

from __future__ import annotations

import dagster as dg
import fsspec

from resources.source_watch import Look
from resources.warehouse_matrix import DeclaredMatrix
from zarr_core._util.redaction import printable_cause, redact, redact_url
from zarr_core.errors import MatrixError, StoreError
from zarr_core.matrix import WideMatrix
from zarr_core.warehouses import Warehouse
from zarr_core.warehouses.batches import list_batches
from zarr_core.warehouses.build import build_warehouse


class WarehouseAccess(dg.ConfigurableResource):
    """Opens what the assets of a wide matrix read and fill."""

    def warehouse(self, declared: DeclaredMatrix) -> Warehouse:
        """The long table; raises WarehouseError."""
        return build_warehouse(declared.warehouse)

    def look(self, declared: DeclaredMatrix) -> Look:
        """The batches that the warehouse holds now."""
        found = list_batches(self.warehouse(declared))
        shown = {name: {"fingerprint_of": batch.of, "source_bytes": batch.n_bytes} for name, batch in found.items()}
        return Look(found, {}, "", shown)

    def matrix(self, declared: DeclaredMatrix) -> WideMatrix:
        """The matrix as it is now; raises StoreError where there is none yet."""
        return WideMatrix.open(declared.matrix)

    def matrix_to_fill(self, declared: DeclaredMatrix) -> WideMatrix:
        """The matrix, made where it is not there yet.

        Raises:
            MatrixError: what is there has other value tables than declared.
        """
        try:
            matrix = self.matrix(declared)
        except StoreError:
            try:
                return WideMatrix.create(declared.matrix, self.features(declared), dict(declared.values))
            except MatrixError:
                matrix = self.matrix(declared)  # another run has just made it, or this raises what is wrong
        if matrix.values != dict(declared.values):
            raise MatrixError(
                f"{matrix.url} has the tables {matrix.values}, declared are {dict(declared.values)}; the tables of a "
                "matrix never change: declare another place for it"
            )
        return matrix

    def features(self, declared: DeclaredMatrix) -> list[str]:
        """The declared axis, or what the warehouse has."""
        if declared.features is None:
            return self.warehouse(declared).feature_ids()
        import pyarrow.parquet

        try:
            with fsspec.open(declared.features, "rb") as file:
                if not declared.features.endswith(".parquet"):
                    return file.read().decode().split()
                columns = pyarrow.parquet.read_table(file)
        except OSError as error:
            message = f"features {redact_url(declared.features)} cannot be read: {redact(str(error))}"
            raise MatrixError(message) from printable_cause(error)
        return [str(name) for name in columns.column(0).to_pylist()]
