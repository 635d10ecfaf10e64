"""Requests of the automation, evaluated without a daemon."""

from __future__ import annotations

import datetime as dt
from functools import cache
from unittest.mock import patch

import dagster as dg

from tests.platform.matrix_trial import MatrixTrial
from tests.platform.trial import Trial


class Automation:
    """Evaluations one after another, as the daemon makes them."""

    def __init__(self, trial: Trial | MatrixTrial) -> None:
        self.trial, self.cursor = trial, None
        # Not a full hour, when failed samples are retried.
        self.now = dt.datetime.now(dt.UTC).replace(minute=10)

    def evaluate(self, after: dt.timedelta = dt.timedelta(seconds=30)) -> dict[str, set[str | None]]:
        """Requested partitions, by asset."""
        self.now += after
        definitions, instance = self.trial.definitions, self.trial.instance
        # Dagster lists the partitions about a hundred times per evaluation.
        with patch.object(instance, "get_dynamic_partitions", cache(instance.get_dynamic_partitions)):
            result = dg.evaluate_automation_conditions(
                definitions, instance, evaluation_time=self.now, cursor=self.cursor
            )
        self.cursor = result.cursor
        keys = definitions.resolve_asset_graph().materializable_asset_keys
        requested = {key.path[-1]: result.get_requested_partitions(key) for key in keys}
        return {name: set(partitions) for name, partitions in requested.items() if partitions}
