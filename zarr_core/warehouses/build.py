"""A warehouse from a mapping, by its ``kind``: what a declaration says in YAML."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from zarr_core.errors import WarehouseError
from zarr_core.warehouses.athena import AthenaWarehouse
from zarr_core.warehouses.duckdb import DuckDBWarehouse
from zarr_core.warehouses.iceberg import IcebergWarehouse
from zarr_core.warehouses.protocol import LongColumns, Warehouse

_KINDS: dict[str, Callable[..., Warehouse]] = {
    "duckdb": DuckDBWarehouse,
    "iceberg": IcebergWarehouse,
    "athena": AthenaWarehouse,
}


def build_warehouse(settings: Mapping[str, Any]) -> Warehouse:
    """Make the warehouse that settings describe. Nothing is asked of it yet.

    Args:
        settings: ``kind`` is "duckdb", "iceberg" or "athena"; everything else are arguments of its class. ``columns``
            is a mapping with the fields of :class:`LongColumns`.

    Raises:
        WarehouseError: there is no such kind, or a setting is unknown or missing.
    """
    arguments = dict(settings)
    kind = arguments.pop("kind", None)
    if kind not in _KINDS:
        raise WarehouseError(f"no kind of warehouse {kind!r}; use one of {', '.join(_KINDS)}")
    try:
        if arguments.get("columns") is not None:
            arguments["columns"] = LongColumns(**arguments["columns"])
        takes = inspect.signature(_KINDS[kind])
        unknown = [name for name in arguments if name not in takes.parameters]
        if unknown:  # before what is missing: a misspelt setting is both
            raise TypeError(f"no setting {', '.join(unknown)}; it takes {', '.join(takes.parameters)}")
        takes.bind(**arguments)
    except TypeError as error:
        raise WarehouseError(f"warehouse of kind {kind}: {error}") from error
    return _KINDS[kind](**arguments)
