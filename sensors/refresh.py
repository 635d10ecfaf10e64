"""Refreshes what follows from arrivals on a schedule, whether or not samples arrived."""

import dagster as dg


def refresh_schedule(name: str, cron_schedule: str, job_name: str) -> dg.ScheduleDefinition:
    """The refresh schedule of the dataset ``name``.

    Declarative automation waits until the conversions come to rest. If samples arrive without a pause, that may never
    happen, and the schedule publishes the samples that are finished by then.
    """
    return dg.ScheduleDefinition(
        name=f"{name}_refresh_schedule",
        job_name=job_name,
        cron_schedule=cron_schedule,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Publishes the finished samples of {name} and refreshes statistics and report.",
    )
