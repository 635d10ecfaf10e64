"""Checks of what is published that every kind of dataset has."""

import dagster as dg
from zarr_core.platform.sensors.behind import CONVERTED_CHECK, check_converted, conversions
from zarr_core.platform.sensors.observations import KnownItems, WatchedSource
from zarr_core.platform.sensors.operating import if_red


def source_converted_check(source: WatchedSource, sensor: str) -> dg.AssetChecksDefinition:
    """The check that nothing is older in the store than at its source and stays so.

    Args:
        source: the dataset.
        sensor: name of the sensor that watches it.
    """

    @dg.asset_check(
        asset=source.published,
        name=CONVERTED_CHECK,
        description="Nothing in the store is older than its source because its conversion was cancelled or failed. "
        f"The sensor `{sensor}` reports this, too, when it changes."
        + if_red("a-cancelled-run", f"materialize the named partitions of {source.converted.to_user_string()}"),
    )
    def source_converted(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        return check_result(check_converted(source, conversions(KnownItems(context.instance, source))))

    return source_converted


def check_result(found: dg.AssetCheckEvaluation) -> dg.AssetCheckResult:
    """An evaluation that a sensor can report, as the result of a check."""
    return dg.AssetCheckResult(
        passed=found.passed,
        asset_key=found.asset_key,
        check_name=found.check_name,
        severity=found.severity,
        description=found.description,
        metadata=found.metadata,
    )
