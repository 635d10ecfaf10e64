"""Compare a store with its source: ``zarr-core benchmark STORE --source SOURCE``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from zarr_core._util import command_line as cli
from zarr_core.benchmark import console_text, run_benchmark

app = cli.verb(
    "benchmark",
    """
zarr-core benchmark /data/store --source /data/ahmedml
zarr-core benchmark s3://bucket/store --source s3://bucket/ahmedml --limit 8 --output report
""",
    usage="STORE --source SOURCE [OPTIONS]",
)


@app.default
def _command(
    store: Annotated[str, cli.option(cli.STORE_HELP, "--zarr-root")],
    *,
    source: Annotated[str, cli.option("Folder or URL of the files that the store was made from.", *cli.SOURCE_ALIASES)],
    output: Annotated[str, cli.option("Folder for report.json and report.html.", metavar="DIR")] = "benchmark-report",
    num_surface_points: Annotated[int, cli.number("Points drawn per surface.")] = 4096,
    num_volume_points: Annotated[int, cli.number("Points drawn per volume.")] = 4096,
    limit: Annotated[int | None, cli.number("At most N samples.", "--samples")] = None,
    repeats: Annotated[int, cli.number("Reads per sample and way.")] = 3,
    dataset_kind: Annotated[str | None, cli.option(cli.KIND_HELP)] = None,
    quiet: cli.Quiet = False,
    json: cli.Json = False,
) -> int:
    report = run_benchmark(
        source,
        store,
        output,
        num_surface_points=num_surface_points,
        num_volume_points=num_volume_points,
        samples=limit,
        repeats=repeats,
        dataset_kind=dataset_kind,
        progress=not quiet,
    )
    page = (Path(output) / "report.html").resolve()
    cli.show(f"{console_text(report)}\nreport: {page}", report | {"page": str(page)}, json=json, quiet=quiet)
    return cli.DONE if report["equivalence"]["ok"] else cli.FAILED


main = partial(cli.run, app)


if __name__ == "__main__":
    sys.exit(main())
