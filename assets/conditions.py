"""Automation conditions of the assets: hundreds of arrivals become a few runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import dagster as dg
from zarr_core.platform.sensors.dagster_internals.conditions import (
    Cancelled,
    MadeInOpenRun,
    NextBatch,
    Overtaken,
    Refused,
)

_C = dg.AutomationCondition


def migrate_in_batches(
    batch_size: int, to_migrate: Callable[[dg.DagsterInstance], Sequence[str]]
) -> dg.AutomationCondition:
    """The next batch of the samples that a migration has still to convert, when the one before has ended.

    New samples wait for one batch at most.

    Args:
        batch_size: maximum number of samples in a batch.
        to_migrate: returns the samples that a migration has still to convert.
    """
    return NextBatch("to_migrate", batch_size, to_migrate)


def convert_when_needed(
    retry_schedule: str,
    migration: dg.AutomationCondition | None = None,
    refused: Callable[[dg.DagsterInstance], Collection[str]] | None = None,
) -> dg.AutomationCondition:
    """Samples that are new, whose source changed, or whose last conversion failed and is due for a retry.

    A failed sample is missing as well: without ``execution_failed`` it would be requested at every evaluation. A sample
    whose conversion was cancelled waits until its source changes or a person requests it.
    ``newly_missing`` instead of ``missing`` would ignore all samples registered before the first evaluation.

    Args:
        retry_schedule: cron schedule on which failed samples are retried.
        migration: a further reason, see :func:`migrate_in_batches`.
        refused: returns samples whose conversion would be refused again; they are not retried.
    """
    source_changed = _since_handled(_C.any_deps_updated())
    # A sample counts as failed while it is tried again. A retry that is due then would be made when that attempt fails.
    retry = _C.execution_failed() & ~_C.in_progress() & _C.cron_tick_passed(retry_schedule)
    # Last, so that it is evaluated only when failed samples are due.
    retry = (retry if refused is None else retry & ~Refused(refused)).since_last_handled()
    needed = _missing() | source_changed | retry
    needed = needed if migration is None else needed | migration
    due = needed & ~_C.in_progress() & ~Cancelled()
    return due.with_label("new, changed, or due for a retry" + (" or for a migration" if migration else ""))


def publish_after_a_batch(listing: dg.AssetKey | None = None) -> dg.AutomationCondition:
    """Once after all conversions have ended, whether or not all of them succeeded.

    ``any_deps_missing`` is not used: one refused sample would block all the others. Instead at least one sample must
    have been converted, so that nothing is published of an empty source.

    Args:
        listing: a dependency whose changes lead to a publication, but which is not converted itself.
    """
    some_sample = _C.any_deps_match(~_C.missing())
    # Requested in this evaluation or before, but not yet in progress; will_be_requested() ignores other partitions.
    due = _C.any_deps_match(_new())
    if listing is not None:
        some_sample, due = (condition.ignore(dg.AssetSelection.assets(listing)) for condition in (some_sample, due))
    return (_news() & _at_rest() & some_sample & ~due).with_label("once after each batch")


def follow_what_was_published() -> dg.AutomationCondition:
    """Once after each update of the upstream asset, in the same run, if the blocking checks of the upstream passed.

    The checks count whoever ran them. If they failed, the asset is requested when they pass, even if it was requested
    before in the run in which they failed.
    """
    there = _C.any_deps_match(~_C.missing() | _C.will_be_requested())
    passed = _C.all_checks_match(_C.check_passed(), blocking_only=True)
    news = _since_handled(_C.newly_missing() | _C.any_deps_updated() | _C.all_deps_match(passed).newly_true())
    # Not all_deps_blocking_checks_passed(): it does not see checks that run with a requested asset. If one of those
    # fails, the run itself stops before this asset.
    checked = _C.all_deps_match(passed | _C.will_be_requested())
    return (news & _at_rest() & there & checked).with_label("with each new generation")


def _missing() -> dg.AutomationCondition:
    return _C.missing() & ~_C.execution_failed()


def _new() -> dg.AutomationCondition:
    return _missing() & ~Cancelled()


def _news() -> dg.AutomationCondition:
    return _since_handled(_C.newly_missing() | _C.any_deps_updated())


def _since_handled(news: dg.AutomationCondition) -> dg.AutomationCondition:
    """Whether there was news since the last request or update, or an update came too late for the last run.

    ``since_last_handled()`` alone forgets an update of a dependency that comes after the run of this asset began and
    before the evaluation that sees the end of the run, and all that it waited for when the conditions change: Dagster
    then begins anew, as after an upgrade of this package.
    """
    overtaken = (_C.newly_updated() | _C.initial_evaluation()) & Overtaken()
    handled = (_C.newly_requested() | _C.newly_updated() | _C.initial_evaluation()) & ~overtaken
    return (news | overtaken).since(handled.with_label("handled"))


def _at_rest() -> dg.AutomationCondition:
    """Since the evaluation before: one that a run ends in may know that, but not yet what the run materialized.

    A run that has made this asset may still make those that follow. They could not be requested together with it.
    """
    at_rest = ~_C.any_deps_in_progress() & ~_C.in_progress() & ~MadeInOpenRun()
    return at_rest & ~at_rest.newly_true()
