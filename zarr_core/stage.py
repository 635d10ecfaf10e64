"""Copy a store, or the part of it that a training run reads: ``zarr-core stage STORE --source SOURCE``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from zarr_core._util import command_line as cli
from zarr_core._util.dask_cluster import dask_executor
from zarr_core._util.units import format_size
from zarr_core.matrix.stage import MatrixStageReport, stage_matrix
from zarr_core.matrix.store.state import HEAD as MATRIX
from zarr_core.points.stage.store import StageReport, stage_store
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head

__all__ = ["MatrixStageReport", "StageReport", "stage_matrix", "stage_store"]

app = cli.verb(
    "stage",
    """
zarr-core stage /scratch/store --source s3://bucket/store --split train --workers 4
zarr-core stage /scratch/store --source s3://bucket/store --fields surface_position surface_pressure
zarr-core stage /scratch/betas --source s3://bucket/betas --fields beta   # a wide matrix
zarr-core stage s3://bucket/store /scratch/store   # source and STORE by position, as in cp
""",
    usage="STORE --source SOURCE [OPTIONS]",
)


@app.default
def _command(
    store: Annotated[str, cli.option("Path or URL of the copy: an empty place, or an earlier copy of the same store.")],
    target: Annotated[str | None, Parameter(show=False)] = None,
    *,
    source: Annotated[str | None, cli.option("Path or URL of the store to copy.")] = None,
    split: cli.Split = None,
    fields: Annotated[
        list[str] | None, cli.option("Only these fields, or value tables of a matrix.", metavar="FIELD", several=True)
    ] = None,
    samples: cli.Samples = None,
    generation: cli.Generation = None,
    check: Annotated[bool, cli.flag("Read existing objects again instead of comparing their sizes only.")] = False,
    workers: cli.Workers = 1,
    scheduler: cli.Scheduler = None,
    quiet: cli.Quiet = False,
    json: cli.Json = False,
) -> int:
    if (source is None) == (target is None):
        raise cli.WrongUseError("stage needs one STORE and one --source")
    if target is not None:  # two positional arguments, as in `cp SOURCE STORE`
        source, store = store, target
    assert source is not None
    url = Storage(store).url
    is_matrix = find_head(Storage(source)) is MATRIX
    if is_matrix and split is not None:
        raise cli.WrongUseError("a matrix has no splits; --samples selects the batches that hold these samples")
    with dask_executor(scheduler) as executor:
        shared: dict[str, Any] = {
            "sample_ids": samples,
            "generation": generation,
            "check": check,
            "workers": workers,
            "executor": executor,
            "progress": not quiet,
        }
        if is_matrix:
            matrix = stage_matrix(source, store, values=fields, **shared)
            text, problems = _matrix_summary(matrix, url)
            cli.show(text, _matrix_document(matrix, url), json=json, quiet=quiet, problems=problems)
            return cli.DONE if matrix.ok else cli.FAILED
        report = stage_store(source, store, split=split, fields=fields, **shared)
        cli.show(summary(report, url), _document(report, url), json=json, quiet=quiet)
        return cli.DONE if report.ok else cli.FAILED


def summary(report: StageReport, target: str) -> str:
    """Result of a copy in a few lines."""
    done = len(report.samples) - len(report.failed)
    origin = report.manifest.origin
    return "\n".join(
        [
            f"{done} samples staged ({format_size(report.copied)} copied, {format_size(report.kept)} there already, "
            f"{report.seconds:.1f} s), {len(report.failed)} failed",
            *(f"  failed: {sample.sample_id}: {sample.problem}" for sample in report.failed),
            f"store: {target}, generation {report.manifest.generation}, {len(report.manifest.samples)} samples of "
            f"generation {origin['generation']} of {origin['store']}",
        ]
    )


def _matrix_summary(report: MatrixStageReport, target: str) -> tuple[str, list[str]]:
    """Result of a copy of a matrix in a few lines, and the lines of its problems."""
    problems = [f"  failed: {batch}: {problem}" for batch, problem in report.failed.items()]
    named = " ".join(report.failed.values())
    problems += [f"  failed: {s.name}: {s.problem}" for s in report.shards if s.problem and s.name not in named]
    state = report.state
    assert state.origin is not None
    lines = [
        f"{len(report.batches) - len(report.failed)} batches staged ({format_size(report.copied)} copied, "
        f"{format_size(report.kept)} there already, {report.seconds:.1f} s), {len(report.failed)} failed",
        *problems,
        f"store: {target}, generation {state.generation}, {len(state.rows)} samples of generation "
        f"{state.origin.generation} of {state.origin.store}",
    ]
    return "\n".join(lines), problems


def _matrix_document(report: MatrixStageReport, store: str) -> dict[str, Any]:
    assert report.state.origin is not None
    return {
        "store": store,
        "generation": report.state.generation,
        "origin": asdict(report.state.origin),
        "samples": len(report.state.rows),
        "seconds": report.seconds,
        "bytes_copied": report.copied,
        "bytes_kept": report.kept,
        "staged": [batch for batch in report.batches if batch not in report.failed],
        "failed": report.failed,
        "failed_shards": {shard.name: shard.problem for shard in report.shards if shard.problem},
    }


def _document(report: StageReport, store: str) -> dict[str, Any]:
    return {
        "store": store,
        "generation": report.manifest.generation,
        "origin": report.manifest.origin,
        "samples": len(report.manifest.samples),
        "seconds": report.seconds,
        "bytes_copied": report.copied,
        "bytes_kept": report.kept,
        "staged": [sample.sample_id for sample in report.samples if not sample.problem],
        "failed": {sample.sample_id: sample.problem for sample in report.failed},
    }


main = partial(cli.run, app)


if __name__ == "__main__":
    sys.exit(main())
