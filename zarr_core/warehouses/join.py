"""The positions of samples and features, joined to long rows by an embedded DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from zarr_core._util.redaction import printable_cause, redact
from zarr_core.errors import WarehouseError
from zarr_core.matrix.axis import FeatureAxis
from zarr_core.warehouses.protocol import LongColumns
from zarr_core.warehouses.sql import literal, positions_query

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_ROWS_EACH = 1 << 17


@contextmanager
def duckdb_connection(warehouse: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in memory; what goes wrong in it is the named warehouse's."""
    import duckdb
    import pyarrow as pa

    connection = duckdb.connect()
    try:
        yield connection
    except (duckdb.Error, pa.ArrowException) as error:
        raise WarehouseError(f"{warehouse}: {redact(str(error))}") from printable_cause(error)
    finally:
        connection.close()


class PositionJoin:
    """Tables of the positions that some batches are joined with, in a connection of DuckDB.

    Args:
        connection: where the tables are made; ours alone.
        columns: of the rows, which the connection has as a relation ``long``.
        batches: sample ids by batch id.
        feature_ids: the axis.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        columns: LongColumns,
        batches: Mapping[str, Sequence[str]],
        feature_ids: Sequence[str],
    ) -> None:
        self.connection, self._columns = connection, columns
        _create_table(connection, "axis", axis_table(feature_ids))
        _create_table(connection, "wanted", wanted_table(batches))

    def rows(self, batch_id: str, value: str) -> Iterator[pa.RecordBatch]:
        """A batch's rows of one value, streamed."""
        query = positions_query("long", self._columns, value, wanted="wanted", axis="axis")
        yield from self.connection.sql(f"{query} WHERE long.batch_id = {literal(batch_id)}").to_arrow_reader(_ROWS_EACH)


def axis_table(feature_ids: Sequence[str]) -> pa.Table:
    """(feature_id, position) of an axis."""
    import pyarrow as pa

    names = feature_ids.ids if isinstance(feature_ids, FeatureAxis) else np.asarray(feature_ids)
    ids = pa.array(names).cast(pa.string())
    return pa.table({"feature_id": ids, "position": np.arange(len(ids), dtype=np.int32)})


def wanted_table(batches: Mapping[str, Sequence[str]]) -> pa.Table:
    """(batch_id, sample_id, sample): which samples are asked for, and the place of each in its batch."""
    import pyarrow as pa

    rows = [
        (batch_id, sample_id, sample)
        for batch_id, sample_ids in batches.items()
        for sample, sample_id in enumerate(sample_ids)
    ]
    names = {"batch_id": pa.string(), "sample_id": pa.string(), "sample": pa.int32()}
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return pa.table({name: pa.array(of, kind) for (name, kind), of in zip(names.items(), columns, strict=True)})


def _create_table(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    connection.register("arriving", table)
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arriving")
    connection.unregister("arriving")
