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
    new = _C.missing() & ~_C.execution_failed()
    source_changed = _C.any_deps_updated().since_last_handled()
    try_again = (_C.execution_failed() & _C.cron_tick_passed(retry_schedule)).since_last_handled()
    return ((new | source_changed | try_again) & ~_C.in_progress()).with_label("new, changed or due for another try")


def follow_a_batch(listing: dg.AssetKey | None = None) -> dg.AutomationCondition:
    """Once after everything upstream has come to rest, whether or not all of it succeeded.

    ``any_deps_missing`` is left out on purpose: one refused sample would hold back all the others. Instead something
    upstream has to be there, so that nothing is made of a source that is still empty.

    Args:
        listing: a dependency whose changes count, but which is nothing to make something of.
    """
    news = (_C.newly_missing() | _C.any_deps_updated()).since_last_handled()
    at_rest = ~_C.any_deps_in_progress() & ~_C.in_progress()
    there = _C.any_deps_match(~_C.missing() | _C.will_be_requested())
    if listing is not None:
        there = there.ignore(dg.AssetSelection.assets(listing))
    return (news & at_rest & there).with_label("once after each batch")
