"""The code location: all declared datasets, and the resources and sensors that they share."""

import warnings
from pathlib import Path

import dagster as dg

from assets.isolation import load_datasets
from resources.alerts import Alerts
from resources.pools import ConversionPool
from resources.secrets import secret_to_environment
from resources.stores import StoreAccess
from resources.warehouses import WarehouseAccess
from sensors.failures import failed_checks, failed_runs, failing_sensors, stale_datasets
from sensors.lost_runs import lost_runs
from sensors.old_runs import old_runs_schedule


@dg.definitions
def defs() -> dg.Definitions:
    """Every ``assets/datasets/<name>/defs.yaml``, with resources and sensors."""
    # pyproject.toml pins the version of Dagster, and with it the parts in beta that are used here. Each tick repeated
    # these warnings: nine of ten lines in the log of the code server.
    for category in (dg.BetaWarning, dg.PreviewWarning):
        warnings.filterwarnings("ignore", category=category)
    secret_to_environment()
    shared = dg.Definitions(
        resources={
            "stores": StoreAccess(),
            "conversion_pool": ConversionPool(),
            "warehouses": WarehouseAccess(),
            "alerts": Alerts(),
        },
        sensors=[failed_runs, failed_checks, failing_sensors, stale_datasets, lost_runs],
        schedules=[old_runs_schedule()],
        # The steps of a run follow one another, and the conversion has its own process pool: a process per step would
        # only add its start time.
        executor=dg.in_process_executor,
    )
    return load_datasets(Path(__file__).parent, shared)
