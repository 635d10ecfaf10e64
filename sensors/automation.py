"""Evaluates the automation conditions of one dataset: starts conversions and the refreshes that follow them."""

import dagster as dg
from zarr_core.platform.sensors.operating import if_red

# Half a minute batches samples that arrive together, and does not burden the database.
_EVALUATE_EVERY_SECONDS = 30


def automation_sensor(name: str, look_every_seconds: int) -> dg.AutomationConditionSensorDefinition:
    """The automation of the dataset ``name``, evaluated twice a minute, or as often as its source is listed.

    Each dataset has its own, so that no run or backfill holds assets of two datasets, and the automation of one can be
    stopped in the UI.
    """
    return dg.AutomationConditionSensorDefinition(
        name=f"{name}_automation",
        target=dg.AssetSelection.groups(name),
        default_status=dg.DefaultSensorStatus.RUNNING,
        use_user_code_server=True,  # for the condition Cancelled
        minimum_interval_seconds=min(_EVALUATE_EVERY_SECONDS, look_every_seconds),
        description=f"Converts what is new, changed or due for a retry in {name}, and refreshes what is derived."
        + if_red("where-is-the-reason", "read its error; while it is stopped, nothing is converted by itself"),
    )
