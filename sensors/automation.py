"""Evaluates the automation conditions of all assets, and so sets off conversion and what follows from it."""

from __future__ import annotations

import os

import dagster as dg

# Trials set a shorter pause; half a minute batches what arrives together and is no burden on the database.
EVALUATE_EVERY_SECONDS = int(os.environ.get("ZARR_CORE_EVALUATE_EVERY_SECONDS", "30"))

automation = dg.AutomationConditionSensorDefinition(
    name="automation",
    target=dg.AssetSelection.all(),
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=EVALUATE_EVERY_SECONDS,
    description="Converts samples that are new, changed or due for another try, and refreshes what follows from them.",
)
