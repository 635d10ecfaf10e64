"""Build a warehouse from a mapping with the key ``kind``, as declared in YAML."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

from zarr_core._util.documents import parse_yaml
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
_PACKAGES = {"duckdb": "duckdb", "iceberg": "pyiceberg", "athena": "awswrangler"}


def build_warehouse(settings: Mapping[str, Any]) -> Warehouse:
    """Build the warehouse that settings describe, without querying it.

    Args:
        settings: ``kind`` is "duckdb", "iceberg" or "athena"; the other keys are arguments of its class. ``columns``
            is a mapping with the fields of :class:`LongColumns`.

    Raises:
        WarehouseError: the kind is unknown, its package is not installed, or a setting is unknown or missing.
    """
    arguments = dict(settings)
    kind = arguments.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise WarehouseError(f"no kind of warehouse {kind!r}; use one of {', '.join(_KINDS)}")
    if find_spec(_PACKAGES[kind]) is None:
        raise WarehouseError(f"a warehouse of kind {kind} needs {_PACKAGES[kind]}: pip install 'zarr-core[warehouse]'")
    signature = inspect.signature(_KINDS[kind])
    # Unknown settings are reported before missing ones, because a misspelt setting is both.
    _check_names(f"warehouse of kind {kind}", arguments, list(signature.parameters))
    if (columns := arguments.get("columns")) is not None:
        _check_names(f"columns of warehouse of kind {kind}", columns, [field.name for field in fields(LongColumns)])
        arguments["columns"] = LongColumns(**columns)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise WarehouseError(f"warehouse of kind {kind}: {error}") from error
    return _KINDS[kind](**arguments)


def open_warehouse(source: str, columns: Mapping[str, str], values: Sequence[str]) -> Warehouse:
    """The warehouse that a command line names, without querying it.

    Args:
        source: glob pattern of Parquet files, or a ``.yaml`` file with the settings of :func:`build_warehouse`.
        columns: other names of columns: of "batch", "sample", "feature" or a value.
        values: names of the values that will be unloaded.

    Raises:
        WarehouseError: the file cannot be read, or a setting or column is unknown.
    """
    if source.endswith((".yaml", ".yml")):
        if columns:
            raise WarehouseError(f"{source} describes the warehouse; name the columns there, under the key columns")
        try:
            with open(source, "rb") as file:
                settings = parse_yaml(file.read())
        except (OSError, ValueError) as error:
            raise WarehouseError(f"{source} cannot be read: {error}") from error
        if not isinstance(settings, dict):
            raise WarehouseError(f"{source}: expected a mapping with the key kind, got {settings!r:.80}")
        return build_warehouse(settings)
    roles = {name: column for name, column in columns.items() if name in ("batch", "sample", "feature")}
    if unknown := [name for name in columns if name not in roles and name not in values]:
        known = ", ".join(["batch", "sample", "feature", *values])
        raise WarehouseError(f"no column {', '.join(unknown)} to name; there are {known}")
    renamed = {**roles, "values": {name: columns.get(name, name) for name in values}}
    return build_warehouse({"kind": "duckdb", "files": source, "columns": renamed})


def _check_names(where: str, settings: object, known: list[str]) -> None:
    if not isinstance(settings, Mapping):
        raise WarehouseError(f"{where}: expected a mapping with the keys {', '.join(known)}, got {settings!r}")
    if unknown := [str(name) for name in settings if name not in known]:
        raise WarehouseError(f"{where}: no setting {', '.join(unknown)}; the settings are {', '.join(known)}")
