"""The quality report of a matrix: a page, and the numbers that Dagster plots over time."""

from pathlib import Path
from typing import Any

import dagster as dg

from assets.conditions import follow_what_was_published
from assets.pictures import bars
from assets.tables import table
from assets.wide_matrix.declaration import MatrixDeclaration
from resources.warehouses import WarehouseAccess
from sensors.operating import if_red

_PICTURED_BATCHES = 6


def quality_report_asset(declared: MatrixDeclaration) -> dg.AssetsDefinition:
    """``quality.html`` and ``quality.json`` in the declared report folder."""

    @dg.asset(
        key=declared.key("quality_report"),
        group_name=declared.name,
        deps=[declared.key("columns")],
        automation_condition=follow_what_was_published(),
        code_version="1",
        description="Missing values, distributions and coverage of every batch, and samples that stand out, as a page "
        "to look at and as JSON. Only new batches are read."
        + if_red("where-is-the-reason", "read the last event of the run; readers of the matrix need no report"),
        metadata={"matrix": declared.shown_matrix, "report": declared.report},
        kinds={"html", "matplotlib"},
    )
    def quality_report(warehouses: WarehouseAccess) -> dg.MaterializeResult:
        # Imports matplotlib, which a code server that only lists assets does not need.
        from zarr_core.matrix.quality.report import quality_report as make_report

        report = make_report(warehouses.matrix(declared.matrix), declared.report, value=next(iter(declared.values)))
        return dg.MaterializeResult(metadata=_metadata(Path(declared.report), report))

    return quality_report


def _metadata(folder: Path, report: dict[str, Any]) -> dict[str, Any]:
    batches: dict[str, dict[str, Any]] = report["batches"]
    shares = {name: batch["missing"] / batch["cells"] for name, batch in batches.items()}
    pictured = [(f"{name}: {shares[name]:.1%}", shares[name]) for name in list(batches)[-_PICTURED_BATCHES:]]
    outliers = [
        {name: found[name] for name in ("sample", "batch", "reason", "found", "usual")} for found in report["outliers"]
    ]
    return {
        "missing": dg.MetadataValue.md(bars(pictured, "share of cells that are missing, latest batches")),
        "report": dg.MetadataValue.path(folder / "quality.html"),
        "generation": report["generation"],
        "samples": report["samples"],
        "batches_read": len(report["measured_batches"]),
        "missing_share": round(
            sum(batch["missing"] for batch in batches.values()) / sum(batch["cells"] for batch in batches.values()), 4
        ),
        "outlier_samples": len({found["sample"] for found in report["outliers"]}),
        **({"outliers": table(outliers)} if outliers else {}),
    }
