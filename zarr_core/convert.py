"""Convert a dataset of ``.pt`` files to a store: ``zarr-core convert``, or :func:`convert` in code."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from zarr_core._util import command_line as cli
from zarr_core._util.dask_cluster import dask_executor
from zarr_core._util.processes import WorkerPool
from zarr_core._util.redaction import redact
from zarr_core._util.units import format_size
from zarr_core.errors import SourceError
from zarr_core.format.array_metadata import VALUE_DTYPES
from zarr_core.format.codecs import CODECS, DEFAULT_CODEC
from zarr_core.points.convert.conversion import (
    ConversionReport,
    convert,
    iter_convert,
)
from zarr_core.points.convert.job import FINGERPRINTS
from zarr_core.points.convert.plan import ConversionPreview, preview
from zarr_core.points.convert.publish import MAX_RETIRED_SHARE, publish
from zarr_core.points.convert.sample import ConversionResult, SampleOutcome
from zarr_core.points.convert.store_writer import convert_aero_dataset, convert_fsspec_source
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.sources.parts import Part
from zarr_core.sources.resolve import shipped_kinds
from zarr_core.storage import is_local

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
def _command(
    store: Annotated[str, cli.option(f"{cli.STORE_HELP} It is created or extended.", "--output")],
    *,
    dataset_kind: Annotated[str, cli.option(f"One of {', '.join(shipped_kinds())}, a dotted path, or a YAML file.")],
    source: Annotated[
        str | None,
        cli.option("Folder or URL of the dataset; a class is opened in a folder by split.", *cli.SOURCE_ALIASES[:2]),
    ] = None,
    source_url: Annotated[str | None, Parameter(show=False)] = None,
    split: Annotated[
        list[str] | None,
        cli.option("Only the samples of these splits. [default: all samples]", "--splits", several=True),
    ] = None,
    samples: cli.Samples = None,
    limit: Annotated[int | None, cli.number("At most N samples.")] = None,
    fingerprint: Annotated[
        str | None,
        Parameter(
            help="Notice changed samples by the versions (etag or time) of their files, or by their content, which "
            "copies share. [default: as the store; version for a new one]",
            choices=FINGERPRINTS,
        ),
    ] = None,
    dataset_name: Annotated[str | None, cli.option("Name in the manifest. [default: name of the kind]")] = None,
    chunk_points: Annotated[
        int | None, cli.number(f"Points per chunk. [default of a new store: {ConversionSettings.chunk_points}]")
    ] = None,
    shard_points: Annotated[
        int | None, cli.number("Points per shard. [default of a new store: one shard per array]")
    ] = None,
    values_dtype: Annotated[
        str | None,
        Parameter(
            help="Stored dtype of all fields except positions. "
            f"[default of a new store: {ConversionSettings.values_dtype}]",
            choices=VALUE_DTYPES,
        ),
    ] = None,
    field_dtype: Annotated[
        list[str] | None,
        cli.option("Stored dtype of single fields; 'default' removes one.", metavar="FIELD=DTYPE", several=True),
    ] = None,
    codec: Annotated[
        str | None,
        cli.option(f"One of {', '.join(CODECS)}, with or without :level. [default of a new store: {DEFAULT_CODEC}]"),
    ] = None,
    shuffle_seed: Annotated[
        int | None, cli.number("Seed of the stored order of points. [default of a new store: 0]", least=None)
    ] = None,
    reconvert: Annotated[
        bool, cli.flag("Convert all samples again, with other settings than those of the store.")
    ] = False,
    retry_quarantined: Annotated[bool, cli.flag("Convert refused samples again, even if they are unchanged.")] = False,
    force: Annotated[
        bool, cli.flag("Convert samples again that are up to date, and repair their groups; see --samples.")
    ] = False,
    retire_vanished: Annotated[
        bool, cli.flag("Remove samples from the manifest that the source no longer has; their bytes stay until gc.")
    ] = False,
    max_retired_share: Annotated[
        float,
        cli.option(
            "Remove none and fail if more than this share of the samples, and more than one, would be removed, 0 to 1. "
            "With 0, not one is removed.",
            metavar="SHARE",
        ),
    ] = MAX_RETIRED_SHARE,
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
    json: cli.Json = False,
) -> int:
    if (source is None) == (source_url is None):
        raise cli.WrongUseError("convert needs one --source")
    place: dict[str, Any] = {"source_url": source_url}
    if source is not None:
        place = {"root": source} if is_local(source) else {"source_url": source}
    settings: dict[str, Any] = {
        "chunk_points": chunk_points,
        "shard_points": shard_points,
        "values_dtype": values_dtype,
        "field_dtypes": _field_dtypes(field_dtype or ()) or None,
        "codec": codec,
        "shuffle_seed": shuffle_seed,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    try:
        ConversionSettings(**settings)
        chosen_part = None if part is None else Part.parse(part)
    except SourceError as error:
        raise cli.WrongUseError(str(error)) from error
    arguments: dict[str, Any] = {
        **place,
        "splits": split,
        "sample_ids": samples,
        "part": chosen_part,
        "limit": limit,
        "fingerprint": fingerprint,
        "dataset_name": dataset_name,
        "retry_quarantined": retry_quarantined,
        "force": force,
        "reconvert": reconvert,
        **settings,
    }
    url = redact(store)
    if dry_run:
        planned = preview(dataset_kind, store, **arguments)
        cli.show(_preview_summary(planned, url), _preview_document(planned, url), json=json, quiet=quiet)
        return cli.DONE
    with ExitStack() as cleanup:
        # Also with one worker: a sample whose process is killed for memory then does not end the run.
        pool = cleanup.enter_context(dask_executor(scheduler)) or cleanup.enter_context(WorkerPool(workers))
        report = convert(
            dataset_kind,
            store,
            retire_vanished=retire_vanished,
            max_retired_share=max_retired_share,
            workers=workers,
            executor=pool,
            progress=not quiet,
            **arguments,
        )
    if quiet and not json:
        for note in report.notes:
            warnings.warn(note, stacklevel=1)
    cli.show(summary(report, url), _document(report, url), json=json, quiet=quiet, problems=_refusals(report))
    return cli.DONE if report.ok else cli.FAILED


def _field_dtypes(assignments: Sequence[str]) -> dict[str, str]:
    dtypes = {}
    for assignment in assignments:
        name, equals, dtype = assignment.partition("=")
        if not (name and equals and dtype):
            raise cli.WrongUseError(
                f"--field-dtype {assignment!r}: expected FIELD=DTYPE, as in volume_vorticity=float32"
            )
        dtypes[name] = dtype
    return dtypes


def _refusals(report: ConversionReport) -> list[str]:
    refused = [*report.having("quarantined"), *report.having("failed")]
    return [f"{result.status}: {result.sample_id}: {result.reason}" for result in refused]


def summary(report: ConversionReport, store: str) -> str:
    """Result of a conversion in a few lines."""
    converted = report.having("converted")
    read, written = (sum(getattr(o, name) for o in converted) for name in ("bytes_read", "bytes_written"))
    lines = [
        f"{len(converted)} converted ({format_size(read)} read, {format_size(written)} written, "
        f"{report.seconds:.1f} s), {len(report.having('up to date'))} up to date, "
        f"{len(report.having('quarantined'))} quarantined, "
        f"{len(report.having('failed'))} failed",
        *([f"  retired: {', '.join(report.retired)}"] if report.retired else []),
        *(f"  {refusal}" for refusal in _refusals(report)),
        *([f"  still to be converted, because of --limit: {report.remaining:,}"] if report.remaining else []),
        *(f"  note: {note}" for note in report.notes),
        f"store: {store}, generation {report.manifest.generation}, {len(report.manifest.samples)} samples"
        if report.manifest.generation
        else f"nothing was committed, because no sample was converted: {store} is no store",
    ]
    return "\n".join(lines)


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
        "quarantined": {result.sample_id: result.reason for result in report.having("quarantined")},
        "failed": {result.sample_id: result.reason for result in report.having("failed")},
        "retired": report.retired,
        "remaining": report.remaining,
        "notes": list(report.notes),
    }


def _preview_summary(planned: ConversionPreview, store: str) -> str:
    """What a conversion would do, in a few lines."""
    counts = [
        f"{len(samples):,} {reason} ({format_size(sum(sample.n_bytes for sample in samples))})"
        for reason, samples in planned.to_convert.items()
        if samples
    ]
    statuses = Counter(result.status for result in planned.others)
    held = planned.manifest
    lines = [
        f"would convert {', '.join(counts) or 'nothing'}",
        *([f"  settings of the stale samples: {planned.changes}"] if planned.changes else []),
        *(f"  {count:,} {status}" for status, count in statuses.items()),
        *([f"  still to be converted, because of --limit: {planned.remaining:,}"] if planned.remaining else []),
        *(f"  note: {note}" for note in planned.notes),
        f"store: {store}, " + (f"generation {held.generation}, {len(held.samples)} samples" if held else "new"),
    ]
    return "\n".join(lines)


def _preview_document(planned: ConversionPreview, store: str) -> dict[str, Any]:
    reasons = planned.to_convert.items()
    return {
        "store": store,
        "generation": planned.manifest.generation if planned.manifest else 0,
        "to_convert": {reason: [sample.sample_id for sample in samples] for reason, samples in reasons},
        "source_bytes": {reason: sum(sample.n_bytes for sample in samples) for reason, samples in reasons},
        "changes": planned.changes,
        "up_to_date": sum(result.status == "up to date" for result in planned.others),
        "quarantined": {r.sample_id: r.reason for r in planned.others if r.status == "quarantined"},
        "failed": {r.sample_id: r.reason for r in planned.others if r.status == "failed"},
        "remaining": planned.remaining,
        "notes": list(planned.notes),
    }


main = partial(cli.run, app)


if __name__ == "__main__":
    sys.exit(main())
