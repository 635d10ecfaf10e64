"""A warehouse of Parquet files in folders by batch, on a disk or in a bucket, queried by an embedded DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsspec.core import url_to_fs

from zarr_core.errors import WarehouseError
from zarr_core.storage import is_local, redact_url
from zarr_core.warehouses.join import PositionJoin, duckdb_connection
from zarr_core.warehouses.long import LongTable
from zarr_core.warehouses.protocol import Cost, LongColumns
from zarr_core.warehouses.sql import distinct_query, identifier, literal, value_column

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


class DuckDBWarehouse(LongTable):
    """Long rows in Parquet files.

    Args:
        files: pattern of paths or URLs, "s3://bucket/long/*/*.parquet". A folder "batch_id=b1" above the files gives
            the column ``batch_id``; it may also be a column of the files.
        columns: their names.
    """

    cost = Cost()

    def __init__(self, files: str, columns: LongColumns | None = None) -> None:
        super().__init__(columns)
        self.files = files
        self._pinned: list[str] | None = None

    def __repr__(self) -> str:
        return f"DuckDBWarehouse({redact_url(self.files)!r})"

    def pinned(self) -> DuckDBWarehouse:
        """The files that are there now; those that come later are not seen."""
        pinned = DuckDBWarehouse(self.files, self.columns)
        pinned._pinned = self._file_names()
        return pinned

    @contextmanager
    def unload(
        self, batches: Mapping[str, Sequence[str]], values: Sequence[str], feature_ids: Sequence[str]
    ) -> Iterator[_JoinedFiles]:
        """Make rows readable; each reading is a query of its own, whose rows are streamed."""
        for value in values:
            value_column(self.columns, value)
        with self._connection() as connection:
            yield _JoinedFiles(PositionJoin(connection, batches, feature_ids), self.columns)

    def _distinct(self, names: Sequence[str], among: Sequence[str] | None) -> Iterable[tuple[str | None, ...]]:
        with self._connection() as connection:
            return connection.sql(distinct_query("long", names, among)).fetchall()

    def _file_names(self) -> list[str]:
        fs, pattern = url_to_fs(self.files)
        fs.invalidate_cache()
        found = sorted(fs.glob(pattern))
        if not found:
            raise WarehouseError(f"{self!r}: no file is there")
        return found if is_local(self.files) else [fs.unstrip_protocol(name) for name in found]

    @contextmanager
    def _connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """DuckDB with the table as a view ``long``."""
        files = self._file_names() if self._pinned is None else self._pinned
        with duckdb_connection(repr(self)) as connection:
            if not is_local(self.files):
                connection.register_filesystem(url_to_fs(self.files)[0])
            connection.execute(
                f"CREATE VIEW long AS SELECT * FROM read_parquet([{', '.join(map(literal, files))}], "
                "hive_partitioning = true, hive_types_autocast = false)"
            )
            present = {name for name, *_ in connection.execute("DESCRIBE long").fetchall()}
            named = [self.columns.batch, self.columns.sample, self.columns.feature, *self.columns.values.values()]
            absent = [name for name in named if name not in present]
            if absent:
                raise WarehouseError(
                    f"{self!r} has no column {', '.join(map(identifier, absent))}, it has "
                    f"{', '.join(sorted(present))}; say which columns to read with LongColumns"
                )
            yield connection


@dataclass(frozen=True)
class _JoinedFiles:
    join: PositionJoin
    columns: LongColumns

    def rows(self, batch_id: str, value: str) -> Iterator[pa.RecordBatch]:
        return self.join.rows("long", self.columns, batch_id, value)
