"""Tables and numbers for the UI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

Cell = str | int | float | bool

# The UI renders all rows of a table, and each materialization keeps them in the database.
MAX_ROWS = 25


def table(rows: Sequence[Mapping[str, Cell]]) -> dg.TableMetadataValue:
    """The first rows as a table. Columns are those of the first row; numbers have types, so that the UI aligns them."""
    columns = rows[0] if rows else {"": ""}
    schema = dg.TableSchema([dg.TableColumn(name, _type(value)) for name, value in columns.items()])
    return dg.TableMetadataValue(
        [dg.TableRecord({name: short(value) for name, value in row.items()}) for row in rows[:MAX_ROWS]], schema
    )


def short(value: Cell) -> Cell:
    """Round a number to five digits for display; the store keeps all of them."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _type(value: Cell) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: "int", float: "float"}.get(type(value), "string")
