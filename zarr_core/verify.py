"""Check a store, and compare its rows with their source: ``zarr-core verify STORE``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from zarr_core._util import command_line as cli
from zarr_core._util.commands import shell
from zarr_core._util.redaction import redact
from zarr_core._util.units import format_size
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix.store.state import HEAD_NAME as MATRIX_HEAD
from zarr_core.matrix.verify import MatrixVerification, verify_matrix
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import VerificationReport, verify_store
from zarr_core.sources.resolve import short_name
from zarr_core.storage import Storage

__all__ = ["VerificationReport", "format_report", "verify_store"]

app = cli.verb(
    "verify",
    """
zarr-core verify /data/store
zarr-core verify /data/store --source /data/ahmedml --workers 8
zarr-core verify s3://bucket/store --samples run_1 run_2 --json
zarr-core verify /data/store --deep
""",
)


@app.default
@cli.command(verify_store)
def _command(
    store: cli.Store,
    *,
    source: Annotated[
        str | None,
        cli.option(
            "Also compare every row of the fields with this folder or URL of source files.", *cli.SOURCE_ALIASES
        ),
    ] = None,
    dataset_kind: Annotated[str | None, cli.option(cli.KIND_HELP)] = None,
    **arguments: Any,
) -> cli.Result:
    storage = Storage(store)
    document: dict[str, Any] = {"store": storage.url}
    if storage.exists(MATRIX_HEAD):
        if source or dataset_kind or "sample_ids" in arguments:
            reason = "--source, --dataset-kind and --samples are for point stores"
            raise ZarrCoreError(f"{storage.url} is a matrix: {reason}")
        matrix = verify_matrix(store, progress=arguments["progress"])
        document |= {"kind": "matrix", **asdict(matrix), "ok": matrix.ok}
        return cli.Result(format_matrix_report(matrix), document, matrix.problems, matrix.ok)
    report = verify_store(store, source=source, dataset_kind=dataset_kind, **arguments)
    text = format_report(report)
    if report.damaged:
        kind = load_manifest(storage).dataset_kind
        document["repair"] = repair_command(storage.url, kind, source, report.damaged)
        text += f"\nconvert the samples again: {document['repair']}"
        if short_name(kind) != kind:
            text += f"\nKIND is the YAML file or the dotted path of the kind{f' {kind!r}' if kind else ''}"
    document |= {"kind": "points", **asdict(report), "ok": report.ok}
    return cli.Result(text, document, report.problems, report.ok)


def repair_command(store: str, kind: str, source: str | None, sample_ids: Sequence[str]) -> str:
    """The command that converts samples again and so repairs their groups."""
    words = ["convert", store, "--source", "SOURCE" if source is None else redact(source)]
    return shell(*words, "--dataset-kind", short_name(kind), "--force", "--samples", *sample_ids)


def format_matrix_report(report: MatrixVerification) -> str:
    """Every problem of a matrix on a line of its own, and the verdict."""
    lines = list(report.problems)
    if report.unnamed:
        lines.append(f"{report.unnamed:,} shards that no generation names wait for a commit, or for gc")
    checked = f"{report.samples:,} samples, {report.shards:,} shards, {report.chunks:,} chunks of "
    checked += f"{report.generations:,} generations, {format_size(report.bytes)}"
    count = len(report.problems)
    lines.append(f"all sound: {checked}" if report.ok else f"{count} problem{'s' * (count > 1)} in {checked}")
    return "\n".join(lines)


def format_report(report: VerificationReport) -> str:
    """A table by field, every problem on a line of its own, and the verdict."""
    header = ("field", "samples", "points", "chunks", "bytes")
    rows = []
    for name, tally in report.fields.items():
        counts = (tally.samples, tally.points, tally.chunks, tally.bytes)
        rows.append((name, *(f"{count:,}" for count in counts)))
    lines = [cli.table([header, *rows]), "", *map(str, report.problems)]
    checked = f"{report.samples:,} samples, {report.arrays:,} arrays, {report.chunks:,} chunks"
    if report.generations > 1:
        checked += f" of {report.generations:,} generations"
    if report.unnamed:
        lines.append(f"{report.unnamed:,} groups that no generation names wait for a commit, or for gc")
    if not report.ok:
        lines.append(f"{len(report.problems)} problem{'s' * (len(report.problems) > 1)} in {checked}")
    elif report.against_source:
        lines.append(f"all equal: {checked}, {report.how}")
    else:
        lines.append(f"all sound: {checked} (give --source to compare the rows with their source)")
    return "\n".join(lines)


main = cli.program(app, __name__)
