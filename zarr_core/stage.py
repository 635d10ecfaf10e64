"""Copy a store, or the part of it that a training run reads: ``zarr-core stage STORE --source SOURCE``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from zarr_core._util import command_line as cli
from zarr_core._util.units import format_size
from zarr_core.matrix.stage import MatrixStageReport, stage_matrix
from zarr_core.matrix.store.head import HEAD as MATRIX
from zarr_core.points.stage.store import StageReport, stage_store
from zarr_core.sources.left_out import counted
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head

__all__ = ["MatrixStageReport", "StageReport", "stage_matrix", "stage_store"]

_POINTS_HELP = (
    "Only the first points of each sample, a uniform subset: counts by domain, as volume=65536,surface=16384, or a "
    "share, as 5%. Rounded up to whole chunks. The statistics of the copy are those of the source."
)

app = cli.verb(
    "stage",
    """
zarr-core stage /scratch/store --source s3://bucket/store --split train --workers 4
zarr-core stage /scratch/store --source s3://bucket/store --fields surface_position surface_pressure
zarr-core stage /laptop/store --source s3://bucket/store --points 5% --layout packed   # a thin copy
zarr-core stage /scratch/betas --source s3://bucket/betas --fields beta   # a wide matrix
zarr-core stage s3://bucket/store /scratch/store   # source and STORE by position, as in cp
""",
    usage="STORE --source SOURCE [OPTIONS]",
)


@app.default
@cli.command(stage_store)
def _command(
    store: Annotated[str, cli.option("Path or URL of the copy: an empty place, or an earlier copy of the same store.")],
    target: Annotated[str | None, Parameter(show=False)] = None,
    *,
    source: Annotated[str | None, cli.option("Path or URL of the store to copy.")] = None,
    points: Annotated[str | None, cli.option(_POINTS_HELP, metavar="DOMAIN=N,...")] = None,
    **arguments: Any,
) -> cli.Result:
    if (source is None) == (target is None):
        raise cli.WrongUseError("stage needs one STORE and one --source")
    if target is not None:  # two positional arguments, as in `cp SOURCE STORE`
        source, store = store, target
    assert source is not None
    if find_head(Storage(source)) is not MATRIX:
        report = stage_store(source, store, points=points, **arguments)
        return _result(store, "samples", report, _of_points(report))
    if arguments.pop("split", None) is not None:
        raise cli.WrongUseError("a matrix has no splits; --samples selects the batches that hold these samples")
    if arguments.pop("layout", None) is not None or points is not None:
        raise cli.WrongUseError("--layout and --points are for point stores")
    matrix = stage_matrix(source, store, values=arguments.pop("fields", None), **arguments)
    return _result(store, "batches", matrix, _of_matrix(matrix))


def _of_points(report: StageReport) -> dict[str, Any]:
    return {
        "generation": report.manifest.generation,
        "origin": report.manifest.origin,
        "samples": len(report.manifest.samples),
        "staged": [sample.sample_id for sample in report.samples if not sample.problem],
        "failed": {sample.sample_id: sample.problem for sample in report.failed},
        "left": report.left,
    }


def _of_matrix(report: MatrixStageReport) -> dict[str, Any]:
    assert report.state.origin is not None
    return {
        "generation": report.state.generation,
        "origin": asdict(report.state.origin),
        "samples": len(report.state.rows),
        "staged": [batch for batch in report.batches if batch not in report.failed],
        "failed": report.failed,
        "failed_shards": {shard.name: shard.problem for shard in report.shards if shard.problem},
    }


def _result(store: str, parts: str, report: StageReport | MatrixStageReport, held: dict[str, Any]) -> cli.Result:
    """What was copied; ``held`` is what the copy holds now, and which of its parts (samples or batches) failed."""
    document = {
        "store": Storage(store).url,
        "seconds": report.seconds,
        "bytes_copied": report.copied,
        "bytes_kept": report.kept,
        **held,
    }
    failed = dict(held["failed"])
    named = " ".join(failed.values())
    for shard, problem in held.get("failed_shards", {}).items():
        if shard not in named:
            failed[shard] = problem
    problems = [f"  failed: {name}: {problem}" for name, problem in failed.items()]
    sizes = f"{format_size(report.copied)} copied, {format_size(report.kept)} there already, {report.seconds:.1f} s"
    origin = "generation {generation} of {store}".format(**held["origin"]) if held["origin"] else "its own"
    lines = [
        f"{len(held['staged'])} {parts} staged ({sizes}), {len(held['failed'])} failed",
        *problems,
        f"store: {document['store']}, generation {held['generation']}, {held['samples']} samples of {origin}",
    ]
    if held.get("left"):
        reason = "that the source has changed or dropped, or never had, and the copy names no more"
        lines += counted(f"  samples {reason}; their bytes stay until gc", held["left"])
    if "points" in held["origin"]:
        kept = f"{held['origin']['points']} of each sample, in whole chunks"
        lines.append(f"points: {kept}; the statistics are those of all points")
    return cli.Result("\n".join(lines), document, problems, report.ok)


main = cli.program(app, __name__)
