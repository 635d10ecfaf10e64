"""Normalization statistics of the store, merged from the moments that the conversion recorded. No array is read."""

from typing import Any

import dagster as dg
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.derived import derived_asset
from zarr_core.platform.assets.tables import table
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.operating import if_red

from zarr_core.points.statistics import calculate_store_statistics, write_statistics
from zarr_core.points.store.manifest import StoreManifest


def statistics_asset(dataset: DatasetDeclaration) -> dg.AssetsDefinition:
    """``statistics/<generation>/`` in the store, over the training samples if there are any, else over all samples."""

    way_out = if_red("a-failed-check", f"read the last event of the run, and run {dataset.name}_refresh again")

    @derived_asset(dataset, "manifest", {"store": dataset.shown_store}, {"yaml", "numpy"}, way_out)
    def statistics(context: dg.AssetExecutionContext, stores: StoreAccess) -> dg.MaterializeResult:
        """Mean, standard deviation, extremes and log-scale moments of every field over the training samples: the
        datasets normalize with them.
        """
        manifest = stores.manifest(dataset.store)
        split = statistics_split(manifest)
        # Reads one small object per sample: latency decides, so many requests run at once.
        numbers = calculate_store_statistics(
            dataset.store, split=split, generation=manifest.generation, read_concurrency=16
        )
        of = f"split {split}" if split else "all samples"
        written = write_statistics(
            dataset.store,
            numbers,
            of=f"{of}, generation {manifest.generation}",
            split=split,
            generation=manifest.generation,
        )
        context.log.info(f"{of}: {', '.join(written)}")
        # The copy at the root of the store, if these are the statistics that training normalizes with.
        published = next((path for path in written if path.endswith("/stats.yaml")), written[0])
        return dg.MaterializeResult(
            metadata={
                "of": of,
                "generation": manifest.generation,
                "file": dg.MetadataValue.path(published),
                "fields": table(field_rows(manifest, numbers)),
                **_scalars(manifest, numbers),
            },
            data_version=dg.DataVersion(f"generation-{manifest.generation}"),
        )

    return statistics


def statistics_split(manifest: StoreManifest) -> str | None:
    """The training split if the store holds samples of it; None otherwise, for all samples."""
    return "train" if "train" in manifest.splits and manifest.split_ids("train") else None


def field_rows(manifest: StoreManifest, numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per field and component."""
    rows = []
    for field, column in manifest.fields.items():
        for axis in range(column.dim):
            row: dict[str, Any] = {"field": field if column.dim == 1 else f"{field}[{axis}]"}
            for name in ("mean", "std", "min", "max"):
                value = numbers[f"{field}_{name}"]
                row[name] = value[axis] if isinstance(value, list) else value
            rows.append(row)
    return rows


def _scalars(manifest: StoreManifest, numbers: dict[str, Any]) -> dict[str, float]:
    """Numbers that Dagster plots over time: a shift of the data shows as a step."""
    scalars = {"raw_pos_min": numbers["raw_pos_min"], "raw_pos_max": numbers["raw_pos_max"]}
    for field, column in manifest.fields.items():
        if column.dim == 1:
            scalars[f"mean/{field}"] = numbers[f"{field}_mean"]
            scalars[f"std/{field}"] = numbers[f"{field}_std"]
    return scalars
