"""Compare a store with its source: ``zarr-core benchmark STORE --source SOURCE``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from zarr_core._util.command_line import (
    DONE,
    FAILED,
    SOURCE_ALIASES,
    STORE_HELP,
    Json,
    Quiet,
    number,
    option,
    run,
    show,
    verb,
)
from zarr_core.benchmark import console_text, run_benchmark

app = verb(
    "benchmark",
    """
zarr-core benchmark /data/store --source /data/ahmedml
zarr-core benchmark s3://bucket/store --source s3://bucket/ahmedml --limit 8 --output report
""",
    usage="STORE --source SOURCE [OPTIONS]",
)


@app.default
def _command(
    store: Annotated[str, option(STORE_HELP, "--zarr-root")],
    *,
    source: Annotated[str, option("Folder or URL of the .pt files that the store was made from.", *SOURCE_ALIASES)],
    output: Annotated[str, option("Folder for report.json and report.html.", metavar="DIR")] = "benchmark-report",
    num_surface_points: Annotated[int, number("Points drawn per surface.")] = 4096,
    num_volume_points: Annotated[int, number("Points drawn per volume.")] = 4096,
    limit: Annotated[int | None, number("At most N samples.", "--samples")] = None,
    repeats: Annotated[int, number("Reads per sample and way.")] = 3,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    report = run_benchmark(
        source,
        store,
        output,
        num_surface_points=num_surface_points,
        num_volume_points=num_volume_points,
        samples=limit,
        repeats=repeats,
        progress=not quiet,
    )
    page = (Path(output) / "report.html").resolve()
    show(f"{console_text(report)}\nreport: {page}", report | {"page": str(page)}, json=json, quiet=quiet)
    return DONE if report["equivalence"]["ok"] else FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
