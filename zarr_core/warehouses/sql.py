"""SQL that DuckDB and Athena both read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zarr_core.errors import WarehouseError
from zarr_core.warehouses.protocol import LongColumns


def identifier(name: str) -> str:
    """A column's or table's name, quoted."""
    if not name or "\0" in name:
        raise WarehouseError(f"{name!r} cannot be the name of a column or table")
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string, quoted."""
    if "\0" in text:
        raise WarehouseError(f"{text!r} cannot be asked for: it holds a zero character")
    return "'" + text.replace("'", "''") + "'"


def literals(texts: Iterable[str]) -> str:
    """Strings for behind IN."""
    return "(" + ", ".join(map(literal, texts)) + ")"


def text_of(column: str) -> str:
    """A column as text: ids are compared as text, whatever the table makes of them."""
    return f"CAST({identifier(column)} AS VARCHAR)"


def value_column(columns: LongColumns, value: str) -> str:
    """Column that holds a value; raises WarehouseError."""
    if value not in columns.values:
        raise WarehouseError(
            f"the warehouse was told no column for the value {value!r}; it knows {', '.join(columns.values)}"
        )
    return columns.values[value]


def positions_query(source: str, columns: LongColumns, value: str, *, wanted: str, axis: str, last: str = "") -> str:
    """Rows with the positions of their sample and feature, as ``protocol.Unloaded`` has them.

    Args:
        source: the long table.
        columns: of the source.
        value: name of a value.
        wanted: relation (batch_id, sample_id, sample, ...): whose rows, and the position of each sample.
        axis: relation (feature_id, position).
        last: a column of ``wanted`` to have behind the others.
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
    """Distinct values of columns, as text; only of rows whose first column is among some ids."""
    where = "" if among is None else f" WHERE {text_of(names[0])} IN {literals(among)}"
    columns = ", ".join(f"{text_of(name)} AS {identifier(f'c{number}')}" for number, name in enumerate(names))
    return f"SELECT DISTINCT {columns} FROM {source}{where}"
