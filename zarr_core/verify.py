"""Check a store against its manifest and its source: ``python -m zarr_core.verify STORE``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from zarr_core._util.command_line import exit_status
from zarr_core._util.units import format_size
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix.state import HEAD_NAME as MATRIX_HEAD
from zarr_core.matrix.verify import verify_matrix
from zarr_core.points.verify.store import VerificationReport, verify_store
from zarr_core.storage import Storage

__all__ = ["VerificationReport", "format_report", "verify_store"]


def print_verification(url: str | os.PathLike[str]) -> int:
    """Verify, print what was found, and return the exit status."""
    report = verify_matrix(url)
    for problem in report.problems:
        print(problem)
    if report.unnamed:
        print(f"{report.unnamed:,} shards that no generation names wait for a commit, or for gc")
    checked = f"{report.samples:,} samples, {report.shards:,} shards, {report.chunks:,} chunks of "
    checked += f"{report.generations:,} generations, {format_size(report.bytes)}"
    count = len(report.problems)
    print(f"all sound: {checked}" if report.ok else f"{count} problem{'s' * (count > 1)} in {checked}")
    return 0 if report.ok else 1


def format_report(report: VerificationReport) -> str:
    """A table by field, every problem on a line of its own, and the verdict."""
    header = ("field", "samples", "points", "chunks", "bytes")
    rows = [
        (name, *(f"{n:,}" for n in (tally.samples, tally.points, tally.chunks, tally.bytes)))
        for name, tally in report.fields.items()
    ]
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in (header, *rows)
    ]
    lines += ["", *map(str, report.problems)]
    checked = f"{report.samples:,} samples, {report.arrays:,} arrays, {report.chunks:,} chunks"
    if report.generations > 1:
        checked += f" of {report.generations:,} generations"
    if report.unnamed:
        lines.append(f"{report.unnamed:,} groups that no generation names wait for a commit, or for gc")
    if not report.ok:
        lines.append(f"{len(report.problems)} problem{'s' * (len(report.problems) > 1)} in {checked}")
    elif report.against_source:
        lines.append(f"all equal: {checked}, row by row")
    else:
        lines.append(f"all sound: {checked} (give --source to compare the rows with their source)")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m zarr_core.verify", description=__doc__)
    parser.add_argument("store", metavar="STORE", help="path or URL of the store")
    parser.add_argument("--source", metavar="ROOT_OR_URL", help="also compare every row with this tree of .pt files")
    parser.add_argument(
        "--deep", action="store_true", help="check all kept generations and every object; name the commits at fault"
    )
    parser.add_argument("--samples", nargs="+", metavar="ID", help="only these samples")
    parser.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    options = parser.parse_args(arguments)

    def work() -> int:
        if Storage(options.store).exists(MATRIX_HEAD):
            if options.source or options.samples:
                raise ZarrCoreError(f"{Storage(options.store).url} is a matrix: --source and --samples are for points")
            return print_verification(options.store)
        report = verify_store(
            options.store,
            source=options.source,
            sample_ids=options.samples,
            deep=options.deep,
            workers=options.workers,
            progress=True,
        )
        print(format_report(report))
        return 0 if report.ok else 1

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
