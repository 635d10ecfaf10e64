"""The benchmark report: is the store what the source is, and what does a training step cost with it."""

from pathlib import Path
from typing import Any

import dagster as dg

from assets.conditions import follow_a_batch
from resources.dataset import DeclaredDataset

# Enough for steady figures; each is read a dozen times.
MEASURED_SAMPLES = 12


def report_asset(dataset: DeclaredDataset) -> dg.AssetsDefinition:
    """``report.html`` and ``report.json`` in the dataset's report folder."""

    @dg.asset(
        key=dataset.key("benchmark_report"),
        group_name=dataset.name,
        deps=[dataset.key("statistics")],
        automation_condition=follow_a_batch(),
        code_version="1",
        description="Bytes, requests and samples per second of training reads, against the `.pt` files, as a page to "
        "look at and as JSON.",
        metadata={"store": dataset.shown_store, "report": dataset.report},
        kinds={"html", "matplotlib"},
    )
    def benchmark_report() -> dg.MaterializeResult:
        # Brings matplotlib along, which a code server that only lists assets can do without.
        from zarr_core.benchmark import run_benchmark

        report = run_benchmark(dataset.source, dataset.store, dataset.report, samples=MEASURED_SAMPLES)
        return dg.MaterializeResult(metadata=_metadata(Path(dataset.report), report))

    return benchmark_report


def _metadata(folder: Path, report: dict[str, Any]) -> dict[str, Any]:
    from zarr_core.benchmark import headline_markdown

    return {
        "summary": dg.MetadataValue.md(headline_markdown(report)),
        "report": dg.MetadataValue.path(folder / "report.html"),
    }
