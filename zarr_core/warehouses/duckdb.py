"""A warehouse of Parquet files in folders by batch, on a disk or in a bucket, queried by an embedded DuckDB."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from fsspec.core import url_to_fs

from zarr_core._util.redaction import redact_url
from zarr_core.errors import WarehouseError
from zarr_core.storage import is_local
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
        files = self._file_names()
        with self._connection() as connection:
            yield _JoinedFiles(self, files, PositionJoin(connection, self.columns, batches, feature_ids))

    def _distinct(self, names: Sequence[str], among: Sequence[str] | None) -> Iterable[tuple[str | None, ...]]:
        files = self._file_names()
        with self._connection() as connection:
            self.make_view(connection, files, among if names[0] == self.columns.batch else None)
            return connection.sql(distinct_query("long", names, among)).fetchall()

    def make_view(
        self, connection: duckdb.DuckDBPyConnection, files: Sequence[str], batch_ids: Collection[str] | None
    ) -> None:
        """Give DuckDB the view ``long``: rows of some batches (None: of all), and maybe of others.

        Only files are read whose folders tell that they hold one of the batches, or do not tell. Columns have the type
        that can hold what all of these files store: DuckDB would take that of the first file, and round the others.
        """
        folder = batch_folder(self.columns.batch)
        homes = [(file, folder.search(file)) for file in files]
        chosen = [file for file, home in homes if batch_ids is None or home is None or unquote(home[1]) in batch_ids]
        named_files = ", ".join(map(literal, chosen or files[:1]))  # one will do for what nobody holds
        connection.execute(
            f"CREATE OR REPLACE VIEW long AS SELECT * FROM read_parquet([{named_files}], "
            "union_by_name = true, hive_partitioning = true, hive_types_autocast = false)"
        )
        present = {name for name, *_ in connection.execute("DESCRIBE long").fetchall()}
        named = [self.columns.batch, self.columns.sample, self.columns.feature, *self.columns.values.values()]
        absent = [name for name in named if name not in present]
        if absent:
            raise WarehouseError(
                f"{self!r} has no column {', '.join(map(identifier, absent))}, it has "
                f"{', '.join(sorted(present))}; say which columns to read with LongColumns"
            )

    def _file_names(self) -> list[str]:
        if self._pinned is not None:
            return self._pinned
        fs, pattern = url_to_fs(self.files)
        fs.invalidate_cache()
        found = sorted(fs.glob(pattern))
        if not found:
            raise WarehouseError(f"{self!r}: no file is there")
        return found if is_local(self.files) else [fs.unstrip_protocol(name) for name in found]

    @contextmanager
    def _connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with duckdb_connection(repr(self)) as connection:
            if not is_local(self.files):
                connection.register_filesystem(url_to_fs(self.files)[0])
            connection.execute("SET parquet_metadata_cache = true")
            yield connection


@dataclass(frozen=True)
class _JoinedFiles:
    warehouse: DuckDBWarehouse
    files: Sequence[str]
    join: PositionJoin

    def rows(self, batch_id: str, value: str) -> Iterator[pa.RecordBatch]:
        self.warehouse.make_view(self.join.connection, self.files, [batch_id])
        return self.join.rows(batch_id, value)


def batch_folder(column: str) -> re.Pattern[str]:
    """The folder in a file's name that tells its batch, and the quoted batch in it."""
    return re.compile(rf"(?:^|/){re.escape(column)}=([^/]+)/")
