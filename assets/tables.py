"""Tables and numbers as the UI shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

Cell = str | int | float | bool

# The UI draws a table whole, and keeps every row of it in the database with each materialisation.
MOST_ROWS = 25


def table(rows: Sequence[Mapping[str, Cell]]) -> dg.TableMetadataValue:
    """The first rows as a table; columns as in the first row, numbers typed so that the UI aligns them."""
    columns = rows[0] if rows else {"": ""}
    schema = dg.TableSchema([dg.TableColumn(name, _type(value)) for name, value in columns.items()])
    return dg.TableMetadataValue(
        [dg.TableRecord({name: short(value) for name, value in row.items()}) for row in rows[:MOST_ROWS]], schema
    )


def short(value: Cell) -> Cell:
    """A number as people read it; the store keeps all its digits."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _type(value: Cell) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: "int", float: "float"}.get(type(value), "string")
