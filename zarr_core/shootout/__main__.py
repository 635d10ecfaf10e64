"""Compare formats, settings and storage: ``zarr-core shootout STORE_OR_SOURCE --tiers work=/a --budget 10min``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from zarr_core._util import command_line as cli
from zarr_core._util.redaction import redact
from zarr_core._util.units import parse_duration
from zarr_core.shootout import run_shootout

app = cli.verb(
    "shootout",
    """
zarr-core shootout /data/store --tiers work=/work/me scratch=/scratch/me --budget 10min
zarr-core shootout s3://bucket/store --tiers scratch=/scratch/me bucket=s3://bucket/tmp --price-per-1000-gets 0.0004
zarr-core shootout /data/betas --tiers scratch=/scratch/me --num-features 1000
zarr-core shootout /data/ahmedml --dataset-kind ahmedml --tiers /data/tmp --num-surface-points 16384
""",
    usage="STORE_OR_SOURCE --tiers NAME=PATH... [OPTIONS]",
)


@app.default
@cli.command(run_shootout, without=["samples"])
def _command(
    store: Annotated[str, cli.option("Path or URL of a store, or of files that --dataset-kind describes.")],
    *,
    tiers: Annotated[
        list[str], cli.option("Folders and URLs to compare; nothing is left in them.", metavar="NAME=PATH")
    ],
    budget: Annotated[str, cli.option("Time for measuring, such as 90s, 10min or 1h.", metavar="TIME")] = "10min",
    output: Annotated[
        str, cli.option("Folder for shootout.json and shootout.html.", metavar="DIR")
    ] = "shootout-report",
    limit: Annotated[
        int | None,
        cli.number("Measure with at most N samples. [default: 16 of points, 128 MiB of a matrix]", "--samples"),
    ] = None,
    **arguments: Any,
) -> cli.Result:
    report = run_shootout(store, _tiers(tiers), output, budget=parse_duration(budget), samples=limit, **arguments)
    page = (Path(output) / "shootout.html").resolve()
    verdict = report["verdict"]
    lines = [verdict["headline"], ""]
    for reason in verdict["reasons"]:
        lines.append(f"* {reason}")
    if verdict["command"]:
        lines += ["", verdict["command"]]
    work = report["workload"]
    lines += ["", f"samples measured: {work['samples']:,} of {work['samples_total']:,}"]
    if report["not_measured"]:
        lines.append(f"not measured: {len(report['not_measured'])} (the page names them)")
    return cli.Result("\n".join([*lines, "", f"page: {page}"]), report | {"page": str(page)})


def _tiers(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not equals or "/" in name:
            name, place = redact(text), text
        if not (name and place):
            raise cli.WrongUseError(f"--tiers {redact(text)}: expected NAME=PATH, as in work=/work/me")
        if name in found:
            raise cli.WrongUseError(f"--tiers: {name} is given twice")
        found[name] = place
    return found


main = cli.program(app, __name__)
