"""Report on what a wide matrix holds: ``python -m zarr_core.matrix.quality MATRIX --output FOLDER``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from zarr_core._util.command_line import exit_status
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.quality.report import quality_report


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m zarr_core.matrix.quality", description=__doc__)
    parser.add_argument("matrix", help="path or URL of the matrix")
    parser.add_argument("--output", required=True, help="local folder for quality.json and quality.html")
    parser.add_argument("--generation", type=int, help="commit to report on; the latest by default")
    parser.add_argument("--value", default="beta", help="table of shares between 0 and 1 (default: beta)")
    parser.add_argument("--coverage", default="coverage", help="table of coverage, if there is one (default: coverage)")
    options = parser.parse_args(arguments)

    def work() -> int:
        matrix = WideMatrix.open(options.matrix, options.generation)
        report = quality_report(matrix, options.output, value=options.value, coverage=options.coverage)
        read = len(report["measured_batches"])
        print(
            f"{report['samples']:,} samples, {report['features']:,} features, {len(report['batches'])} batches "
            f"({read} read), {len(report['outliers'])} outliers: {Path(options.output) / 'quality.html'}"
        )
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
