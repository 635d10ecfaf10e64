"""When what is made: declarative automation that turns hundreds of arrivals into a handful of runs."""

from __future__ import annotations

import dagster as dg

_C = dg.AutomationCondition


def convert_when_needed(retry_schedule: str) -> dg.AutomationCondition:
    """Samples that are new, whose source changed, or whose last conversion failed and are due for another try.

    A sample that failed is not simply missing: without the ``execution_failed`` clause it would be tried again at every
    evaluation, for ever. ``newly_missing`` instead of ``missing`` would overlook all samples that were registered
    before the first evaluation.
    """
    source_changed = _C.any_deps_updated().since_last_handled()
    try_again = (_C.execution_failed() & _C.cron_tick_passed(retry_schedule)).since_last_handled()
    return ((_new() | source_changed | try_again) & ~_C.in_progress()).with_label("new, changed or due for another try")


def publish_after_a_batch(listing: dg.AssetKey | None = None) -> dg.AutomationCondition:
    """Once after all conversions have come to rest, whether or not all of them succeeded.

    ``any_deps_missing`` is left out on purpose: one refused sample would hold back all the others. Instead some sample
    has to be there, so that nothing is made of a source that is still empty.

    Args:
        listing: the dependency whose changes count, but which is nothing to publish, where there is one.
    """
    some_sample = _C.any_deps_match(~_C.missing())
    # Asked for in this evaluation at the latest; not yet "in progress", and will_be_requested() does not look across
    # partitions.
    due = _C.any_deps_match(_new())
    if listing is not None:
        some_sample, due = (condition.ignore(dg.AssetSelection.assets(listing)) for condition in (some_sample, due))
    return (_news() & _at_rest() & some_sample & ~due).with_label("once after each batch")


def follow_what_was_published() -> dg.AutomationCondition:
    """Once after, and in one run with, what is upstream."""
    there = _C.any_deps_match(~_C.missing() | _C.will_be_requested())
    return (_news() & _at_rest() & there).with_label("with each new generation")


def _new() -> dg.AutomationCondition:
    return _C.missing() & ~_C.execution_failed()


def _news() -> dg.AutomationCondition:
    return (_C.newly_missing() | _C.any_deps_updated()).since_last_handled()


def _at_rest() -> dg.AutomationCondition:
    return ~_C.any_deps_in_progress() & ~_C.in_progress()
