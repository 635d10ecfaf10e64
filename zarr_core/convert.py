"""Convert a dataset of ``.pt`` files to a store: ``python -m zarr_core.convert``, or :func:`convert` in code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from zarr_core._util.command_line import exit_status
from zarr_core._util.redaction import redact_url
from zarr_core._util.units import format_size
from zarr_core.errors import SourceError
from zarr_core.format.array_metadata import VALUE_DTYPES
from zarr_core.format.codecs import CODECS, DEFAULT_CODEC
from zarr_core.points.convert import (
    ConversionReport,
    convert,
    convert_aero_dataset,
    convert_fsspec_source,
    iter_convert,
)
from zarr_core.points.convert_sample import ConversionResult
from zarr_core.points.publish import publish
from zarr_core.points.settings import ConversionSettings
from zarr_core.sources.description import shipped_kinds

__all__ = [
    "ConversionReport",
    "ConversionResult",
    "convert",
    "convert_aero_dataset",
    "convert_fsspec_source",
    "iter_convert",
    "publish",
]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m zarr_core.convert", description="Convert a dataset of .pt files to a Zarr store."
    )
    parser.add_argument(
        "--dataset-kind", required=True, help=f"{', '.join(shipped_kinds())}, a dotted path, or a YAML file"
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--root", help="local folder of the dataset, converted by split")
    place.add_argument("--source-url", help="any fsspec location of the dataset, found by listing")
    parser.add_argument("--output", required=True, help="the store: a local path or any fsspec URL")
    parser.add_argument("--splits", nargs="+", metavar="SPLIT", help="default: everything that is there")
    parser.add_argument("--chunk-points", type=int, default=ConversionSettings.chunk_points, metavar="N")
    parser.add_argument("--shard-points", type=int, metavar="N", help="default: one shard an array")
    parser.add_argument("--values-dtype", choices=VALUE_DTYPES, default=ConversionSettings.values_dtype)
    parser.add_argument(
        "--field-dtype", action="append", default=[], metavar="FIELD=DTYPE", help="dtype of one field; repeatable"
    )
    parser.add_argument(
        "--codec", default=DEFAULT_CODEC, help=f"{', '.join(CODECS)}; with or without :level (default %(default)s)"
    )
    parser.add_argument("--shuffle-seed", type=int, default=0, metavar="N")
    parser.add_argument("--dataset-name", help="name in the manifest (default: the kind's)")
    parser.add_argument("--limit", type=int, metavar="N", help="convert at most N samples")
    parser.add_argument(
        "--retire-vanished",
        action="store_true",
        help="take samples out of the manifest that the source no longer holds; their bytes stay until gc",
    )
    parser.add_argument("--retry-quarantined", action="store_true", help="try refused samples again, changed or not")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default 1)")
    return parser


def _field_dtypes(assignments: Sequence[str]) -> dict[str, str]:
    dtypes = {}
    for assignment in assignments:
        name, equals, dtype = assignment.partition("=")
        if not (name and equals and dtype):
            raise SourceError(f"--field-dtype {assignment!r}: expected FIELD=DTYPE, as in volume_vorticity=float32")
        dtypes[name] = dtype
    return dtypes


def summary(report: ConversionReport, store: str) -> str:
    """What a person wants to know at the end of a run."""
    converted, refused = report.having("converted"), [*report.having("quarantined"), *report.having("failed")]
    read, written = (sum(getattr(o, name) for o in converted) for name in ("bytes_read", "bytes_written"))
    lines = [
        f"{len(converted)} converted ({format_size(read)} read, {format_size(written)} written, "
        f"{report.seconds:.1f} s), {len(report.having('up to date'))} up to date, "
        f"{len(report.having('quarantined'))} quarantined, "
        f"{len(report.having('failed'))} failed",
        *([f"  retired: {', '.join(report.retired)}"] if report.retired else []),
        *(f"  {outcome.status}: {outcome.sample_id}: {outcome.reason}" for outcome in refused),
        f"store: {store}, generation {report.manifest.generation}, {len(report.manifest.samples)} samples",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; the exit status is 0 only if something was converted or everything was there already."""
    arguments = _parser().parse_args(argv)

    def work() -> int:
        report = convert(
            arguments.dataset_kind,
            arguments.output,
            root=arguments.root,
            source_url=arguments.source_url,
            splits=arguments.splits,
            limit=arguments.limit,
            dataset_name=arguments.dataset_name,
            retry_quarantined=arguments.retry_quarantined,
            retire_vanished=arguments.retire_vanished,
            workers=arguments.workers,
            progress=True,
            chunk_points=arguments.chunk_points,
            shard_points=arguments.shard_points,
            values_dtype=arguments.values_dtype,
            field_dtypes=_field_dtypes(arguments.field_dtype),
            codec=arguments.codec,
            shuffle_seed=arguments.shuffle_seed,
        )
        print(summary(report, redact_url(arguments.output)))
        return 0 if report.ok else 1

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
