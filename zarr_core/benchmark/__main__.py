"""``python -m zarr_core.benchmark``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from zarr_core._util.command_line import exit_status
from zarr_core.benchmark import console_text, run_benchmark


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 1 also where the store is not equal to its source."""
    parser = argparse.ArgumentParser(
        prog="python -m zarr_core.benchmark",
        description="Compare a store with the .pt files that it was made from: equality, bytes, samples a second.",
    )
    parser.add_argument("--pt-root", required=True, metavar="ROOT", help="folder or URL of the .pt files")
    parser.add_argument("--zarr-root", required=True, metavar="STORE", help="path or URL of the store")
    parser.add_argument(
        "--output",
        default="benchmark-report",
        metavar="DIR",
        help="folder for report.json and report.html (%(default)s)",
    )
    parser.add_argument(
        "--num-surface-points", type=int, default=4096, metavar="N", help="points drawn of the surface (%(default)s)"
    )
    parser.add_argument(
        "--num-volume-points", type=int, default=4096, metavar="N", help="points drawn of the volume (%(default)s)"
    )
    parser.add_argument("--samples", type=int, metavar="N", help="measure the first N samples (default: all)")
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="reads of each sample each way (%(default)s)"
    )
    options = parser.parse_args(arguments)

    def work() -> int:
        report = run_benchmark(
            options.pt_root,
            options.zarr_root,
            options.output,
            num_surface_points=options.num_surface_points,
            num_volume_points=options.num_volume_points,
            samples=options.samples,
            repeats=options.repeats,
            progress=True,
        )
        print(console_text(report))
        print(f"report: {(Path(options.output) / 'report.html').resolve()}")
        return 0 if report["equivalence"]["ok"] else 1

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
