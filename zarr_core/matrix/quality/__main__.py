"""Write a quality report of a wide matrix: ``zarr-core quality STORE --output DIR``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from zarr_core._util.command_line import (
    DONE,
    STORE_HELP,
    Generation,
    Json,
    Quiet,
    option,
    run,
    show,
    verb,
)
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.quality.report import quality_report

app = verb(
    "quality",
    """
zarr-core quality s3://bucket/betas --output report
zarr-core quality s3://bucket/betas --output report --generation 12
""",
    usage="STORE --output DIR [OPTIONS]",
)


@app.default
def _command(
    store: Annotated[str, option(STORE_HELP, "--matrix")],
    *,
    output: Annotated[str, option("Folder for quality.json and quality.html.", metavar="DIR")],
    generation: Generation = None,
    value: Annotated[str, option("Table of shares between 0 and 1.")] = "beta",
    coverage: Annotated[str, option("Table of coverage, if there is one.")] = "coverage",
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    matrix = WideMatrix.open(store, generation)
    report = quality_report(matrix, output, value=value, coverage=coverage)
    page = Path(output) / "quality.html"
    text = (
        f"{report['samples']:,} samples, {report['features']:,} features, {len(report['batches'])} batches "
        f"({len(report['measured_batches'])} read), {len(report['outliers'])} outliers: {page}"
    )
    show(text, report | {"page": str(page)}, json=json, quiet=quiet)
    return DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
