"""The shootout of a dataset or matrix: which format, settings and storage suit it; an asset without automation."""

from pathlib import Path
from typing import Any, Self

import dagster as dg
import pydantic
from pydantic import Field
from zarr_core.platform.sensors.operating import if_red

from zarr_core._util.units import parse_duration
from zarr_core.errors import ZarrCoreError
from zarr_core.shootout.request import ShootoutRequest


class ShootoutDeclaration(dg.Model, dg.Resolvable):
    """What to compare."""

    # URLs may hold passwords.
    tiers: dict[str, str] = Field(repr=False, description="Folders and URLs to compare, by name.")
    budget: str = Field(default="10m", description="Time that measuring may take: 90s, 10m, 1h.")
    num_surface_points: int = Field(
        default=ShootoutRequest.num_surface_points, description="Points per draw of a surface."
    )
    num_volume_points: int = Field(
        default=ShootoutRequest.num_volume_points, description="Points per draw of a volume."
    )
    num_features: int = Field(
        default=ShootoutRequest.num_features, description="Features that a selection of a matrix has."
    )
    batch_size: int = Field(default=ShootoutRequest.batch_size, description="Samples per batch.")
    samples: int | None = Field(
        default=None, description="Measure with at most N samples; by default 16 of points, 128 MiB of a matrix."
    )
    formats: list[str] | None = Field(
        default=None, description="Only these formats, by their names on the page; by default all."
    )
    price_per_1000_gets: float | None = Field(default=None, description="Price of 1,000 GET requests.")

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.tiers or "" in self.tiers.values():  # an empty one would be the folder of the project
            raise ValueError("tiers must name at least one folder or URL, and none that is empty")
        try:
            parse_duration(self.budget)
        except ZarrCoreError as error:
            raise ValueError(f"budget: {error}") from error
        return self


def shootout_assets(
    name: str, store: str, report: str, upstream: dg.AssetKey, declared: ShootoutDeclaration | None
) -> list[dg.AssetsDefinition]:
    """The asset ``<name>/shootout``: its page, and the verdict as metadata, which Dagster plots over the runs.

    Args:
        name: of the dataset.
        store: URL of its store.
        report: local folder; the page is written to ``shootout`` in it.
        upstream: the asset of the store's generations.
        declared: what to compare; None for no asset.
    """
    if declared is None:
        return []

    @dg.asset(
        key=[name, "shootout"],
        group_name=name,
        deps=[upstream],
        description="Formats, store settings, DataLoader workers and storage compared on samples of the store, with a "
        "recommendation."
        + if_red("where-is-the-reason", "read the last event of the run; it measures only and changes nothing"),
        kinds={"html", "matplotlib"},
    )
    def shootout() -> dg.MaterializeResult:
        # Imports torch and matplotlib, which a code server that only lists assets does not need.
        from zarr_core.shootout import run_shootout

        folder = Path(report) / "shootout"
        budget = parse_duration(declared.budget)
        settings = declared.model_dump(exclude={"tiers", "budget"})
        found = run_shootout(store, declared.tiers, folder, budget=budget, **settings)
        return dg.MaterializeResult(metadata=_metadata(folder, found))

    return [shootout]


def _metadata(folder: Path, report: dict[str, Any]) -> dict[str, Any]:
    verdict = report["verdict"]
    reasons = "\n".join(f"* {reason}" for reason in verdict["reasons"])
    text = f"**{verdict['headline']}**\n\n{reasons}\n\n```\n{verdict['command']}\n```"
    by_tier = verdict["by_tier"].items()
    return {
        "verdict": verdict["headline"],
        "reasons": dg.MetadataValue.md(text),
        "report": dg.MetadataValue.path(folder / "shootout.html"),
        "not_measured": len(report["not_measured"]),
        "samples_per_second": round(verdict["setting"]["median"], 1),
        "bytes_per_sample": round(verdict["setting"]["bytes"]),
        "inodes_per_sample": round(verdict["setting"]["inodes"], 1),
        **{f"samples_per_second/{tier}": round(row["median"], 1) for tier, row in by_tier},
    }
