"""Conditions of the automation that Dagster does not have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence

import dagster as dg
from dagster._core.asset_graph_view.asset_graph_view import AssetGraphView
from dagster._core.storage.dagster_run import RunRecord
from dagster._core.storage.event_log import AssetRecord
from dagster._utils.schedules import cron_string_iterator, is_valid_cron_schedule
from zarr_core.platform.sensors.dagster_internals.partitions import cancelled_partitions
from zarr_core.platform.sensors.dagster_internals.queries import latest_materializations, latest_observations
from zarr_core.platform.sensors.dagster_internals.tags import (
    DATA_VERSION,
    INPUT_DATA_VERSION,
    INPUT_EVENT_POINTER,
    NO_EVENT,
)

__all__ = ["Cancelled", "MadeInOpenRun", "NextBatch", "Overtaken", "Refused", "is_cron"]


def is_cron(text: str) -> bool:
    """Whether a text is a cron schedule that is ever due. At one of the 31st of April, every tick would fail."""
    try:
        return is_valid_cron_schedule(text) and next(cron_string_iterator(0.0, text, "UTC")) is not None
    except ValueError:  # there is no such date
        return False


class _Condition(dg.AutomationCondition[dg.AssetKey]):
    """A condition with a name for the evaluations that the UI shows."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """Name in the evaluations that the UI shows."""
        return self._name

    @property
    def requires_cursor(self) -> bool:
        """Whether an evaluation depends on those before."""
        return False


class _Among(_Condition):
    """True for the candidates that are among some partitions."""

    @abstractmethod
    def _find(self, view: AssetGraphView, key: dg.AssetKey) -> Collection[str]:
        """The partitions."""

    def evaluate(self, context: dg.AutomationContext) -> dg.AutomationResult:
        """Intersect the candidates with the partitions."""
        view, subset = context.asset_graph_view, context.get_empty_subset()
        if context.partitions_def is not None and not context.candidate_subset.is_empty:
            candidates = context.candidate_subset.expensively_compute_partition_keys()
            found = candidates.intersection(self._find(view, context.key))
            subset = view.get_subset_from_partition_keys(context.key, context.partitions_def, found)
        return dg.AutomationResult(context, subset)


class Cancelled(_Among):
    """True for partitions whose last run or backfill was cancelled and whose source did not change since.

    Dagster itself has no such condition: a partition that was cancelled is missing and not ``execution_failed()``. As a
    condition of this project, it is evaluated in the code server (``use_user_code_server``).
    """

    def __init__(self) -> None:
        super().__init__("cancelled")

    def _find(self, view: AssetGraphView, key: dg.AssetKey) -> Collection[str]:
        return cancelled_partitions(view.instance, key, view.asset_graph.get(key).parent_keys)


class Overtaken(_Condition):
    """True for partitions of which a dependency changed after their latest materialization had read it.

    A partition that is no longer in the newest state of its dependencies is stale in the UI, but Dagster's conditions
    do not see that: they only compare times of updates.
    """

    def __init__(self) -> None:
        super().__init__("overtaken")

    def evaluate(self, context: dg.AutomationContext) -> dg.AutomationResult:
        """Compare what the candidates have read with what there is now."""
        view, key, subset = context.asset_graph_view, context.key, context.get_empty_subset()
        sources = view.asset_graph.get(key).parent_keys
        if not context.candidate_subset.is_empty:
            if context.partitions_def is None:
                subset = context.candidate_subset if _is_overtaken(view.instance, key, sources) else subset
            else:
                candidates = context.candidate_subset.expensively_compute_partition_keys()
                found = _overtaken_partitions(view.instance, key, sources, candidates)
                subset = view.get_subset_from_partition_keys(key, context.partitions_def, found)
        return dg.AutomationResult(context, subset)


def _is_overtaken(instance: dg.DagsterInstance, key: dg.AssetKey, sources: Collection[dg.AssetKey]) -> bool:
    """Whether an asset without partitions read older events of its sources than there are now."""
    latest = instance.get_latest_materialization_event(key)
    tags = (latest.asset_materialization.tags if latest and latest.asset_materialization else None) or {}
    for record in instance.get_asset_records(list(sources)):
        entry = record.asset_entry
        # As Dagster chooses the event whose id a step records when it begins.
        event = entry.last_materialization_record or entry.last_observation_record
        name = entry.asset_key.to_user_string()
        pointer = tags.get(f"{INPUT_EVENT_POINTER}/{name}", NO_EVENT)
        if event is None or pointer == NO_EVENT or int(pointer) >= event.storage_id:
            continue
        # A listing is observed with the same version when only its counts have changed.
        observed = event.asset_observation.tags if event.asset_observation else {}
        if DATA_VERSION not in observed or observed[DATA_VERSION] != tags.get(f"{INPUT_DATA_VERSION}/{name}"):
            return True
    return False


def _overtaken_partitions(
    instance: dg.DagsterInstance, key: dg.AssetKey, sources: Iterable[dg.AssetKey], partitions: Collection[str]
) -> set[str]:
    """Partitions that were made from other versions of their sources' partitions than are observed now."""
    made = list(latest_materializations(instance, key, partitions))
    found = set()
    for source in sources:
        observed = latest_observations(instance, source, partitions)
        for materialization in made:
            now, _ = observed.get(materialization.partition or "", ({}, 0))
            read = (materialization.tags or {}).get(f"{INPUT_DATA_VERSION}/{source.to_user_string()}")
            if read is not None and DATA_VERSION in now and now[DATA_VERSION] != read:
                found.add(materialization.partition)
    return {partition for partition in found if partition}


class MadeInOpenRun(_Condition):
    """True as long as the run that materialized an asset last has not ended: it may still make what follows.

    For assets without partitions. Dagster's ``in_progress()`` is about the asset alone.
    """

    def __init__(self) -> None:
        super().__init__("made_in_open_run")

    def evaluate(self, context: dg.AutomationContext) -> dg.AutomationResult:
        """Look up the run of the latest materialization; what a sensor reported has none."""
        view = context.asset_graph_view
        # Dagster fetches the records of all assets at once, and keeps them and the runs for the whole evaluation.
        record = AssetRecord.blocking_get(view, context.key)
        latest = record.asset_entry.last_materialization if record else None
        run = RunRecord.blocking_get(view, latest.run_id) if latest and latest.run_id else None
        is_open = run is not None and not run.dagster_run.is_finished
        return dg.AutomationResult(context, context.candidate_subset if is_open else context.get_empty_subset())


class Refused(_Among):
    """True for the partitions that a function finds.

    Args:
        find: returns partitions whose conversion would be refused again.
    """

    def __init__(self, find: Callable[[dg.DagsterInstance], Collection[str]]) -> None:
        super().__init__("refused")
        self._refused = find

    def _find(self, view: AssetGraphView, key: dg.AssetKey) -> Collection[str]:
        return self._refused(view.instance)


class NextBatch(_Condition):
    """True for the next few of the partitions that a function finds, as long as none of these is in progress.

    So other partitions wait for one batch at most. Partitions that failed are passed over. As long as one of those
    found is cancelled (see :class:`Cancelled`), the condition is false.

    Args:
        name: of the condition, in the evaluations that the UI shows.
        size: maximum number of partitions.
        find: returns partitions in their order.
    """

    def __init__(self, name: str, size: int, find: Callable[[dg.DagsterInstance], Sequence[str]]) -> None:
        super().__init__(name)
        self._size, self._find = size, find

    async def evaluate(self, context: dg.AutomationContext) -> dg.AutomationResult:  # type: ignore[override]
        """Intersect the candidates with the next batch."""
        view, key, subset = context.asset_graph_view, context.key, context.get_empty_subset()
        found = self._find(view.instance)
        if found and context.partitions_def is not None:
            everything = view.get_full_subset(key=key)
            runs = await view.compute_run_in_progress_subset(key=key, from_subset=everything)
            backfills = await view.compute_backfill_in_progress_subset(key=key, from_subset=everything)
            failed = await view.compute_execution_failed_subset(key=key, from_subset=everything)
            held_back = runs.compute_union(backfills).expensively_compute_partition_keys()
            held_back |= cancelled_partitions(view.instance, key, view.asset_graph.get(key).parent_keys)
            if held_back.isdisjoint(found):
                passed_over = failed.expensively_compute_partition_keys()
                batch = [partition for partition in found if partition not in passed_over][: self._size]
                candidates = context.candidate_subset.expensively_compute_partition_keys()
                subset = view.get_subset_from_partition_keys(key, context.partitions_def, candidates & set(batch))
        return dg.AutomationResult(context, subset)
