"""Write a quality report of a wide matrix: ``zarr-core quality STORE --output DIR``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from zarr_core._util import command_line as cli
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.quality.report import quality_report

app = cli.verb(
    "quality",
    """
zarr-core quality s3://bucket/betas --output report
zarr-core quality s3://bucket/betas --output report --generation 12
""",
    usage="STORE --output DIR [OPTIONS]",
)


@app.default
@cli.command(quality_report)
def _command(
    store: Annotated[str, cli.option(cli.STORE_HELP, "--matrix")],
    *,
    output: Annotated[str, cli.option("Folder for quality.json and quality.html.", metavar="DIR")],
    generation: cli.Generation = None,
    **arguments: Any,
) -> cli.Result:
    report = quality_report(WideMatrix.open(store, generation), output, **arguments)
    page = Path(output) / "quality.html"
    text = (
        f"{report['samples']:,} samples, {report['features']:,} features, {len(report['batches'])} batches "
        f"({len(report['measured_batches'])} read), {len(report['outliers'])} outliers: {page}"
    )
    return cli.Result(text, report | {"page": str(page)})


main = cli.program(app, __name__)
