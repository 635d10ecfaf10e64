"""A warehouse that is queried by Amazon Athena. ``UNLOAD`` writes the joined rows to S3, where they are read.

Each unload gets a new prefix, which is deleted after reading and after any failure. Leftovers of killed processes are
deleted one day later. An axis is uploaded once, as a table named by a digest of its content, and kept.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zarr_core._util.redaction import redact, refuse_credentials
from zarr_core._util.units import format_size
from zarr_core.errors import WarehouseError
from zarr_core.warehouses.join import axis_table, distinct_query, identifier, in_list, literal, positions_query
from zarr_core.warehouses.protocol import Cost, LongColumns, Unloaded, Warehouse

if TYPE_CHECKING:
    import pyarrow as pa

# Athena's limits per query. The margin of 8,192 characters is for the text around the lists of ids.
_MOST_PARTITIONS = 100
_MOST_CHARACTERS = 262_144 - 8_192
_LEAST_BYTES_CHARGED = 10_000_000
_TERABYTE = 10**12
_ORPHAN_AGE = timedelta(hours=24)
# Suffixes of Athena's other files beside the Parquet files, whose names have no fixed suffix.
_NOT_ROWS = [".csv", ".metadata", ".txt"]
_ROWS_EACH = 1 << 17

logger = logging.getLogger(__name__)


class AthenaWarehouse(Warehouse):
    """A long table in Athena. boto3 takes credentials and region from the environment.

    Args:
        table: the long table.
        database: database of the table; one small table per axis is created in it.
        staging: S3 prefix for unloaded rows and axes, used by nothing else.
        workgroup: workgroup of the queries.
        sample_batches: small table with the batch and sample columns, as in "sample_batch_map", for looking up samples;
            None scans the long table.
        usd_per_terabyte: price per terabyte scanned, for the reported cost.
        columns: names of the table's columns.

    Examples:
        >>> warehouse = AthenaWarehouse(table="methylation_long", database="lab", staging="s3://lab/staging")
    """

    def __init__(
        self,
        table: str,
        *,
        database: str,
        staging: str,
        workgroup: str = "primary",
        sample_batches: str | None = None,
        usd_per_terabyte: float = 5.0,
        columns: LongColumns | None = None,
    ) -> None:
        super().__init__(columns)
        refuse_credentials(staging)
        if not staging.startswith("s3://") or "'" in staging:
            raise WarehouseError(f"staging {redact(staging)!r} is not an S3 prefix such as s3://bucket/staging")
        self.table = table
        self.database = database
        self.staging = staging.rstrip("/")
        self.workgroup = workgroup
        self.sample_batches = sample_batches
        self.usd_per_terabyte = usd_per_terabyte
        self.cost = Cost()

    def __repr__(self) -> str:
        return f"AthenaWarehouse({self.table!r}, database={self.database!r})"

    def pinned(self) -> AthenaWarehouse:
        """A copy of the warehouse with zero cost. Athena has no snapshot that several queries could share."""
        pinned = copy.copy(self)
        pinned.cost = Cost()
        return pinned

    @contextmanager
    def unload(
        self, batches: Mapping[str, Sequence[str]], values: Sequence[str], feature_ids: Sequence[str]
    ) -> Iterator[_UnloadedFiles]:
        """Unload rows with one query per value, or several if one would exceed Athena's limits."""
        import awswrangler

        with self.errors():  # delete what killed processes left behind
            awswrangler.s3.delete_objects(f"{self.staging}/unloads/", last_modified_end=datetime.now(UTC) - _ORPHAN_AGE)
        axis = self._axis_table(feature_ids)
        numbers = {batch_id: number for number, batch_id in enumerate(batches)}
        queries: dict[str, list[str]] = defaultdict(list)
        with self._prefix() as prefix:
            for value in values:
                for part, wanted in enumerate(_parts(batches)):
                    query = self._positions_query(value, wanted, axis)
                    execution = self._unload(query, f"{prefix}/{value}/{part}", ["batch"])
                    for batch_id in {row.batch_id for row in wanted}:
                        queries[batch_id].append(execution)
            yield _UnloadedFiles(self, prefix, numbers, queries)

    def _distinct(self, names: Sequence[str], among: Sequence[str] | None) -> Iterable[tuple[str | None, ...]]:
        table = self.table
        if self.sample_batches and set(names) <= {self.columns.batch, self.columns.sample}:
            table = self.sample_batches
        found: list[tuple[str | None, ...]] = []
        # One batch of these ids has the limits of one query.
        parts = [None] if among is None else _parts({"": among})
        with self._prefix() as prefix:
            for number, part in enumerate(parts):
                path = f"{prefix}/{number}"
                ids = None if part is None else [wanted.sample_id for wanted in part]
                self._unload(distinct_query(self._quoted(table), names, ids), path)
                for rows in self.read(path):
                    found += [tuple(row.values()) for row in rows.to_pylist()]
        return found

    def _quoted(self, table: str) -> str:
        return f"{identifier(self.database)}.{identifier(table)}"

    def _positions_query(self, value: str, wanted: Sequence[_Wanted], axis: str) -> str:
        rows = [f"({literal(w.batch_id)}, {literal(w.sample_id)}, {w.sample}, {w.batch})" for w in wanted]
        table = f"(SELECT * FROM (VALUES {', '.join(rows)}) AS rows_wanted (batch_id, sample_id, sample, batch))"
        query = positions_query(
            self._quoted(self.table), self.columns, value, wanted=table, axis=self._quoted(axis), last="batch"
        )
        return f"{query} WHERE long.batch_id IN {in_list(dict.fromkeys(row.batch_id for row in wanted))}"

    def _unload(self, query: str, path: str, partitioned_by: list[str] | None = None) -> str:
        """Run a query that writes its rows below an empty path; returns the id of its execution."""
        import awswrangler

        with self.errors():
            metadata = awswrangler.athena.unload(
                query, path, self.database, "PARQUET", partitioned_by=partitioned_by, workgroup=self.workgroup
            )
        scanned = int(metadata.raw_payload.get("Statistics", {}).get("DataScannedInBytes", 0))
        usd = max(scanned, _LEAST_BYTES_CHARGED) / _TERABYTE * self.usd_per_terabyte
        self.cost += Cost(queries=1, bytes_scanned=scanned, usd=usd)
        logger.info("%r: query %s scanned %s", self, metadata.execution_id, format_size(scanned))
        return str(metadata.execution_id)

    @contextmanager
    def _prefix(self) -> Iterator[str]:
        """A new prefix for unloaded rows, deleted at the end."""
        import awswrangler

        prefix = f"{self.staging}/unloads/{uuid.uuid4().hex}"
        try:
            yield prefix
        finally:
            with self.errors():
                awswrangler.s3.delete_objects(f"{prefix}/")

    def read(self, path: str) -> Iterator[pa.RecordBatch]:
        """Rows of the Parquet files below a path. One file at a time is on the local disk."""
        import awswrangler
        import pyarrow.parquet

        with self.errors():
            files = awswrangler.s3.list_objects(f"{path}/", ignore_suffix=_NOT_ROWS)
        with tempfile.TemporaryDirectory() as scratch:
            local = Path(scratch) / "rows.parquet"
            for file in files:
                with self.errors():
                    awswrangler.s3.download(file, str(local))
                with pyarrow.parquet.ParquetFile(local) as rows:
                    yield from rows.iter_batches(_ROWS_EACH)

    def errors(self) -> AbstractContextManager[None]:
        """Raises errors of the services as WarehouseError."""
        from awswrangler import exceptions
        from botocore.exceptions import BotoCoreError, ClientError

        return self._errors_of(exceptions, BotoCoreError, ClientError)

    def _axis_table(self, feature_ids: Sequence[str]) -> str:
        """Name of the table (feature_id, position) of an axis; creates the table if it is missing."""
        import awswrangler
        import pyarrow.parquet

        axis = axis_table(feature_ids)
        content = hashlib.sha256()
        for part in axis.to_batches(_ROWS_EACH):
            content.update("\n".join([*part.column("feature_id").to_pylist(), ""]).encode())
        digest = content.hexdigest()[:32]
        name = f"zarr_core_axis_{digest}"
        with self.errors():
            if awswrangler.catalog.does_table_exist(self.database, name):
                return name
            folder = f"{self.staging}/axes/{digest}/"
            with tempfile.TemporaryDirectory() as scratch:
                file = Path(scratch) / "axis.parquet"
                pyarrow.parquet.write_table(axis, file)
                awswrangler.s3.upload(str(file), f"{folder}axis.parquet")
            awswrangler.catalog.create_parquet_table(
                self.database, name, folder, {"feature_id": "string", "position": "int"}
            )
        return name


@dataclass(frozen=True)
class _UnloadedFiles(Unloaded):
    warehouse: AthenaWarehouse
    prefix: str
    numbers: Mapping[str, int]
    queries: Mapping[str, Sequence[str]]

    def source(self, batch_id: str) -> dict[str, str]:
        """The table, and the ids of the query executions: one per value, or several."""
        table = f"{self.warehouse.database}.{self.warehouse.table}"
        return {"kind": "athena", "table": table, "queries": " ".join(self.queries[batch_id])}

    def rows(self, batch_id: str, value: str) -> Iterator[pa.RecordBatch]:
        import awswrangler

        with self.warehouse.errors():
            parts = awswrangler.s3.list_directories(f"{self.prefix}/{value}/")
        for part in parts:
            yield from self.warehouse.read(f"{part}batch={self.numbers[batch_id]}")


class _Wanted(NamedTuple):
    """A requested sample: its id and its batch's, and the numbers of both."""

    batch_id: str
    sample_id: str
    sample: int
    batch: int


def _parts(batches: Mapping[str, Sequence[str]]) -> Iterator[list[_Wanted]]:
    """The requested samples in lists, each within the limits of one query."""
    part: list[_Wanted] = []
    named: set[str] = set()
    characters = 0
    for number, (batch_id, sample_ids) in enumerate(batches.items()):
        for sample, sample_id in enumerate(sample_ids):
            # Quoting may double an id. The batch id appears a second time after IN.
            more = 2 * len(sample_id) + (2 if batch_id in named else 4) * len(batch_id) + 40
            if part and (characters + more > _MOST_CHARACTERS or len(named | {batch_id}) > _MOST_PARTITIONS):
                yield part
                part, named, characters = [], set(), 0
            part.append(_Wanted(batch_id, sample_id, sample, number))
            named.add(batch_id)
            characters += more
    if part:
        yield part
