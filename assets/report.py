"""The benchmark report: whether the store equals its source, and the cost of a training step."""

from pathlib import Path
from typing import Any

import dagster as dg
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.derived import derived_asset
from zarr_core.platform.assets.pictures import bars
from zarr_core.platform.sensors.operating import if_red

# Enough for stable figures; each sample is read a dozen times.
MEASURED_SAMPLES = 12


def report_asset(dataset: DatasetDeclaration) -> dg.AssetsDefinition:
    """``report.html`` and ``report.json`` in the dataset's report folder."""

    way_out = if_red("where-is-the-reason", "read the last event of the run; readers of the store need no report")
    metadata = {"store": dataset.shown_store, "report": dataset.report}

    @derived_asset(dataset, "statistics", metadata, {"html", "matplotlib"}, way_out)
    def benchmark_report() -> dg.MaterializeResult:
        """Bytes, requests and samples per second of training reads, against the files of the source, as a page to look
        at and as JSON.
        """
        # Imports matplotlib, which a code server that only lists assets does not need.
        from zarr_core.benchmark import run_benchmark

        report = run_benchmark(dataset.source, dataset.store, dataset.report, samples=MEASURED_SAMPLES)
        return dg.MaterializeResult(metadata=_metadata(Path(dataset.report), report))

    return benchmark_report


def _metadata(folder: Path, report: dict[str, Any]) -> dict[str, Any]:
    from zarr_core.benchmark import Wording, headline_markdown

    bytes_read, speeds, lengths = {}, {}, []
    for way, name in Wording(report).ways.items():
        number = bytes_read[way] = round(report["reads"]["total"][way]["bytes"])
        speeds[way] = round(float(report["throughput"][way]["samples_per_s"]), 1)
        lengths.append((f"{name}: {number / 1e6:.2f} MB", number))
    return {
        "summary": dg.MetadataValue.md(headline_markdown(report)),
        "bytes_per_sample": dg.MetadataValue.md(bars(lengths, "bytes read for one training sample")),
        "error_bounds": Wording(report).bounds_note,
        "report": dg.MetadataValue.path(folder / "report.html"),
        "generation": report["store"]["generation"],
        "share_of_bytes_read": round(bytes_read["drawn"] / bytes_read["pt"], 4),
        **{f"bytes_per_sample/{way}": number for way, number in bytes_read.items()},
        **{f"samples_per_second/{way}": number for way, number in speeds.items()},
    }
