"""The quality report of a matrix: a page, and the numbers that Dagster plots over time."""

from pathlib import Path
from typing import Any

import dagster as dg
from zarr_core.platform.assets.derived import derived_asset
from zarr_core.platform.assets.pictures import bars
from zarr_core.platform.assets.tables import table
from zarr_core.platform.assets.wide_matrix.declaration import MatrixDeclaration
from zarr_core.platform.resources.warehouses import WarehouseAccess
from zarr_core.platform.sensors.operating import if_red

from zarr_core.matrix.quality.measure import missing_share
from zarr_core.matrix.quality.report import quality_report as make_report

_PICTURED_BATCHES = 6


def quality_report_asset(declared: MatrixDeclaration) -> dg.AssetsDefinition:
    """``quality.html`` and ``quality.json`` in the declared report folder."""

    way_out = if_red("where-is-the-reason", "read the last event of the run; readers of the matrix need no report")
    metadata = {"matrix": declared.shown_matrix, "report": declared.report}

    @derived_asset(declared, "columns", metadata, {"html", "matplotlib"}, way_out)
    def quality_report(warehouses: WarehouseAccess) -> dg.MaterializeResult:
        """Missing values, distributions and coverage of every batch, and samples that stand out, as a page to look at
        and as JSON. Only new batches are read.
        """
        report = make_report(warehouses.matrix(declared.matrix), declared.report, value=next(iter(declared.values)))
        return dg.MaterializeResult(metadata=_metadata(Path(declared.report), report))

    return quality_report


def _metadata(folder: Path, report: dict[str, Any]) -> dict[str, Any]:
    """What the UI shows of a report, and plots over the generations."""
    outliers = report["outliers"]
    pictured = []
    for name, batch in list(report["batches"].items())[-_PICTURED_BATCHES:]:
        share = batch["missing"] / batch["cells"]
        pictured.append((f"{name}: {share:.1%}", share))
    metadata: dict[str, Any] = {
        "missing": dg.MetadataValue.md(bars(pictured, "share of cells that are missing, latest batches")),
        "report": dg.MetadataValue.path(folder / "quality.html"),
        "generation": report["generation"],
        "samples": report["samples"],
        "batches_read": len(report["measured_batches"]),
        "missing_share": round(missing_share(report), 4),
        "outlier_samples": len({found["sample"] for found in outliers}),
    }
    if outliers:
        columns = ("sample", "batch", "reason", "found", "usual")
        metadata["outliers"] = table([{name: found[name] for name in columns} for found in outliers])
    return metadata
