"""Join of long rows with the positions of their samples and features: its SQL, and an embedded DuckDB for it.

The SQL is in the dialect that DuckDB and Athena share.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util.redaction import printable_cause, redact
from zarr_core.errors import WarehouseError
from zarr_core.warehouses.protocol import LongColumns

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_ROWS_EACH = 1 << 17
_JOINED_FEATURES = 1 << 22
# Each thread of DuckDB holds a row group of Parquet, 70 MB if it has a million rows. Fewer threads than these deliver
# rows faster than one Python thread finds their features.
_SEARCH_THREADS = 4

_Find = Callable[[Any], np.ndarray]


def identifier(name: str) -> str:
    """A quoted column or table name; raises WarehouseError if it cannot be quoted."""
    if not name or "\0" in name:
        raise WarehouseError(f"{name!r} cannot be the name of a column or table")
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A quoted string; raises WarehouseError for a zero character."""
    if "\0" in text:
        raise WarehouseError(f"{text!r} cannot be used in a query: it contains a zero character")
    return "'" + text.replace("'", "''") + "'"


def in_list(texts: Iterable[str]) -> str:
    """SQL list of string literals, for use after IN."""
    return "(" + ", ".join(map(literal, texts)) + ")"


def text_of(column: str) -> str:
    """A column cast to text. Ids are compared as text, whatever type the table stores."""
    return f"CAST({identifier(column)} AS VARCHAR)"


def value_column(columns: LongColumns, value: str) -> str:
    """Name of the column that holds a value; raises WarehouseError if there is none."""
    if value not in columns.values:
        raise WarehouseError(f"no column for the value {value!r}; configured values: {', '.join(columns.values)}")
    return columns.values[value]


def positions_query(source: str, columns: LongColumns, value: str, *, wanted: str, axis: str, last: str = "") -> str:
    """Query for rows with the positions of their sample and feature, in the columns of ``protocol.Unloaded``.

    ``wanted`` is a relation (batch_id, sample_id, sample, ...) of the requested samples, whose column ``last`` is
    appended to the result's; ``axis`` is a relation (feature_id, position).
    """
    return f"""
        SELECT wanted.sample AS sample, axis.position AS feature, long.value AS value,
               CASE WHEN axis.position IS NULL THEN coalesce(long.feature_id, 'null') END AS outside
               {f", wanted.{last} AS {last}" if last else ""}
        FROM (
            SELECT {text_of(columns.batch)} AS batch_id, {text_of(columns.sample)} AS sample_id,
                   {text_of(columns.feature)} AS feature_id, {identifier(value_column(columns, value))} AS value
            FROM {source}
        ) AS long
        JOIN {wanted} AS wanted ON long.batch_id = wanted.batch_id AND long.sample_id = wanted.sample_id
        LEFT JOIN {axis} AS axis ON long.feature_id = axis.feature_id"""


def distinct_query(source: str, names: Sequence[str], among: Sequence[str] | None = None) -> str:
    """Query for distinct rows of columns as text, restricted to rows whose first column is in ``among``, or null."""
    first = text_of(names[0])
    where = "" if among is None else f" WHERE {first} IN {in_list(among)} OR {first} IS NULL"
    columns = ", ".join(f"{text_of(name)} AS {identifier(f'c{number}')}" for number, name in enumerate(names))
    return f"SELECT DISTINCT {columns} FROM {source}{where}"


@contextmanager
def duckdb_connection(warehouse: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory DuckDB connection. Raises its errors as WarehouseError with the warehouse's name.

    What does not fit into its memory goes to the system's folder of temporary files (TMPDIR), and is deleted at the
    end; DuckDB's own choice is a folder ``.tmp`` in the working directory. Nothing is printed: DuckDB would show a
    progress bar on stdout.
    """
    import duckdb
    import pyarrow as pa

    with tempfile.TemporaryDirectory(prefix="zarr-core-duckdb-") as scratch:
        connection = duckdb.connect(config={"temp_directory": scratch})
        try:
            connection.execute("SET enable_progress_bar = false")
            yield connection
        except (duckdb.Error, pa.ArrowException) as error:
            raise WarehouseError(f"{warehouse}: {redact(str(error))}") from printable_cause(error)
        finally:
            connection.close()


class PositionJoin:
    """Position tables of some batches and of the feature axis in a DuckDB connection, and the join with them.

    The table of the axis and the join take about 100 bytes of memory per feature. More than 2^22 features are looked up
    in the arriving rows instead, if ``feature_ids`` can do that: without these bytes, but slower unless the rows of a
    sample lie in the order of the axis.

    Args:
        connection: knows the long rows as the relation ``long``; used by this object alone.
        columns, batches, values, feature_ids: as for :meth:`Warehouse.unload`.

    Raises:
        WarehouseError: the columns have no such value.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        columns: LongColumns,
        batches: Mapping[str, Sequence[str]],
        values: Sequence[str],
        feature_ids: Sequence[str],
    ) -> None:
        import pyarrow as pa

        for value in values:
            value_column(columns, value)
        self.connection, self._columns = connection, columns
        # (n,) positions of an array of names, -1 where one is null or is not on the axis, without Python strings.
        find: _Find | None = getattr(feature_ids, "find", None)
        self._find: _Find | None = None
        # A feature may have the name that the query gives to rows without a feature id.
        if len(feature_ids) > _JOINED_FEATURES and find is not None and find(pa.array(["null"]))[0] < 0:
            self._find = find
            [(threads,)] = connection.execute("SELECT current_setting('threads')").fetchall()
            connection.execute(f"SET threads = {min(threads, _SEARCH_THREADS)}")
        _create_table(connection, "axis", axis_table(feature_ids if self._find is None else []))
        _create_table(connection, "wanted", wanted_table(batches))

    def rows(self, batch_id: str, value: str) -> Iterator[pa.RecordBatch]:
        """Record batches of one batch and value, streamed, as :meth:`Unloaded.rows` defines them."""
        # Without a table of the axis, every feature is outside of it, and its name arrives with the row.
        query = positions_query("long", self._columns, value, wanted="wanted", axis="axis")
        rows = self.connection.sql(f"{query} WHERE long.batch_id = {literal(batch_id)}").to_arrow_reader(_ROWS_EACH)
        yield from rows if self._find is None else map(partial(_with_positions, self._find), rows)


def _with_positions(find: _Find, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the positions of their features, and the names of those that are not on the axis."""
    import pyarrow as pa

    names = rows.column("outside")
    positions = find(names)
    known = positions >= 0
    columns = {name: rows.column(name) for name in rows.schema.names}
    columns["feature"] = pa.array(positions.astype(np.int32), mask=~known)
    columns["outside"] = (
        pa.nulls(len(rows), names.type)
        if known.all()
        else pa.array(np.where(known, None, names.to_numpy(zero_copy_only=False)), names.type)
    )
    return pa.RecordBatch.from_pydict(columns)


def axis_table(feature_ids: Sequence[str]) -> pa.Table:
    """Table (feature_id, position) of an axis. An axis with ``__arrow_array__`` is converted without Python strings."""
    import pyarrow as pa

    ids = pa.array(feature_ids, None if len(feature_ids) else pa.string()).cast(pa.string())
    return pa.table({"feature_id": ids, "position": np.arange(len(ids), dtype=np.int32)})


def wanted_table(batches: Mapping[str, Sequence[str]]) -> pa.Table:
    """Table (batch_id, sample_id, sample) of the requested samples; ``sample`` is the position in the batch's list."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {"batch_id": [], "sample_id": [], "sample": []}
    for batch_id, sample_ids in batches.items():
        columns["batch_id"] += [batch_id] * len(sample_ids)
        columns["sample_id"] += sample_ids
        columns["sample"] += range(len(sample_ids))
    schema = pa.schema({"batch_id": pa.string(), "sample_id": pa.string(), "sample": pa.int32()})
    return pa.table(columns, schema)


def _create_table(connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    connection.register("arriving", table)
    connection.execute(f"CREATE TABLE {name} AS SELECT * FROM arriving")
    connection.unregister("arriving")
