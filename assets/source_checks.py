"""Checks of what is published that every kind of dataset has."""

from collections.abc import Callable, Collection
from typing import Any

import dagster as dg
from zarr_core.platform.sensors.behind import CONVERTED_CHECK, check_converted, conversions
from zarr_core.platform.sensors.observations import KnownItems, WatchedSource
from zarr_core.platform.sensors.operating import if_red


def source_converted_check(
    source: WatchedSource, sensor: str, resource: str, held: Callable[[Any, KnownItems], Collection[str] | None]
) -> dg.AssetChecksDefinition:
    """The check that nothing is older in the store than at its source, or missing there, and stays so.

    Args:
        source: the dataset.
        sensor: name of the sensor that watches it.
        resource: name of the resource that opens the store.
        held: returns what the store holds, or need not hold, given the resource; None if that is not known.
    """

    @dg.asset_check(
        asset=source.published,
        name=CONVERTED_CHECK,
        required_resource_keys={resource},
        description="Nothing in the store is older than its source because its conversion was cancelled or failed, and "
        "the store holds everything that was converted. "
        f"The sensor `{sensor}` reports this, too, when it changes."
        + if_red("a-cancelled-run", f"materialize the named partitions of {source.converted.to_user_string()}"),
    )
    def source_converted(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        known = KnownItems(context.instance, source)
        found = conversions(known, held(getattr(context.resources, resource), known))
        return check_result(check_converted(source, found))

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
