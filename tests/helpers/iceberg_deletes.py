"""Deletes rows of Iceberg tables as Athena, Trino and Spark do it: by a file of positions. pyiceberg only reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import manifest
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate


class _DeleteManifest(manifest.ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_positions(table: Table, file: DataFile, positions: Sequence[int]) -> None:
    """Commit a snapshot in which rows of a data file are deleted."""
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
            pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
        ]
    )
    url = f"{table.location()}/data/{uuid4().hex}-deletes.parquet"
    path = Path(url.removeprefix("file://"))
    pq.write_table(pa.table([[file.file_path] * len(positions), list(positions)], schema=schema), path)
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=url,
        file_format=manifest.FileFormat.PARQUET,
        partition=file.partition,
        record_count=len(positions),
        file_size_in_bytes=path.stat().st_size,
    )
    deletes.spec_id = table.spec().spec_id
    number, sequence = table.metadata.new_snapshot_id(), table.metadata.next_sequence_number()
    parent = table.current_snapshot()
    assert parent is not None
    out = table.io.new_output(f"{table.location()}/metadata/{uuid4().hex}-m0.avro")
    with _DeleteManifest(table.spec(), table.schema(), out, number, "null") as entries:
        status = manifest.ManifestEntryStatus.ADDED
        entries.add(ManifestEntry.from_args(status=status, snapshot_id=number, data_file=deletes))
    listed = f"{table.location()}/metadata/snap-{number}.avro"
    before = parent.snapshot_id
    with manifest.write_manifest_list(2, table.io.new_output(listed), number, before, sequence, "null") as manifests:
        manifests.add_manifests([entries.to_manifest_file(), *parent.manifests(table.io)])
    snapshot = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=before,
        manifest_list=listed,
        sequence_number=sequence,
        summary=Summary(Operation.DELETE),
        schema_id=table.schema().schema_id,
    )
    to_it = SetSnapshotRefUpdate(snapshot_id=number, parent_snapshot_id=before, ref_name="main", type="branch")
    table._do_commit((AddSnapshotUpdate(snapshot=snapshot), to_it), ())
