"""Schedules of a dataset's jobs."""

import dagster as dg
from zarr_core.platform.sensors.operating import if_red


def scheduled(job_name: str, cron_schedule: str, description: str) -> dg.ScheduleDefinition:
    """A running schedule of a job. ``description`` says what for."""
    return dg.ScheduleDefinition(
        name=f"{job_name}_schedule",
        job_name=job_name,
        cron_schedule=cron_schedule,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=description
        + if_red("where-is-the-reason", "read the error of its last tick, and start the job by hand"),
    )


def refresh_schedule(name: str, cron_schedule: str) -> dg.ScheduleDefinition:
    """The refresh schedule of the dataset ``name``.

    Declarative automation waits until the conversions come to rest. If samples arrive without a pause, that may never
    happen, and the schedule publishes the samples that are finished by then.
    """
    return scheduled(
        f"{name}_refresh",
        cron_schedule,
        f"Publishes what was converted of {name}, and refreshes what is derived, also if arrivals never pause.",
    )
