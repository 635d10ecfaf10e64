"""Looks at a warehouse now and then and tells Dagster which batches are new, changed or gone."""

import dagster as dg

from resources.source_watch import Unsettled, compare, known_samples
from resources.warehouse_matrix import DeclaredMatrix
from resources.warehouses import WarehouseAccess
from sensors.arrivals import tell


def warehouse_batches_sensor(declared: DeclaredMatrix) -> dg.SensorDefinition:
    """The sensor that watches one warehouse; like that of a point store it starts no run."""

    @dg.sensor(
        name=f"{declared.name}_batches",
        minimum_interval_seconds=declared.look_every_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Registers batches that arrive, change or vanish in the warehouse of {declared.name}.",
    )
    def warehouse_batches(context: dg.SensorEvaluationContext, warehouses: WarehouseAccess) -> dg.SensorResult:
        look = warehouses.look(declared)
        news = compare(look, known_samples(context.instance, declared), Unsettled.from_cursor(context.cursor))
        return tell(context, declared, look, news, what="batches")

    return warehouse_batches
