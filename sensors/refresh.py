"""Makes what follows from arrivals afresh on a clock, whatever the arrivals did."""

from __future__ import annotations

import dagster as dg

from resources.dataset import DeclaredDataset
from resources.warehouse_matrix import DeclaredMatrix


def refresh_schedule(dataset: DeclaredDataset | DeclaredMatrix, job_name: str) -> dg.ScheduleDefinition:
    """The clock of one dataset.

    Declarative automation waits until the conversions come to rest; where samples arrive without a pause that may be
    never, and the schedule publishes what is finished by then.
    """
    return dg.ScheduleDefinition(
        name=f"{dataset.name}_refresh_schedule",
        job_name=job_name,
        cron_schedule=dataset.refresh_schedule,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Publishes what is finished of {dataset.name}, and refreshes what follows from it.",
    )
