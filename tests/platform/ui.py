"""What the UI shows: answers of Dagster's GraphQL interface, over the definitions of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.storage.dagster_run import CANCELABLE_RUN_STATUSES
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from zarr_core.platform.sensors.dagster_internals.tags import BACKFILL

_TERMINATE = """mutation ($id: String!) { terminateRun(runId: $id) { __typename } }"""
_CANCEL = """mutation ($id: String!) { cancelPartitionBackfill(backfillId: $id) { __typename } }"""
_BACKFILL = """mutation ($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) { __typename }
}"""
_RUN = """query ($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""
_CHECKS = """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  assetChecksOrError { ... on AssetChecks { checks {
    name executionForLatestMaterialization { status evaluation { description } }
  } } }
} } }"""
_PARTITIONS = """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  assetPartitionStatuses { ... on DefaultPartitionStatuses {
    materializedPartitions failedPartitions unmaterializedPartitions materializingPartitions
  } }
} } }"""


class Ui:
    """The pages and buttons of the UI, as the requests that they make."""

    def __init__(self, context: WorkspaceProcessContext) -> None:
        from dagster_graphql.schema import create_schema  # a second to import

        self._context, self._schema = context, create_schema()

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The data of an answer."""
        result = asyncio.run(
            self._schema.execute_async(
                query, context_value=self._context.create_request_context(), variable_values=variables
            )
        )
        assert not result.errors, result.errors
        return result.data

    def _ask(self, query: str, **variables: Any) -> dict[str, Any]:
        (answer,) = self.ask(query, **variables).values()
        return answer

    def terminate(self, run_id: str) -> None:
        """*Terminate* on the page of a run."""
        assert self._ask(_TERMINATE, id=run_id)["__typename"] == "TerminateRunSuccess"

    def cancel_all(self, instance: dg.DagsterInstance) -> None:
        """*Cancel* on the page of each open backfill, and *Terminate* on that of each other run.

        Some may stay open, so call it until none is: what ends by itself meanwhile is not cancelled, and the daemon may
        overwrite the cancellation of a backfill, if it comes just when the daemon records what it has launched.
        """
        for backfill in instance.get_backfills(filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED])):
            self._ask(_CANCEL, id=backfill.backfill_id)
        for run in instance.get_runs(dg.RunsFilter(statuses=CANCELABLE_RUN_STATUSES)):
            if BACKFILL not in run.tags:
                self._ask(_TERMINATE, id=run.run_id)

    def materialize(self, key: dg.AssetKey, partitions: list[str], tags: Mapping[str, str]) -> None:
        """*Materialize* some partitions, with tags."""
        params = {
            "assetSelection": [{"path": key.path}],
            "partitionNames": partitions,
            "tags": [{"key": name, "value": value} for name, value in tags.items()],
            "fromFailure": False,
        }
        assert self._ask(_BACKFILL, params=params)["__typename"] == "LaunchBackfillSuccess"

    def status(self, run_id: str) -> str:
        """Status of a run."""
        return self._ask(_RUN, id=run_id)["status"]

    def checks(self, key: dg.AssetKey) -> dict[str, tuple[str, str]]:
        """Status and description of the checks of an asset, on its latest materialization."""
        found = self._ask(_CHECKS, key={"path": key.path})["assetChecksOrError"]["checks"]
        latest = {check["name"]: check["executionForLatestMaterialization"] for check in found}
        return {
            name: (run["status"], (run["evaluation"] or {}).get("description") or "")
            for name, run in latest.items()
            if run
        }

    def partitions(self, key: dg.AssetKey) -> dict[str, list[str]]:
        """Partitions of an asset by the state that the UI shows."""
        found = self._ask(_PARTITIONS, key={"path": key.path})["assetPartitionStatuses"]
        return {state.removesuffix("Partitions"): names for state, names in found.items()}


@contextmanager
def user_interface(instance: dg.DagsterInstance) -> Iterator[Ui]:
    """The UI of an instance, for the definitions that this process loads in its environment."""
    target = LoadableTargetOrigin(module_name="definitions")
    origin = InProcessCodeLocationOrigin(target, location_name="zarr_core")
    with WorkspaceProcessContext(instance, InProcessWorkspaceLoadTarget(origin)) as context:
        yield Ui(context)
