"""A warehouse of Parquet files on a disk or in a bucket, queried by an embedded DuckDB."""

from __future__ import annotations

import glob
import logging
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from fsspec.core import url_to_fs

from zarr_core._util.digests import json_digest
from zarr_core._util.redaction import redact
from zarr_core.errors import WarehouseError
from zarr_core.storage import absolute, is_local
from zarr_core.warehouses.join import PositionJoin, distinct_query, duckdb_connection, literal, value_column
from zarr_core.warehouses.protocol import LongColumns, Unloaded, Warehouse

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


logger = logging.getLogger(__name__)


class ListedFile(NamedTuple):
    """A file: its path or full URL, its bytes, and its etag or time of the last modification; "" if not known."""

    name: str
    size: int
    version: str


class DuckDBWarehouse(Warehouse):
    """A long table in Parquet files.

    Args:
        files: glob pattern of paths or URLs, as in "s3://bucket/long/*/*.parquet". The column ``batch_id`` comes from
            folder names such as "batch_id=b1", or from the files. Links to files and folders are followed.
        columns: names of the table's columns.

    Examples:
        >>> warehouse = DuckDBWarehouse("long/*/*.parquet", LongColumns(feature="probe_id"))
    """

    def __init__(self, files: str, columns: LongColumns | None = None) -> None:
        super().__init__(columns)
        self.files = absolute(files)
        self._pinned: list[ListedFile] | None = None

    def __repr__(self) -> str:
        return f"DuckDBWarehouse({redact(self.files)!r})"

    def pinned(self) -> DuckDBWarehouse:
        """The current list of files. Files that are added later are not visible through it."""
        pinned = DuckDBWarehouse(self.files, self.columns)
        pinned._pinned = self._listed()
        return pinned

    @contextmanager
    def unload(
        self, batches: Mapping[str, Sequence[str]], values: Sequence[str], feature_ids: Sequence[str]
    ) -> Iterator[_JoinedFiles]:
        """Make rows readable. Each call of ``rows`` runs one query and streams its result."""
        files = self._listed()
        with self._connection() as connection:
            chosen = self.files_of(files, batches) or files[:1]
            self._check_folders(connection, chosen)
            for value in values:
                self._warn_of_absent(connection, chosen, value_column(self.columns, value))
            yield _JoinedFiles(self, files, PositionJoin(connection, self.columns, batches, values, feature_ids))

    def _distinct(self, names: Sequence[str], among: Sequence[str] | None) -> Iterable[tuple[str | None, ...]]:
        files = self._listed()
        with self._connection() as connection:
            self.make_view(connection, files, among if names[0] == self.columns.batch else None)
            return connection.sql(distinct_query("long", names, among)).fetchall()

    def make_view(
        self, connection: duckdb.DuckDBPyConnection, files: Sequence[ListedFile], batch_ids: Collection[str] | None
    ) -> None:
        """Create the view ``long`` with at least the rows of ``batch_ids`` (None: of all batches).

        A file is left out only if its folder names another batch.
        """
        chosen = self.files_of(files, batch_ids) or files[:1]  # without a match any file gives the columns
        _view(connection, chosen)
        present = {name: kind for name, kind, *_ in connection.execute("DESCRIBE long").fetchall()}
        ids = [self.columns.batch, self.columns.sample, self.columns.feature]
        self._check_columns([*ids, *self.columns.values.values()], present)
        for name in ids:
            if present[name] == "VARCHAR" or "INT" in present[name]:
                continue
            columns = f"parquet_schema({_named(chosen)}) WHERE name = {literal(name)}"
            kinds = connection.execute(f"SELECT DISTINCT duckdb_type FROM {columns} ORDER BY 1").fetchall()
            if len(kinds) > 1:
                named = " and ".join(kind for (kind,) in kinds)
                raise WarehouseError(
                    f"{self!r}: column {name} is {named} in different files, so an id has several texts, such as 7 and "
                    "7.0; write it with one type, best as text"
                )

    def _check_folders(self, connection: duckdb.DuckDBPyConnection, files: Sequence[ListedFile]) -> None:
        """Raise WarehouseError if a folder names another batch than a file in it: DuckDB reads only the folder's."""
        column = self.columns.batch
        for name in _types(connection, files, column):
            home = batch_folder(column).search(name)
            if home is None:
                continue
            source = f"read_parquet({literal(glob.escape(name))}, hive_partitioning = false)"
            for (batch_id,) in connection.sql(distinct_query(source, [column])).fetchall():
                if batch_id != unquote(home[1]):
                    raise WarehouseError(
                        f"{redact(name)} has rows whose {column} is {batch_id!r} in the file, and {unquote(home[1])!r} "
                        "by its folder; move the rows to the folder of their batch, or correct the column"
                    )

    def _warn_of_absent(self, connection: duckdb.DuckDBPyConnection, files: Sequence[ListedFile], column: str) -> None:
        """Name the files without a column: DuckDB reads nulls from them if another file has it."""
        having = _types(connection, files, column)
        without = [file.name for file in files if file.name not in having]
        if without:
            text = "%r: %d of %d files have no column %s, so its value is missing in their rows, such as those of %s"
            logger.warning(text, self, len(without), len(files), column, redact(without[0]))

    def files_of(self, files: Sequence[ListedFile], batch_ids: Collection[str] | None) -> list[ListedFile]:
        """The files that may hold rows of batches (None: of all): a folder may name the batch of its files."""
        folder = batch_folder(self.columns.batch)
        found = []
        for file in files:
            home = folder.search(file.name)
            if batch_ids is None or home is None or unquote(home[1]) in batch_ids:
                found.append(file)
        return found

    def is_unchanged(self, batch_id: str, source: Mapping[str, str]) -> bool:
        """Whether the files that may hold the batch have the recorded names, sizes and versions."""
        return source.get("sha256") == json_digest(self.files_of(self._listed(), [batch_id]))

    def _listed(self) -> list[ListedFile]:
        if self._pinned is not None:
            return self._pinned
        found = list_files(self.files)
        if not found:
            raise WarehouseError(f"{self!r}: no file matches the pattern")
        return found

    @contextmanager
    def _connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with duckdb_connection(repr(self)) as connection:
            if not is_local(self.files):
                connection.register_filesystem(url_to_fs(self.files)[0])
            else:  # DuckDB would keep the files in its memory, beside the system's own cache
                connection.execute("SET enable_external_file_cache = false")
            connection.execute("SET parquet_metadata_cache = true")
            yield connection


def _named(files: Iterable[ListedFile]) -> str:
    """SQL list of the names of files, without wildcards."""
    return "[" + ", ".join(literal(glob.escape(file.name)) for file in files) + "]"


def _types(connection: duckdb.DuckDBPyConnection, files: Iterable[ListedFile], column: str) -> dict[str, str]:
    """DuckDB's type of a column by file, for the files that have it."""
    schemas = f"parquet_schema({_named(files)}) WHERE lower(name) = lower({literal(column)})"
    return dict(connection.execute(f"SELECT file_name, duckdb_type FROM {schemas}").fetchall())


def _view(connection: duckdb.DuckDBPyConnection, files: Iterable[ListedFile]) -> None:
    """Create the view ``long`` of files; by default DuckDB would cast their columns to the types of the first one."""
    options = "union_by_name = true, hive_partitioning = true, hive_types_autocast = false"
    connection.execute(f"CREATE OR REPLACE VIEW long AS SELECT * FROM read_parquet({_named(files)}, {options})")


@dataclass(frozen=True)
class _JoinedFiles(Unloaded):
    warehouse: DuckDBWarehouse
    files: Sequence[ListedFile]
    join: PositionJoin

    def rows(self, batch_id: str, value: str) -> Iterator[pa.RecordBatch]:
        connection, files = self.join.connection, self.warehouse.files_of(self.files, [batch_id])
        self.warehouse.make_view(connection, self.files, [batch_id])
        # DuckDB would convert whole numbers in some files to the float32 of others, which rounds them.
        types = _types(connection, files, value_column(self.warehouse.columns, value)) if files else {}
        alike: dict[str, list[ListedFile]] = {}
        for file in files:
            alike.setdefault(types.get(file.name, min(types.values())), []).append(file)
        for group in alike.values():
            _view(connection, group)
            yield from self.join.rows(batch_id, value)
        for file in files:
            _check_listed(file)

    def source(self, batch_id: str) -> dict[str, str]:
        """The files that may hold the batch, by a digest of their names, sizes and versions (times or etags)."""
        chosen = self.warehouse.files_of(self.files, [batch_id])
        files = redact(self.warehouse.files)
        return {"kind": "parquet", "files": files, "count": str(len(chosen)), "sha256": json_digest(chosen)}


def batch_folder(column: str) -> re.Pattern[str]:
    """Pattern of the folder that names a file's batch; group 1 is the percent-encoded batch id."""
    return re.compile(rf"(?:^|/){re.escape(column)}=([^/]+)/")


def _check_listed(file: ListedFile) -> None:
    """Raise WarehouseError if a file is not the one that was listed; call it after its rows were read."""
    found = list_files(glob.escape(file.name))
    if found != [file]:
        what = "was replaced" if found else "was removed"
        raise WarehouseError(f"{redact(file.name)} {what} while its rows were read; load the batch again")


def list_files(pattern: str) -> list[ListedFile]:
    """Files by name, sorted. Links on a disk are followed: to files, and to folders.

    Raises:
        WarehouseError: a link has no target, or a folder on the way cannot be read.
    """
    if is_local(pattern):
        return _local_files(str(url_to_fs(pattern)[1]))
    fs, path = url_to_fs(pattern)
    fs.invalidate_cache()
    found = fs.glob(path, detail=True)
    listed = []
    for name, info in found.items():
        version = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified") or ""
        listed.append(ListedFile(fs.unstrip_protocol(name), int(info["size"]), str(version)))
    return listed


def _local_files(pattern: str) -> list[ListedFile]:
    # fsspec's glob does not enter folders that are links. Python's does, but skips what it cannot enter.
    for parent in PurePath(pattern).parents:
        if glob.has_magic(str(parent)):
            for path in glob.iglob(str(parent), recursive=True, include_hidden=True):
                _check_folder(path)
    found = []
    for path in sorted(glob.glob(pattern, recursive=True, include_hidden=True)):
        try:
            info = os.stat(path)
        except OSError as error:
            if not os.path.lexists(path):
                continue
            raise WarehouseError(f"{path} matches {pattern}, but cannot be read: {error.strerror}") from error
        found.append(ListedFile(path, info.st_size, str(info.st_mtime)))
    return found


def _check_folder(path: str) -> None:
    """Raise WarehouseError for a link without a target, or a folder that cannot be listed."""
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            os.scandir(path).close()
    except OSError as error:
        if not os.path.lexists(path):
            return  # it was removed just now
        raise WarehouseError(f"{path} cannot be read, so its files would be missing: {error.strerror}") from error
