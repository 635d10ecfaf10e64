"""Athena for tests: moto's endpoint with DuckDB running the UNLOADs. Clients use the real protocol over HTTP.

moto keeps Athena's executions but runs nothing. Here each UNLOAD reads the database's tables (Parquet files of the
test, or tables that the client made in moto's Glue over objects in moto's S3) and writes Parquet to its target in
moto's S3, with the limits of the service: an empty target, at most 100 partitions, a limited length of the query.
"""

from __future__ import annotations

import json
import re
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import boto3
import duckdb
from moto.athena.models import AthenaBackend
from moto.athena.responses import AthenaResponse

_UNLOAD = re.compile(
    r"UNLOAD \((?P<query>.*)\) TO '(?P<target>s3://[^']*)' WITH \(\s*(?P<options>.*)\)\s*", re.DOTALL | re.IGNORECASE
)


class AthenaInDuckDB:
    """Runs the queries.

    Attributes:
        queries: those that were run, in order.
        fail: reason with which the next queries fail after they have written, as when a worker dies.
        scanned_bytes: bytes that each query reports as scanned.
    """

    def __init__(self, database: str, tables: Mapping[str, str]) -> None:
        self.database, self.tables = database, tables
        self.queries: list[str] = []
        self.fail = ""
        self.scanned_bytes = 123_456_789
        self._failures: dict[str, str] = {}

    @contextmanager
    def serving(self) -> Iterator[AthenaInDuckDB]:
        """Context in which moto's Athena runs its queries here."""
        start, get = AthenaBackend.start_query_execution, AthenaResponse.get_query_execution

        def run(backend: AthenaBackend, query: str, *args: Any, **more: Any) -> str:
            execution_id = start(backend, query, *args, **more)
            try:
                self._run(query, execution_id)
            except Exception as error:  # as in the service: the query fails, the endpoint continues
                self._failures[execution_id] = str(error)
            return execution_id

        def describe(response: AthenaResponse) -> str:
            document = json.loads(get(response))
            execution = document["QueryExecution"]
            execution["Statistics"]["DataScannedInBytes"] = self.scanned_bytes
            reason = self._failures.get(execution["QueryExecutionId"])
            if reason is not None:
                execution["Status"] |= {"State": "FAILED", "StateChangeReason": reason}
            return json.dumps(document)

        with (
            mock.patch.object(AthenaBackend, "start_query_execution", run),
            mock.patch.object(AthenaResponse, "get_query_execution", describe),
        ):
            yield self

    def _run(self, query: str, execution_id: str) -> None:
        self.queries.append(query)
        if len(query) > 262_144:
            raise ValueError("QUERY_TEXT_TOO_LARGE")
        unload = _UNLOAD.fullmatch(query)
        if unload is None:
            raise ValueError(f"only UNLOAD is run here, not {query[:80]}")
        if "format='PARQUET'" not in unload["options"]:
            raise ValueError("only Parquet is written here")
        partitioned = re.search(r"partitioned_by=ARRAY\['(\w+)'\]", unload["options"])
        bucket, _, prefix = unload["target"].removeprefix("s3://").partition("/")
        s3 = boto3.client("s3")
        if s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["KeyCount"]:
            raise ValueError(f"HIVE_PATH_ALREADY_EXISTS: {unload['target']}")
        with tempfile.TemporaryDirectory() as scratch, duckdb.connect() as connection:
            self._make_tables(connection, s3, Path(scratch))
            target = Path(scratch) / "rows"
            options = "FORMAT parquet" + (
                f", PARTITION_BY ({partitioned[1]})" if partitioned else ", PER_THREAD_OUTPUT"
            )
            connection.execute(f"COPY ({unload['query']}) TO '{target}' ({options})")
            files = sorted(target.rglob("*.parquet"))
            if partitioned and len({file.parent for file in files}) > 100:
                raise ValueError("HIVE_TOO_MANY_OPEN_PARTITIONS: Exceeded limit of 100 open writers for partitions")
            for number, file in enumerate(files):
                folder = urllib.parse.unquote(file.parent.relative_to(target).as_posix())
                # Named as by Athena: without the suffix .parquet.
                key = "/".join(part for part in (prefix, folder.strip("."), f"20261121_{number:05d}_abcde") if part)
                s3.put_object(Bucket=bucket, Key=key, Body=file.read_bytes())
            s3.put_object(Bucket=bucket, Key=f"{prefix}/{execution_id}-manifest.csv", Body=b"s3://...\n")
            s3.put_object(Bucket=bucket, Key=f"{prefix}/{execution_id}.metadata", Body=b"\x0a\x12")
        if self.fail:
            raise ValueError(self.fail)

    def _make_tables(self, connection: duckdb.DuckDBPyConnection, s3: Any, scratch: Path) -> None:
        connection.execute(f'CREATE SCHEMA "{self.database}"')
        files = dict(self.tables)
        for table in boto3.client("glue").get_tables(DatabaseName=self.database)["TableList"]:
            location = table["StorageDescriptor"]["Location"]
            bucket, _, prefix = location.removeprefix("s3://").partition("/")
            folder = scratch / table["Name"]
            folder.mkdir()
            for found in s3.list_objects_v2(Bucket=bucket, Prefix=prefix)["Contents"]:
                rows = s3.get_object(Bucket=bucket, Key=found["Key"])["Body"].read()
                (folder / found["Key"].replace("/", "_")).write_bytes(rows)
            files[table["Name"]] = f"{folder}/*"
        for name, pattern in files.items():
            connection.execute(
                f'CREATE VIEW "{self.database}"."{name}" AS SELECT * FROM '
                f"read_parquet('{pattern}', hive_partitioning = true, hive_types_autocast = false)"
            )
