"""Convert a dataset of ``.pt`` files to a store: ``zarr-core convert``, or :func:`convert` in code."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter

from zarr_core._util import command_line as cli
from zarr_core._util.dask_cluster import dask_executor
from zarr_core._util.processes import WorkerPool
from zarr_core._util.redaction import redact
from zarr_core._util.units import format_size
from zarr_core.errors import RetirementError, SourceError, ZarrCoreError
from zarr_core.log import format_change
from zarr_core.points.convert.conversion import ConversionReport, convert, iter_convert, run_conversion
from zarr_core.points.convert.preview import ConversionPreview, preview
from zarr_core.points.convert.publish import publish
from zarr_core.points.convert.request import ConversionRequest
from zarr_core.points.convert.sample import ConversionResult, SampleOutcome
from zarr_core.points.convert.write_sample import convert_aero_dataset, convert_fsspec_source
from zarr_core.points.statistics import record_training_statistics
from zarr_core.points.statistics_files import statistics_hint
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.sources.left_out import some
from zarr_core.sources.parts import Part
from zarr_core.sources.resolve import shipped_kinds
from zarr_core.storage import Storage, is_local

__all__ = [
    "ConversionReport",
    "ConversionResult",
    "SampleOutcome",
    "convert",
    "convert_aero_dataset",
    "convert_fsspec_source",
    "iter_convert",
    "publish",
]

app = cli.verb(
    "convert",
    """
zarr-core convert /data/ahmedml_store --source /data/ahmedml --dataset-kind ahmedml --workers 16
zarr-core convert /data/store --source s3://bucket/drivaernet --dataset-kind drivaernet --split train val
zarr-core convert /data/store --source /data/ahmedml --dataset-kind ahmedml --force --samples run_1
zarr-core convert /data/store --source /data/ahmedml --dataset-kind ahmedml --scheduler tcp://10.0.0.5:8786
zarr-core convert s3://bucket/store --source s3://bucket/ahmedml --dataset-kind ahmedml --part 0/8
zarr-core convert s3://bucket/store --source /data/cars --dataset-kind cars.yaml --field-dtype volume_vorticity=float32
zarr-core convert /data/store --source /data/cars --dataset-kind cars.yaml --reconvert --values-dtype float32 --dry-run
""",
    usage="STORE --source SOURCE --dataset-kind KIND [OPTIONS]",
)


@app.default
@cli.command(ConversionRequest, settings=ConversionSettings, without=("root", "settings", "field_dtypes", "max_errors"))
def _command(
    store: Annotated[str, cli.option(f"{cli.STORE_HELP} It is created or extended.", "--output")],
    *,
    dataset_kind: Annotated[str, cli.option(f"One of {', '.join(shipped_kinds())}, a dotted path, or a YAML file.")],
    source: Annotated[
        str | None,
        cli.option("Folder or URL of the dataset; a class is opened in a folder by split.", *cli.SOURCE_ALIASES[:2]),
    ] = None,
    source_url: Annotated[str | None, Parameter(show=False)] = None,
    field_dtype: Annotated[
        list[str] | None, cli.option("Stored dtype of single fields; 'default' removes one.", metavar="FIELD=DTYPE")
    ] = None,
    max_error: Annotated[
        list[str] | None,
        cli.option(
            "Largest error of single fields, in their units or standard deviations of a sample; 'none' removes one.",
            metavar="FIELD=ERROR",
        ),
    ] = None,
    retire_vanished: Annotated[
        bool, cli.flag("Remove samples from the manifest that the source no longer has; their bytes stay until gc.")
    ] = False,
    part: Annotated[
        str | None,
        cli.option(
            "Only the samples of one part, as 0/8. In a Slurm array 0-7 or an indexed Kubernetes job: auto/8.",
            metavar="I/N",
        ),
    ] = None,
    dry_run: Annotated[bool, cli.flag("Show what would be converted, and convert nothing.")] = False,
    workers: cli.Workers = 1,
    scheduler: cli.Scheduler = None,
    quiet: cli.Quiet = False,
    **arguments: Any,
) -> cli.Result:
    if (source is None) == (source_url is None):
        raise cli.WrongUseError("convert needs one --source")
    root, url = (source, source_url) if source is None or is_local(source) else (None, source)
    settings: dict[str, Any] = {}
    for name in ConversionSettings.__dataclass_fields__:
        value = arguments.pop(name, None)
        if value is not None:
            settings[name] = value
    if field_dtype:
        settings["field_dtypes"] = cli.pairs("--field-dtype", field_dtype, "FIELD=DTYPE, as volume_vorticity=float32")
    if max_error:
        settings["max_errors"] = cli.pairs("--max-error", max_error, "FIELD=ERROR, as volume_velocity=1e-3std")
    try:
        request = ConversionRequest(
            dataset_kind,
            store,
            root=root,
            source_url=url,
            part=None if part is None else Part.parse(part),
            retire_vanished=retire_vanished,
            settings=settings,
            **arguments,
        )
    except SourceError as error:
        raise cli.WrongUseError(str(error)) from error
    if dry_run:
        return _preview_result(preview(request), redact(store))
    with ExitStack() as cleanup:
        # Also with one worker: a sample whose process is killed for memory then does not end the run.
        pool = cleanup.enter_context(dask_executor(scheduler)) or cleanup.enter_context(WorkerPool(workers))
        not_retired = ""
        try:
            report = run_conversion(request, workers=workers, executor=pool, progress=not quiet)
        except RetirementError as error:
            report, not_retired = error.report, str(error)
    report, written = _with_statistics(report, store)
    if quiet:
        for note in report.notes:
            warnings.warn(note, stacklevel=1)
    text, document = summary(report, redact(store)), _document(report, redact(store))
    if written:
        text += f"\nstatistics that training normalizes with: {written[0]}"
    problems = _refusals(report)
    if not_retired:
        text += f"\nerror: {not_retired}"
        problems.append(f"error: {not_retired}")
    document |= {"statistics": written, "not_retired": not_retired}
    return cli.Result(text, document, problems, report.ok and not not_retired)


def _with_statistics(report: ConversionReport, store: str) -> tuple[ConversionReport, list[str]]:
    """Record the statistics of the training samples: the files, and the report, which notes why if that fails."""
    if not report.manifest.generation:
        return report, []
    try:
        return report, record_training_statistics(store, report.manifest)
    except (ZarrCoreError, OSError) as error:
        hint = statistics_hint(Storage(store), report.manifest)
        note = f"the statistics that training normalizes with were not written: {error}; {hint}"
        return replace(report, notes=(*report.notes, note)), []


def _refusals(report: ConversionReport) -> list[str]:
    refused = [*report.having("quarantined"), *report.having("failed")]
    return [f"{result.status}: {result.sample_id}: {result.reason}" for result in refused]


def summary(report: ConversionReport, store: str) -> str:
    """Result of a conversion in a few lines."""
    document = _document(report, store)
    read, written = format_size(document["bytes_read"]), format_size(document["bytes_written"])
    lines = [
        f"{len(document['converted'])} converted ({read} read, {written} of arrays written, {report.seconds:.1f} s), "
        f"{document['up_to_date']} up to date, {len(document['quarantined'])} quarantined, "
        f"{len(document['failed'])} failed"
    ]
    if report.retired:
        lines.append(f"  retired: {', '.join(report.retired)}")
    lines += [f"  {refusal}" for refusal in _refusals(report)]
    lines += _left(report)
    generation = report.manifest.generation
    if generation:
        lines.append(f"store: {store}, generation {generation}, {len(report.manifest.samples)} samples")
    else:
        lines.append(f"nothing was committed, because no sample was converted: {store} is not a store")
    return "\n".join(lines)


def _left(report: ConversionReport | ConversionPreview) -> list[str]:
    """Lines that name what a conversion leaves to do, and what it left out."""
    lines = [f"  {format_change(change)}" for change in report.split_changes]
    lines += [f"  note: {note}" for note in report.notes]
    if report.remaining:
        lines.insert(0, f"  still to be converted, because of --limit: {report.remaining:,}")
    return lines


def _reasons(results: Sequence[ConversionResult], status: str) -> dict[str, str]:
    return {result.sample_id: result.reason for result in results if result.status == status}


def _document(report: ConversionReport, store: str) -> dict[str, Any]:
    converted = report.having("converted")
    return {
        "store": store,
        "generation": report.manifest.generation,
        "samples": len(report.manifest.samples),
        "seconds": report.seconds,
        "bytes_read": sum(result.bytes_read for result in converted),
        "bytes_written": sum(result.bytes_written for result in converted),
        "up_to_date": len(report.having("up to date")),
        "converted": [result.sample_id for result in converted],
        "quarantined": _reasons(report.results, "quarantined"),
        "failed": _reasons(report.results, "failed"),
        "retired": report.retired,
        "remaining": report.remaining,
        "split_changes": report.split_changes,
        "notes": list(report.notes),
    }


def _preview_result(planned: ConversionPreview, store: str) -> cli.Result:
    """What a conversion would do."""
    counts = []
    ids: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for reason, samples in planned.to_convert.items():
        ids[reason] = [sample.sample_id for sample in samples]
        sizes[reason] = sum(sample.n_bytes for sample in samples)
        if samples:
            counts.append(f"{len(samples):,} {reason} ({format_size(sizes[reason])})")
    lines = [f"would convert {', '.join(counts) or 'nothing'}"]
    if planned.changes:
        lines.append(f"  settings: {planned.changes}")
    statuses = Counter(result.status for result in planned.others)
    lines += [f"  {count:,} {status}" for status, count in statuses.items()]
    if planned.retired:
        lines.append(f"  would retire {len(planned.retired):,}: {some(planned.retired)}")
    if planned.excess:
        reason = "are no longer at the source, more than --max-retired-share allows"
        lines.append(f"  would retire none: {len(planned.excess):,} samples {reason}: {some(planned.excess)}")
    lines += _left(planned)
    held = planned.manifest
    state = f"generation {held.generation}, {len(held.samples)} samples" if held else "new"
    lines.append(f"store: {store}, {state}")
    document = {
        "store": store,
        "generation": held.generation if held else 0,
        "to_convert": ids,
        "source_bytes": sizes,
        "changes": planned.changes,
        "up_to_date": statuses["up to date"],
        "quarantined": _reasons(planned.others, "quarantined"),
        "failed": _reasons(planned.others, "failed"),
        "retired": planned.retired,
        "excess": planned.excess,
        "remaining": planned.remaining,
        "split_changes": planned.split_changes,
        "notes": list(planned.notes),
    }
    return cli.Result("\n".join(lines), document)


main = cli.program(app, __name__)
