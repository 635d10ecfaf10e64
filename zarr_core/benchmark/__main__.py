"""Compare a store with its source: ``zarr-core benchmark STORE --source SOURCE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
@cli.command(run_benchmark, without=["samples"])
def _command(
    store: Annotated[str, cli.option(cli.STORE_HELP, "--zarr-root")],
    *,
    source: Annotated[str, cli.option("Folder or URL of the files that the store was made from.", *cli.SOURCE_ALIASES)],
    output: Annotated[str, cli.option("Folder for report.json and report.html.", metavar="DIR")] = "benchmark-report",
    limit: Annotated[int | None, cli.number("At most N samples.", "--samples")] = None,
    **arguments: Any,
) -> cli.Result:
    report = run_benchmark(source, store, output, samples=limit, **arguments)
    page = (Path(output) / "report.html").resolve()
    text = f"{console_text(report)}\nreport: {page}"
    return cli.Result(text, report | {"page": str(page)}, ok=report["equivalence"]["ok"])


main = cli.program(app, __name__)
