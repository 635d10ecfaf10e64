"""Copy a store, or the part of it that a run reads, to fast storage: ``python -m zarr_core.stage SRC DST``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from zarr_core._util.command_line import exit_status, number_or_tag
from zarr_core._util.units import format_size
from zarr_core.points.stage import StageReport, stage_store
from zarr_core.storage import Storage

__all__ = ["StageReport", "stage_store"]


def summary(report: StageReport, target: str) -> str:
    """What a person wants to know at the end of a run."""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit status is 0 only if everything that was asked for is there."""
    parser = argparse.ArgumentParser(prog="python -m zarr_core.stage", description=__doc__)
    parser.add_argument("source", metavar="SRC", help="path or URL of the store to copy")
    parser.add_argument("target", metavar="DST", help="path or URL: an empty place, or an earlier copy of SRC")
    parser.add_argument("--split", help="only the samples of this split")
    parser.add_argument("--fields", nargs="+", metavar="FIELD", help="only these fields")
    parser.add_argument("--samples", nargs="+", metavar="ID", help="only these samples")
    parser.add_argument(
        "--generation", type=number_or_tag, metavar="N", help="the store as that commit left it; a number or a tag"
    )
    parser.add_argument("--check", action="store_true", help="read again what is there, instead of going by its size")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default 1)")
    options = parser.parse_args(arguments)

    def work() -> int:
        report = stage_store(
            options.source,
            options.target,
            split=options.split,
            fields=options.fields,
            sample_ids=options.samples,
            generation=options.generation,
            check=options.check,
            workers=options.workers,
            progress=True,
        )
        print(summary(report, Storage(options.target).url))
        return 0 if report.ok else 1

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
