"""The component of a dataset of points: everything that one ``defs.yaml`` defines."""

import dagster as dg
from zarr_core.platform.assets.checks import dataset_checks
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.exports import export_asset
from zarr_core.platform.assets.jobs import dataset_jobs
from zarr_core.platform.assets.manifest import manifest_asset
from zarr_core.platform.assets.migration import migration_job
from zarr_core.platform.assets.overview import overview_asset
from zarr_core.platform.assets.report import report_asset
from zarr_core.platform.assets.shootout import shootout_assets
from zarr_core.platform.assets.source_samples import source_listing_asset, source_samples_asset
from zarr_core.platform.assets.statistics import statistics_asset
from zarr_core.platform.assets.upkeep import garbage_asset, gc_schedules, verification_asset, verification_schedules
from zarr_core.platform.assets.zarr_samples import zarr_samples_asset
from zarr_core.platform.sensors.arrivals import arrivals_sensor
from zarr_core.platform.sensors.automation import automation_sensor
from zarr_core.platform.sensors.schedules import refresh_schedule


class PointDataset(dg.Component, DatasetDeclaration):
    """A dataset of point-cloud samples, converted to a Zarr store as the samples arrive.

    Relative paths are relative to the project; a ``kind`` that is a YAML file, to the folder of the ``defs.yaml``.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The assets, checks, jobs, sensor and schedule of the dataset."""
        return dataset_definitions(self.with_absolute_paths(context.project_root, context.path))


def dataset_definitions(dataset: DatasetDeclaration) -> dg.Definitions:
    """Everything that exists for one dataset."""
    assets: list[dg.AssetsDefinition | dg.SourceAsset | dg.AssetSpec] = [
        overview_asset(dataset),
        source_samples_asset(dataset),
        source_listing_asset(dataset),
        zarr_samples_asset(dataset),
        manifest_asset(dataset),
        statistics_asset(dataset),
        report_asset(dataset),
        garbage_asset(dataset, dataset.store),
        verification_asset(dataset),
        *shootout_assets(dataset.name, dataset.store, dataset.report, dataset.published, dataset.shootout),
        *(export_asset(dataset.name, dataset.store, dataset.published, export) for export in dataset.exports),
    ]
    return dg.Definitions(
        assets=dataset.owned(assets),
        asset_checks=dataset_checks(dataset),
        jobs=[
            *dataset_jobs(
                dataset, [dataset.observed, dataset.listing_key], ["manifest", "statistics", "benchmark_report"]
            ),
            migration_job(dataset),
        ],
        sensors=[arrivals_sensor(dataset), automation_sensor(dataset.name, dataset.look_every_seconds)],
        schedules=[
            refresh_schedule(dataset.name, dataset.refresh_schedule),
            *gc_schedules(dataset),
            *verification_schedules(dataset, days=1),
        ],
    )
