"""The code location: all declared datasets, and the resources and sensors that they share."""

from pathlib import Path

import dagster as dg

from resources.pools import ConversionPool
from resources.stores import StoreAccess
from resources.warehouses import WarehouseAccess
from sensors.automation import automation
from sensors.failures import failed_runs


@dg.definitions
def defs() -> dg.Definitions:
    """Every ``assets/datasets/<name>/defs.yaml``, with resources and sensors."""
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
        dg.Definitions(
            resources={"stores": StoreAccess(), "conversion_pool": ConversionPool(), "warehouses": WarehouseAccess()},
            sensors=[automation, failed_runs],
            # The steps of a run follow one another, and the conversion has its own process pool: a process per step
            # would only add its start time.
            executor=dg.in_process_executor,
        ),
    )
