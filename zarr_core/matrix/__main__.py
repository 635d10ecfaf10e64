"""Create a wide matrix, load it from a warehouse, show what it holds, complete, copy or export it, and retire samples.

``zarr-core matrix STORE``, ``zarr-core matrix create STORE --features FILE``, ``zarr-core matrix load STORE --source
FILES``, ``zarr-core matrix reindex STORE TARGET --features FILE``, and ``zarr-core matrix retire STORE --samples ID``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from tqdm import tqdm

from zarr_core._util import command_line as cli
from zarr_core._util.commands import shell
from zarr_core._util.units import format_size
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.axis_file import read_axis_ids, read_feature_ids
from zarr_core.matrix.store.batch_names import outside
from zarr_core.matrix.store.create import VALUES
from zarr_core.matrix.store.head import describe_source
from zarr_core.matrix.store.sample_table import Kind, MetadataReport
from zarr_core.warehouses.build import open_warehouse

app = cli.verb(
    "matrix",
    """
zarr-core matrix create s3://bucket/betas --features probes.txt --values beta=float32 coverage=float32
zarr-core matrix load s3://bucket/betas --source 's3://lab/long/*/*.parquet'
zarr-core matrix metadata s3://bucket/betas samples.csv
zarr-core matrix s3://bucket/betas
zarr-core matrix s3://bucket/betas --derive-columns
zarr-core matrix export h5ad s3://bucket/betas betas.h5ad
zarr-core matrix reindex s3://bucket/betas s3://bucket/betas-epic --features epic_probes.txt --union
zarr-core matrix retire s3://bucket/betas --samples GSM1 GSM7 --forget
""",
)
# By its import path, which defers the import: the exports lie above the matrix and need h5py and pyarrow.
app.command(
    "zarr_core.exports.__main__:matrix_formats", name="export", help="Write a matrix as NumPy, Parquet or AnnData."
)


@app.default
@cli.command(quiet=False)
def _command(
    store: cli.Store,
    *,
    derive_columns: Annotated[bool, cli.flag("Write what the column-major copy lacks.")] = False,
    quiet: cli.Quiet = False,
) -> cli.Result:
    matrix = WideMatrix.open(store)
    derived = matrix.derive_columns(progress=not quiet) if derive_columns else []
    lines = [str(matrix)]
    if derived:
        lines.insert(0, f"added to the column-major copy: {', '.join(derived)}")
    elif derive_columns:
        lines.insert(0, "the column-major copy is up to date")
    sources = matrix.batch_sources
    for batch, ids in matrix.batches.items():
        source = f", from {describe_source(sources[batch])}" if sources[batch] else ""
        lines.append(f"  {batch}: {len(ids):,} samples{source}")
    if matrix.retired.sample_ids:
        lines.append(f"  retired: {len(matrix.retired.sample_ids):,} samples")
    document = _about(matrix) | {
        "samples": matrix.shape[0],
        "batches": {batch: len(ids) for batch, ids in matrix.batches.items()},
        "sources": sources,
        "derived": derived,
        "retired": {"batches": matrix.retired.batches, "samples": matrix.retired.samples},
    }
    return cli.Result("\n".join(lines), document)


def _about(matrix: WideMatrix) -> dict[str, Any]:
    return {
        "store": matrix.url,
        "generation": matrix.generation,
        "features": matrix.shape[1],
        "values": matrix.values,
    }


@app.command(usage="Usage: zarr-core matrix create STORE --features FILE [OPTIONS]")
@cli.command(WideMatrix.create, without=["max_shards", "column_chunk"])
def _create(
    store: cli.Store,
    *,
    features: cli.Features,
    values: Annotated[
        list[str] | None,
        cli.option(
            "Value tables and their dtypes: float16, float32 or float64. [default: beta=float32 coverage=float32]",
            metavar="NAME=DTYPE",
        ),
    ] = None,
    **arguments: Any,
) -> cli.Result:
    """Create an empty matrix. Its features can never change; reindex copies it to others."""
    tables = VALUES if values is None else cli.pairs("--values", values)
    matrix = WideMatrix.create(store, read_feature_ids(features), tables, **arguments)
    return cli.Result(str(matrix), _about(matrix))


@app.command(usage="Usage: zarr-core matrix load STORE --source FILES [OPTIONS]")
@cli.command()
def _load(
    store: cli.Store,
    *,
    source: Annotated[
        str,
        cli.option(
            "The long table: a glob pattern of Parquet files, or a .yaml file with the settings of a warehouse "
            "(kind: duckdb, iceberg or athena)."
        ),
    ],
    columns: Annotated[
        list[str] | None,
        cli.option(
            "Other names of the table's columns: batch, sample, feature, or a value table.", metavar="NAME=COLUMN"
        ),
    ] = None,
    batches: Annotated[list[str] | None, cli.option("Only these batches.", metavar="ID", several=True)] = None,
    samples: cli.Samples = None,
    metadata: Annotated[
        str | None, cli.option("Also commit this table about the samples, as matrix metadata does.", metavar="TABLE")
    ] = None,
    quiet: cli.Quiet = False,
) -> cli.Result:
    """Load batches of a long table (one row per sample and feature) that the matrix lacks.

    A batch that cannot be loaded is named, and the others are loaded.
    """
    matrix = WideMatrix.open(store)
    warehouse = open_warehouse(source, cli.pairs("--columns", columns or []), list(matrix.values)).pinned()
    loader = MatrixLoader(warehouse, matrix)
    chosen = warehouse.batch_ids() if batches is None and samples is None else list(batches or [])
    lacking = loader.lacking(samples or [])
    if lacking:  # a batch is loaded whole
        of_samples = loader.batches_of(lacking)
        chosen = [*of_samples, *outside(chosen, of_samples)]
    loaded: dict[str, dict[str, Any]] = {}
    sources: dict[str, Mapping[str, str]] = {}
    failed: dict[str, str] = {}
    retired: list[str] = []
    unchecked: list[str] = []
    for batch_id in tqdm(chosen, unit="batch", desc="load", disable=quiet):
        try:
            done = loader.ingest([batch_id])
        except ZarrCoreError as error:
            failed[batch_id] = str(error)
            continue
        retired += done.retired
        unchecked += done.unchecked
        for batch in done.batches:
            sources[batch_id] = batch.source
            loaded[batch_id] = {
                "samples": list(batch.sample_ids),
                "rows": dict(batch.rows),
                "without_value": dict(batch.without_value),
                "cells": batch.cells,
            }
    report = None if metadata is None else matrix.set_metadata(metadata)
    matrix.refresh()
    handled = {*loaded, *failed, *unchecked}
    up_to_date = outside(chosen, handled)
    document = {
        "store": matrix.url,
        "generation": matrix.generation,
        "loaded": loaded,
        "up_to_date": up_to_date,
        "unchecked": unchecked,
        "failed": failed,
        "retired": retired,
        "sources": sources,
        "metadata": report,
    }
    count = sum(len(batch["samples"]) for batch in loaded.values())
    lines = [f"{count:,} samples of {len(loaded):,} batches loaded, {len(up_to_date):,} batches were up to date"]
    if unchecked:
        lines.append(
            f"{len(unchecked):,} batches are in the matrix; whether the warehouse changed them was not checked"
        )
    if report is not None:
        lines += _described(report, "samples")
    problems = [f"failed: {batch_id}: {reason}" for batch_id, reason in failed.items()]
    if retired:
        problems.append(f"left out, because they were retired: {', '.join(retired)}")
    return cli.Result("\n".join([*lines, *problems, str(matrix)]), document, problems, ok=not failed)


@app.command(usage="Usage: zarr-core matrix metadata STORE [TABLE] [OPTIONS]")
@cli.command()
def _metadata(
    store: cli.Store,
    table: Annotated[
        str | None, cli.option("A .csv, .tsv or .parquet file with a row per sample (sample_id) or batch (batch_id).")
    ] = None,
    *,
    batches: Annotated[bool, cli.flag("The table describes batches.")] = False,
    key: Annotated[
        str | None, cli.option("Column of the ids. [default: sample_id or batch_id]", metavar="COLUMN")
    ] = None,
    replace: Annotated[bool, cli.flag("Drop the earlier table instead of merging.")] = False,
    columns: Annotated[list[str] | None, cli.option("Show only these columns.", metavar="NAME", several=True)] = None,
    generation: cli.Generation = None,
) -> cli.Result:
    """Commit a table about the samples or batches, or show the metadata of the samples.

    The columns of TABLE replace earlier values of the same ids, everything else stays. Without it, metadata is shown.
    """
    if table is not None:
        if columns is not None or generation is not None:
            raise cli.WrongUseError("--columns and --generation are for showing metadata: leave TABLE out")
        matrix = WideMatrix.open(store)
        kind: Kind = "batches" if batches else "samples"
        report = matrix.set_metadata(table, kind, key=key, replace=replace)
        lines = [f"{matrix.url}, generation {report.generation}", *_described(report, kind)]
        return cli.Result("\n".join(lines), {"store": matrix.url, "kind": kind, **asdict(report)})
    if batches or key is not None or replace:
        raise cli.WrongUseError("--batches, --key and --replace are for a TABLE")
    matrix = WideMatrix.open(store, generation)
    found = matrix.samples(columns)
    records = found.to_pylist()
    rows = [found.column_names]
    for record in records:
        rows.append(["" if value is None else str(value) for value in record.values()])
    return cli.Result(cli.table(rows), {"store": matrix.url, "generation": matrix.generation, "samples": records})


def _described(report: MetadataReport, kind: Kind) -> list[str]:
    lines = [f"metadata of {report.rows:,} {kind}: {', '.join(report.columns)}"]
    for misfit in report.misfits(kind):
        lines.append(f"  {misfit}")
    return lines


@app.command(usage="Usage: zarr-core matrix reindex STORE TARGET [OPTIONS]")
@cli.command(WideMatrix.reindex)
def _reindex(
    store: cli.Store,
    target: Annotated[str, cli.option("Path or URL of the new matrix.")],
    *,
    features: cli.ChosenFeatures = None,
    union: Annotated[bool, cli.flag("Keep the features of STORE, too.")] = False,
    **arguments: Any,
) -> cli.Result:
    """Copy a matrix to another feature axis or other settings, as a new matrix; without the warehouse."""
    matrix = WideMatrix.open(store)
    old = matrix.feature_ids
    axis = old if features is None else FeatureAxis(read_axis_ids(features, old.is_text))
    if union:
        axis = old.union(axis)
    copy = matrix.reindex(target, axis, **arguments)
    kept = len(old.shared(axis)[0])
    document = {
        "store": copy.url,
        "samples": copy.shape[0],
        "features": len(axis),
        "kept": kept,
        "added": len(axis) - kept,
        "dropped": len(old) - kept,
    }
    text = "{store}: {samples:,} samples x {features:,} features ({kept:,} kept, {added:,} added, {dropped:,} dropped)"
    return cli.Result(text.format(**document), document)


@app.command(usage="Usage: zarr-core matrix retire STORE [--samples ID...] [--batches ID...] [OPTIONS]")
@cli.command()
def _retire(
    store: cli.Store,
    *,
    samples: Annotated[list[str], cli.option("Samples to retire.", metavar="ID", several=True)] = [],  # noqa: B006
    batches: Annotated[
        list[str], cli.option("Batches to retire, with samples that joined them later.", metavar="ID", several=True)
    ] = [],  # noqa: B006
    forget: Annotated[
        bool, cli.flag("Also delete every earlier generation that holds a retired sample, now. Pinned readers fail.")
    ] = False,
    undo: Annotated[bool, cli.flag("Allow retired samples and batches to be appended again.")] = False,
) -> cli.Result:
    """Remove samples and batches, for example after a withdrawn consent, and refuse them from now on.

    Earlier generations still hold them until gc deletes these; --forget deletes them now.
    """
    if undo and forget:
        raise cli.WrongUseError("--undo and --forget exclude each other")
    if not (samples or batches or forget):
        raise cli.WrongUseError("name what to retire with --samples or --batches")
    matrix = WideMatrix.open(store)
    if undo:
        matrix.reinstate(samples, batches)
        text = f"{matrix.url}, generation {matrix.generation}: what was named can be appended again"
        if "samples" in matrix._state.metadata:
            text += "; set the metadata of its samples again, whose rows were removed"
        return cli.Result(text, {"store": matrix.url, "generation": matrix.generation})
    done = matrix.retire(samples, batches)
    deleted = matrix.forget_retired() if forget else None
    readable = {} if deleted else done.readable
    count = len(done.unloaded) + sum(map(len, done.samples.values()))
    lines = [f"{matrix.url}: retired {count:,} samples; generation {done.generation} and later do not hold them"]
    for batch, ids in done.samples.items():
        lines.append(f"  {batch}: {', '.join(ids)}")
    if done.unloaded:
        lines.append(f"  of the metadata alone, not loaded yet: {', '.join(done.unloaded)}")
    if done.underived:
        lines.append(f"to be added to the column-major copy again (--derive-columns): {', '.join(done.underived)}")
    if deleted:
        lines.append(f"deleted generations {deleted.expired} and {format_size(deleted.bytes)} that only they named")
        if deleted.young:
            lines.append(
                f"left: {deleted.young:,} objects that no generation names, of writers that died or are at work; they "
                f"may hold retired samples, too: `{shell('gc', matrix.url)}` deletes those older than its grace period"
            )
    elif readable:
        named = [f"{number} ({', '.join(tags)})" if tags else str(number) for number, tags in readable.items()]
        lines.append(
            f"still readable in generations {', '.join(named)}: `{shell('gc', matrix.url)}` deletes them after its "
            "grace period, tagged ones after their tag was deleted; --forget deletes them now"
        )
    document = {
        "store": matrix.url,
        "generation": done.generation,
        "retired_batches": done.batches,
        "retired_samples": done.samples,
        "unloaded_samples": done.unloaded,
        "underived": done.underived,
        "readable_generations": readable,
        "deleted_generations": deleted.expired if deleted else [],
        "deleted_bytes": deleted.bytes if deleted else 0,
        "unnamed_objects": deleted.young if deleted else 0,
    }
    return cli.Result("\n".join(lines), document)


main = cli.program(app, __name__)
