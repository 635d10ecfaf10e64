"""Create a wide matrix, load it from a warehouse, show what it holds, complete, copy or export it, and retire samples.

``zarr-core matrix STORE``, ``zarr-core matrix create STORE --features FILE``, ``zarr-core matrix load STORE --source
FILES``, ``zarr-core matrix reindex STORE TARGET --features FILE``, and ``zarr-core matrix retire STORE --samples ID``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from tqdm import tqdm

from zarr_core._util.command_line import (
    DONE,
    FAILED,
    Generation,
    Json,
    Quiet,
    Samples,
    Store,
    WrongUseError,
    flag,
    number,
    option,
    run,
    show,
    verb,
)
from zarr_core._util.command_line import table as format_table
from zarr_core._util.commands import shell
from zarr_core._util.units import format_size
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.axis_file import read_axis_ids, read_feature_ids
from zarr_core.matrix.store.create import CHUNK_FEATURES, VALUES
from zarr_core.matrix.store.sample_table import Kind, MetadataReport
from zarr_core.matrix.store.state import describe_source
from zarr_core.warehouses.build import open_warehouse

app = verb(
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
app.command("zarr_core.export:matrix_formats", name="export", help="Write a matrix as NumPy, Parquet or AnnData.")

Features = Annotated[
    str,
    option(
        "The features: the names in a .parquet, .csv, .tsv or .bed file, or the words of a text file.", metavar="FILE"
    ),
]


@app.default
def _command(
    store: Store,
    *,
    derive_columns: Annotated[bool, flag("Write what the column-major copy lacks.")] = False,
    json: Json = False,
) -> int:
    matrix = WideMatrix.open(store)
    lines = []
    derived: list[str] = []
    if derive_columns:
        derived = matrix.derive_columns()
        added = f"added to the column-major copy: {', '.join(derived)}"
        lines = [added if derived else "the column-major copy is up to date"]
    sources = matrix.batch_sources
    lines.append(str(matrix))
    for batch, ids in matrix.batches.items():
        source = f", from {describe_source(sources[batch])}" if sources[batch] else ""
        lines.append(f"  {batch}: {len(ids):,} samples{source}")
    document = {
        "store": matrix.url,
        "generation": matrix.generation,
        "samples": matrix.shape[0],
        "features": matrix.shape[1],
        "values": matrix.values,
        "batches": {batch: len(ids) for batch, ids in matrix.batches.items()},
        "sources": sources,
        "derived": derived,
        "retired": {"batches": matrix.retired.batches, "samples": matrix.retired.samples},
    }
    if gone := matrix.retired.sample_ids:
        lines.append(f"  retired: {len(gone):,} samples")
    show("\n".join(lines), document, json=json)
    return DONE


@app.command(
    name="create",
    usage="Usage: zarr-core matrix create STORE --features FILE [OPTIONS]",
    help="Create an empty matrix. Its features can never change; reindex copies it to others.",
)
def _create(
    store: Store,
    *,
    features: Features,
    values: Annotated[
        list[str] | None,
        option(
            "Value tables and their dtypes: float16, float32 or float64. [default: beta=float32 coverage=float32]",
            metavar="NAME=DTYPE",
            several=True,
        ),
    ] = None,
    codec: Annotated[str, option("Compressor of the chunks, NAME or NAME:LEVEL.")] = "none",
    chunk_features: Annotated[int, number("Approximate number of features per chunk.")] = CHUNK_FEATURES,
    shard_rows: Annotated[int | None, number("Samples per shard. [default: 800 MB, at most 512 samples]")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    matrix = WideMatrix.create(
        store,
        read_feature_ids(features),
        VALUES if values is None else _pairs("--values", values),
        codec=codec,
        chunk_features=chunk_features,
        shard_rows=shard_rows,
    )
    document = {
        "store": matrix.url,
        "generation": matrix.generation,
        "features": matrix.shape[1],
        "values": matrix.values,
    }
    show(str(matrix), document, json=json, quiet=quiet)
    return DONE


@app.command(
    name="load",
    usage="Usage: zarr-core matrix load STORE --source FILES [OPTIONS]",
    help="Load batches of a long table (one row per sample and feature) that the matrix lacks. A batch that cannot be "
    "loaded is named, and the others are loaded.",
)
def _load(
    store: Store,
    *,
    source: Annotated[
        str,
        option(
            "The long table: a glob pattern of Parquet files, or a .yaml file with the settings of a warehouse "
            "(kind: duckdb, iceberg or athena)."
        ),
    ],
    columns: Annotated[
        list[str] | None,
        option(
            "Other names of the table's columns: batch, sample, feature, or a value table.",
            metavar="NAME=COLUMN",
            several=True,
        ),
    ] = None,
    batches: Annotated[list[str] | None, option("Only these batches.", metavar="ID", several=True)] = None,
    samples: Samples = None,
    metadata: Annotated[
        str | None, option("Also commit this table about the samples, as matrix metadata does.", metavar="TABLE")
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    matrix = WideMatrix.open(store)
    warehouse = open_warehouse(source, _pairs("--columns", columns or []), list(matrix.values)).pinned()
    loader = MatrixLoader(warehouse, matrix)
    if samples is not None:  # a batch is loaded whole
        lacking = loader.lacking(samples)
        chosen = loader.batches_of(lacking) if lacking else []
    elif batches is None:
        chosen = warehouse.batch_ids()
    else:
        chosen = []
    chosen += [batch_id for batch_id in batches or [] if batch_id not in chosen]
    loaded: dict[str, Any] = {}
    failed: dict[str, str] = {}
    retired: list[str] = []
    unchecked: list[str] = []
    for batch_id in tqdm(chosen, unit="batch", desc="load", disable=quiet or json):
        try:
            done = loader.ingest([batch_id])
        except ZarrCoreError as error:
            failed[batch_id] = str(error)
            continue
        retired += done.retired
        unchecked += done.unchecked
        for batch in done.batches:
            loaded[batch_id] = {
                "samples": list(batch.sample_ids),
                "rows": dict(batch.rows),
                "without_value": dict(batch.without_value),
                "cells": batch.cells,
            }
    up_to_date = [name for name in chosen if name not in loaded and name not in failed and name not in unchecked]
    problems = [f"failed: {batch_id}: {reason}" for batch_id, reason in failed.items()]
    if retired:
        problems.append(f"left out, because they were retired: {', '.join(retired)}")
    report = None if metadata is None else matrix.set_metadata(metadata)
    count = sum(len(batch["samples"]) for batch in loaded.values())
    lines = [f"{count:,} samples of {len(loaded):,} batches loaded, {len(up_to_date):,} batches were up to date"]
    if unchecked:
        lines.append(
            f"{len(unchecked):,} batches are in the matrix; whether the warehouse changed them was not checked"
        )
    generation = matrix.refresh().generation
    # Samples that join a batch are a batch of their own in the matrix.
    stored = {sample_id: batch_id for batch_id, ids in matrix.batches.items() for sample_id in ids}
    first = {batch_id: batch["samples"][0] for batch_id, batch in loaded.items() if batch["samples"]}
    sources = matrix.batch_sources
    document = {
        "store": matrix.url,
        "generation": generation,
        "loaded": loaded,
        "up_to_date": up_to_date,
        "unchecked": unchecked,
        "failed": failed,
        "retired": retired,
        "sources": {batch_id: sources.get(stored.get(first.get(batch_id, ""), ""), {}) for batch_id in loaded},
        "metadata": None if report is None else asdict(report),
    }
    if report is not None:
        lines += _described(report, "samples")
    show("\n".join([*lines, *problems, str(matrix)]), document, json=json, quiet=quiet, problems=problems)
    return FAILED if failed else DONE


@app.command(
    name="metadata",
    usage="Usage: zarr-core matrix metadata STORE [TABLE] [OPTIONS]",
    help="Commit a table about the samples or batches: its columns replace earlier values of the same ids, everything "
    "else stays. Without TABLE, show the metadata of the samples.",
)
def _metadata(
    store: Store,
    table: Annotated[
        str | None, option("A .csv, .tsv or .parquet file with a row per sample (sample_id) or batch (batch_id).")
    ] = None,
    *,
    batches: Annotated[bool, flag("The table describes batches.")] = False,
    key: Annotated[str | None, option("Column of the ids. [default: sample_id or batch_id]", metavar="COLUMN")] = None,
    replace: Annotated[bool, flag("Drop the earlier table instead of merging.")] = False,
    columns: Annotated[list[str] | None, option("Show only these columns.", metavar="NAME", several=True)] = None,
    generation: Generation = None,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    if table is not None:
        if columns is not None or generation is not None:
            raise WrongUseError("--columns and --generation are for showing metadata: leave TABLE out")
        matrix = WideMatrix.open(store)
        kind: Kind = "batches" if batches else "samples"
        report = matrix.set_metadata(table, kind, key=key, replace=replace)
        lines = [f"{matrix.url}, generation {report.generation}", *_described(report, kind)]
        show("\n".join(lines), {"store": matrix.url, "kind": kind, **asdict(report)}, json=json, quiet=quiet)
        return DONE
    if batches or key is not None or replace:
        raise WrongUseError("--batches, --key and --replace are for a TABLE")
    matrix = WideMatrix.open(store, generation)
    found = matrix.samples(columns)
    rows = [found.column_names, *(["" if v is None else str(v) for v in row.values()] for row in found.to_pylist())]
    document = {"store": matrix.url, "generation": matrix.generation, "samples": found.to_pylist()}
    show(format_table(rows), document, json=json, quiet=quiet)
    return DONE


def _described(report: MetadataReport, kind: Kind) -> list[str]:
    lines = [f"metadata of {report.rows:,} {kind}: {', '.join(report.columns)}"]
    for text, names in (
        (f"rows of {kind} that the matrix does not hold, kept for later", report.unknown),
        (f"{kind} without metadata", report.missing),
        ("rows of retired samples, not stored", report.retired),
    ):
        if names:
            lines.append(f"  {text}: {len(names):,}, such as {', '.join(names[:5])}")
    return lines


def _pairs(name: str, given: Sequence[str]) -> dict[str, str]:
    """The values of an option such as ``--values beta=float32``, by name."""
    pairs = [text.partition("=") for text in given]
    if wrong := [text for text, (_, _, value) in zip(given, pairs, strict=True) if not value]:
        raise WrongUseError(f"{name} {wrong[0]}: expected NAME=VALUE")
    return {key: value for key, _, value in pairs}


@app.command(
    name="reindex",
    usage="Usage: zarr-core matrix reindex STORE TARGET [OPTIONS]",
    help="Copy a matrix to another feature axis or other settings, as a new matrix; without the warehouse.",
)
def _reindex(
    store: Store,
    target: Annotated[str, option("Path or URL of the new matrix.")],
    *,
    features: Annotated[
        str | None,
        option(
            "The features: the names in a .parquet, .csv, .tsv or .bed file, or the words of a text file. "
            "[default: those of STORE]",
            metavar="FILE",
        ),
    ] = None,
    union: Annotated[bool, flag("Keep the features of STORE, too.")] = False,
    codec: Annotated[
        str | None, option("Compressor of the chunks, NAME or NAME:LEVEL. [default: that of STORE]")
    ] = None,
    chunk_features: Annotated[
        int | None, number("Approximate number of features per chunk. [default: as in STORE]")
    ] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    matrix = WideMatrix.open(store)
    old = matrix.feature_ids
    axis = old if features is None else FeatureAxis(read_axis_ids(features, old.is_text))
    if union:
        axis = old.union(axis)
    copy = matrix.reindex(target, axis, codec=codec, chunk_features=chunk_features, progress=not quiet)
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
    show(text.format(**document), document, json=json, quiet=quiet)
    return DONE


@app.command(
    name="retire",
    usage="Usage: zarr-core matrix retire STORE [--samples ID...] [--batches ID...] [OPTIONS]",
    help="Remove samples and batches, for example after a withdrawn consent, and refuse them from now on. Earlier "
    "generations still hold them until gc deletes these; --forget deletes them now.",
)
def _retire(
    store: Store,
    *,
    samples: Annotated[list[str], option("Samples to retire.", metavar="ID", several=True)] = [],  # noqa: B006
    batches: Annotated[
        list[str], option("Batches to retire, with samples that joined them later.", metavar="ID", several=True)
    ] = [],  # noqa: B006
    forget: Annotated[
        bool, flag("Also delete every earlier generation that holds a retired sample, now. Pinned readers fail.")
    ] = False,
    undo: Annotated[bool, flag("Allow retired samples and batches to be appended again.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    if undo and forget:
        raise WrongUseError("--undo and --forget exclude each other")
    if not (samples or batches or forget):
        raise WrongUseError("name what to retire with --samples or --batches")
    matrix = WideMatrix.open(store)
    if undo:
        matrix.reinstate(samples, batches)
        text = f"{matrix.url}, generation {matrix.generation}: what was named can be appended again"
        show(text, {"store": matrix.url, "generation": matrix.generation}, json=json, quiet=quiet)
        return DONE
    done = matrix.retire(samples, batches)
    deleted = matrix.forget_retired() if forget else None
    readable = {} if deleted else done.readable
    count = sum(map(len, done.samples.values())) + len(done.unloaded)
    lines = [f"{matrix.url}: retired {count:,} samples; generation {done.generation} and later do not hold them"]
    lines += [f"  {batch}: {', '.join(ids)}" for batch, ids in done.samples.items()]
    if done.unloaded:
        lines.append(f"  of the metadata alone, not loaded yet: {', '.join(done.unloaded)}")
    if done.underived:
        lines.append(f"to be added to the column-major copy again (--derive-columns): {', '.join(done.underived)}")
    if deleted:
        lines.append(f"deleted generations {deleted.expired} and {format_size(deleted.bytes)} that only they named")
    elif readable:
        named = ", ".join(f"{number} ({', '.join(tags)})" if tags else str(number) for number, tags in readable.items())
        lines.append(
            f"still readable in generations {named}: `{shell('gc', matrix.url)}` deletes them after its grace period, "
            "tagged ones after their tag was deleted; --forget deletes them now"
        )
    document = {
        "store": matrix.url,
        "generation": done.generation,
        "retired_batches": list(done.batches),
        "retired_samples": {batch: list(ids) for batch, ids in done.samples.items()},
        "unloaded_samples": list(done.unloaded),
        "underived": list(done.underived),
        "readable_generations": {str(number): list(tags) for number, tags in readable.items()},
        "deleted_generations": deleted.expired if deleted else [],
        "deleted_bytes": deleted.bytes if deleted else 0,
    }
    show("\n".join(lines), document, json=json, quiet=quiet)
    return DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
