"""The definitions of a project: all declared datasets, and the resources and sensors that they share."""

import warnings
from pathlib import Path
from typing import Any

import dagster as dg
from zarr_core.platform.assets.isolation import load_datasets
from zarr_core.platform.resources.alerts import Alerts
from zarr_core.platform.resources.pools import ConversionPool
from zarr_core.platform.resources.secrets import secret_to_environment
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.resources.warehouses import WarehouseAccess
from zarr_core.platform.sensors.failures import failed_checks, failed_runs, failing_sensors, stale_datasets
from zarr_core.platform.sensors.lost_runs import lost_runs
from zarr_core.platform.sensors.old_runs import old_runs_schedule


def project_definitions(project: Path, declarations: str, **resources: Any) -> dg.Definitions:
    """The definitions of every ``defs.yaml`` below a folder, with resources and sensors.

    Args:
        project: absolute path of the project, which relative paths in declarations are relative to.
        declarations: the folder, absolute or relative to the project.
        **resources: resources to use instead of the platform's ``stores``, ``conversion_pool``, ``warehouses`` and
            ``alerts``.
    """
    # The extra ``platform`` pins the version of Dagster, and with it the parts in beta that are used here. Each tick
    # repeated these warnings: nine of ten lines in the log of the code server.
    for category in (dg.BetaWarning, dg.PreviewWarning):
        warnings.filterwarnings("ignore", category=category)
    secret_to_environment()
    shared = dg.Definitions(
        resources={
            "stores": StoreAccess(),
            "conversion_pool": ConversionPool(),
            "warehouses": WarehouseAccess(),
            "alerts": Alerts(),
            **resources,
        },
        sensors=[failed_runs, failed_checks, failing_sensors, stale_datasets, lost_runs],
        schedules=[old_runs_schedule()],
        # The steps of a run follow one another, and the conversion has its own process pool: a process per step would
        # only add its start time.
        executor=dg.in_process_executor,
    )
    return load_datasets(project, project / declarations, shared)
