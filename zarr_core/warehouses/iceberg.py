"""A warehouse in an Iceberg table, read through pyiceberg and joined by an embedded DuckDB."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

from zarr_core._util.redaction import secrets_of
from zarr_core.errors import WarehouseError
from zarr_core.storage import absolute
from zarr_core.warehouses.join import PositionJoin, distinct_query, duckdb_connection, value_column
from zarr_core.warehouses.protocol import LongColumns, Unloaded, Warehouse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import DataScan, Table
    from pyiceberg.table.snapshots import Snapshot


# A SQLite catalogue in a file below the working directory.
_RELATIVE_SQLITE = re.compile(r"(sqlite(?:\+\w+)?:///)((?!file:)[^/:].*)")


class IcebergWarehouse(Warehouse):
    """A long table in Iceberg.

    Args:
        table: table identifier, as in "lab.methylation_long".
        catalog: name of the catalogue in pyiceberg's own configuration (``~/.pyiceberg.yaml``,
            ``PYICEBERG_CATALOG__<NAME>__URI``), where credentials belong.
        properties: catalogue properties, which override the configured ones. A SQLite catalogue is
            ``{"type": "sql", "uri": "sqlite:////data/catalogue.db"}``; other types are "rest" and "glue".
        snapshot_id: snapshot to read instead of the current one, with the names that its columns had then.
        columns: names of the table's columns.

    Examples:
        >>> warehouse = IcebergWarehouse("lab.long", properties={"type": "sql", "uri": "sqlite:////data/catalogue.db"})
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        snapshot_id: int | None = None,
        columns: LongColumns | None = None,
    ) -> None:
        super().__init__(columns)
        self.table = table
        self.catalog = catalog
        self.properties = dict(properties or {})
        if file := _RELATIVE_SQLITE.fullmatch(self.properties.get("uri", "")):
            self.properties["uri"] = f"{file[1]}{absolute(file[2])}"
        self.snapshot_id = snapshot_id
        self._uuid: UUID | None = None
        self._schema_id: int | None = None  # of a pinned warehouse: what names its columns

    def __repr__(self) -> str:
        return f"IcebergWarehouse({self.table!r}, catalog={self.catalog!r})"

    def pinned(self) -> IcebergWarehouse:
        """The table's current snapshot. Rows that are appended later are not visible through it."""
        table = self._load()
        snapshot = table.current_snapshot()
        if snapshot is None:
            raise WarehouseError(f"{self!r} has no snapshot yet: no rows were ever appended")
        pinned = copy.copy(self)
        pinned._schema_id = self._schema_of(table)
        pinned.snapshot_id = self.snapshot_id or snapshot.snapshot_id
        return pinned

    def batch_ids(self) -> list[str]:
        """Every batch id, sorted; from metadata alone if the table is partitioned by batch and has no deleted rows."""
        with self._errors():
            partitions = self._batch_partitions()
        if partitions is None:
            return super().batch_ids()
        doubtful = [name for name, has_rows in partitions.items() if not has_rows]
        held = [name for (name,) in self._complete([self.columns.batch], doubtful)] if doubtful else []
        return sorted({*partitions}.difference(doubtful).union(held))

    @contextmanager
    def unload(
        self, batches: Mapping[str, Sequence[str]], values: Sequence[str], feature_ids: Sequence[str]
    ) -> Iterator[_JoinedScans]:
        """Make rows readable. Each call of ``rows`` scans the files of one batch and streams the rows."""
        with duckdb_connection(repr(self)) as connection:
            yield _JoinedScans(self, PositionJoin(connection, self.columns, batches, values, feature_ids))

    def scan(self, names: Sequence[str], among: Sequence[str] | None) -> pa.RecordBatchReader:
        """Some columns of at least the rows whose first column is in ``among``, or null (None: of all rows)."""
        with self._errors():
            return self._scan(names, among).to_arrow_batch_reader()

    def _distinct(self, names: Sequence[str], among: Sequence[str] | None) -> Iterable[tuple[str | None, ...]]:
        with duckdb_connection(repr(self)) as connection:
            connection.register("long", self.scan(names, among))
            return connection.sql(distinct_query("long", names, among)).fetchall()

    def is_unchanged(self, batch_id: str, source: Mapping[str, str]) -> bool:
        """Whether the batch has the data and delete files of the recorded snapshot, and names mean the same columns."""
        recorded = source.get("snapshot", "")
        if source.get("table") != self.table or not recorded.isdecimal():
            return False
        with self._errors():
            table = self._current
            snapshot = table.snapshot_by_id(int(recorded))
            if snapshot is None:  # it has expired
                return False
            # Before this was recorded, rows were read with the names of the snapshot.
            schema = source.get("schema", str(_schema_of_snapshot(table, snapshot)))
            if self._column_numbers(table, schema) != self._column_numbers(table, str(self._schema_of(table))):
                return False
            return self._files_of(batch_id, int(recorded)) == self._files_of(batch_id, self.snapshot_id)

    def _column_numbers(self, table: Table, schema_id: str) -> dict[str, int]:
        """Iceberg's numbers of the columns that a schema has, which stay when a column is renamed."""
        columns, numbers = self.columns, {}
        for schema in table.metadata.schemas:
            if str(schema.schema_id) == schema_id:
                for name in (columns.batch, columns.sample, columns.feature, *columns.values.values()):
                    if name in schema.column_names:
                        numbers[name] = schema.find_field(name).field_id
        return numbers

    def _files_of(self, batch_id: str, snapshot_id: int | None) -> set[tuple[str, ...]]:
        scan = self._scan([self.columns.batch], [batch_id], snapshot_id)
        found: set[tuple[str, ...]] = set()
        for task in scan.plan_files():
            deletes = sorted(file.file_path for file in task.delete_files)
            found.add((task.file.file_path, *deletes))
        return found

    def _scan(self, names: Sequence[str], among: Sequence[str] | None, snapshot_id: int | None = None) -> DataScan:
        from pyiceberg import types
        from pyiceberg.expressions import AlwaysTrue, In, IsNull, Or

        table = self._named
        self._check_columns(names, table.schema().column_names)
        chosen: BooleanExpression = AlwaysTrue()
        # Of other types, Iceberg's filters do not take the text that DuckDB writes, or find other rows by it.
        exact = types.StringType | types.IntegerType | types.LongType | types.DateType | types.BooleanType
        if among is not None and isinstance(table.schema().find_field(names[0]).field_type, exact):
            chosen = Or(In(names[0], among), IsNull(names[0]))  # type: ignore[call-arg, arg-type]
        return table.scan(chosen, tuple(names), snapshot_id=snapshot_id or self.snapshot_id)

    @property
    def _named(self) -> Table:
        """The table with the names of its columns that hold here, whichever snapshot is read.

        pyiceberg takes the names of columns from the snapshot, which has those of the time when it was written, and the
        names in filters from the table.
        """
        table = self._current
        number = self._schema_of(table)
        snapshots = [snapshot.model_copy(update={"schema_id": number}) for snapshot in table.metadata.snapshots]
        named = copy.copy(table)
        named.metadata = table.metadata.model_copy(update={"snapshots": snapshots, "current_schema_id": number})
        return named

    def _schema_of(self, table: Table) -> int:
        """Number of the schema that names the columns: the latest, or that of the snapshot that was asked for."""
        if self._schema_id is not None:
            return self._schema_id
        snapshot = None if self.snapshot_id is None else table.snapshot_by_id(self.snapshot_id)
        return table.metadata.current_schema_id if snapshot is None else _schema_of_snapshot(table, snapshot)

    @property
    def _current(self) -> Table:
        return self._load() if self.snapshot_id is None else self._pinned

    @cached_property
    def _pinned(self) -> Table:
        return self._load()

    def _load(self) -> Table:
        from pyiceberg.catalog import load_catalog

        with self._errors():
            table = load_catalog(self.catalog, **self.properties).load_table(self.table)
        if self._uuid not in (None, table.metadata.table_uuid):
            reason = "its table was dropped, and another one was created under this name"
            raise WarehouseError(f"{self!r}: {reason}; open the warehouse again")
        self._uuid = table.metadata.table_uuid
        return table

    def _errors(self) -> AbstractContextManager[None]:
        """Raises errors of pyiceberg and its clients as WarehouseError, without secret catalogue properties."""
        from pyiceberg import exceptions

        kinds: list[type[Exception]] = [ValueError, ModuleNotFoundError, OSError]
        with suppress(ImportError):  # without catalogues in SQL
            from sqlalchemy.exc import SQLAlchemyError

            kinds.append(SQLAlchemyError)
        return self._errors_of(exceptions, *kinds, secrets=secrets_of(self.properties))

    def _batch_partitions(self) -> dict[str, bool] | None:
        """Batch ids from the partitions of the data files; None if a file's partition is not a whole batch.

        For each, whether it certainly has rows: all rows of a file may be deleted by other files, as Athena does it.
        """
        from pyiceberg.transforms import IdentityTransform
        from pyiceberg.types import IntegerType, LongType, StringType

        table = self._named
        batch = table.schema().find_field(self.columns.batch)
        if not isinstance(batch.field_type, StringType | IntegerType | LongType):  # dates are stored as numbers
            return None
        found: dict[str, bool] = {}
        for task in table.scan(snapshot_id=self.snapshot_id).plan_files():
            batch_id = None
            for place, field in enumerate(table.specs()[task.file.spec_id].fields):
                if field.source_id == batch.field_id and isinstance(field.transform, IdentityTransform):
                    batch_id = task.file.partition[place]
            if batch_id is None:
                return None
            has_rows = task.file.record_count > 0 and not task.delete_files
            found[str(batch_id)] = has_rows or found.get(str(batch_id), False)
        return found


@dataclass(frozen=True)
class _JoinedScans(Unloaded):
    warehouse: IcebergWarehouse
    join: PositionJoin

    def rows(self, batch_id: str, value: str) -> Iterator[pa.RecordBatch]:
        columns = self.warehouse.columns
        names = [columns.batch, columns.sample, columns.feature, value_column(columns, value)]
        self.join.connection.register("long", self.warehouse.scan(names, [batch_id]))
        return self.join.rows(batch_id, value)

    def source(self, batch_id: str) -> dict[str, str]:
        """The table, its snapshot and schema; only the table if the warehouse was not pinned."""
        snapshot, schema = self.warehouse.snapshot_id, self.warehouse._schema_id
        table = {"kind": "iceberg", "table": self.warehouse.table}
        return table if schema is None else {**table, "snapshot": str(snapshot), "schema": str(schema)}


def _schema_of_snapshot(table: Table, snapshot: Snapshot) -> int:
    """Number of the schema with which a snapshot was written; of the latest one if that is not known."""
    number = snapshot.schema_id
    return number if number is not None and number in table.schemas() else table.metadata.current_schema_id
