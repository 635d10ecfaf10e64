"""SQL in the dialect that DuckDB and Athena share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zarr_core.errors import WarehouseError
from zarr_core.warehouses.protocol import LongColumns


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

    Args:
        source: the long table.
        columns: column names of the source.
        value: name of a value.
        wanted: relation (batch_id, sample_id, sample, ...): the requested samples and the position of each.
        axis: relation (feature_id, position).
        last: a column of ``wanted`` to append to the result's columns.
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
    """Query for distinct rows of columns as text, restricted to rows whose first column is in ``among``."""
    where = "" if among is None else f" WHERE {text_of(names[0])} IN {in_list(among)}"
    columns = ", ".join(f"{text_of(name)} AS {identifier(f'c{number}')}" for number, name in enumerate(names))
    return f"SELECT DISTINCT {columns} FROM {source}{where}"
