"""Evaluates the automation conditions of all assets: starts conversions and the refreshes that follow them."""

from __future__ import annotations

import os

import dagster as dg

# Half a minute batches samples that arrive together and is no burden on the database. Tests set a shorter interval.
EVALUATE_EVERY_SECONDS = int(os.environ.get("ZARR_CORE_EVALUATE_EVERY_SECONDS", "30"))

automation = dg.AutomationConditionSensorDefinition(
    name="automation",
    target=dg.AssetSelection.all(),
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=EVALUATE_EVERY_SECONDS,
    description="Converts samples that are new, changed or due for another try, and refreshes what is derived.",
)
