"""The jobs of a dataset: by hand what the automation does, and what no automation does."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import dagster as dg
from zarr_core.platform.sensors.observations import WatchedSource
from zarr_core.platform.sensors.operating import if_red

# What define_asset_job() returns; its class is not public.
Job: TypeAlias = Any

_READ = "read the last event of the failed run"


class DeclaredSource(WatchedSource, Protocol):
    """What the jobs need to know of a declared dataset."""

    owners: list[str]

    def key(self, asset: str) -> dg.AssetKey:
        """Key of one of the dataset's assets."""


def dataset_jobs(declared: DeclaredSource, looked_at: Sequence[dg.AssetKey], derived: Sequence[str]) -> list[Job]:
    """List the source, convert, and publish and describe the result; collect garbage, and verify all chunks.

    Args:
        declared: the dataset.
        looked_at: assets that are observed.
        derived: assets that follow the conversions.
    """
    name, noun = declared.name, declared.partitions_name.rpartition("__")[2]
    retried = f"{_READ}; it names the {noun} and the reasons"

    def job(job_name: str, keys: Sequence[dg.AssetKey], description: str) -> Job:
        selection = dg.AssetSelection.assets(*keys)
        return dg.define_asset_job(job_name, selection, description=description, owners=declared.owners or None)

    return [
        job(
            f"{name}_look",
            looked_at,
            f"Lists the source of {name} now, without waiting for the sensor."
            + if_red("a-source-that-does-not-answer", "look whether the source is there"),
        ),
        job(
            declared.conversion_job,
            [declared.converted],
            f"Converts the chosen {noun} of {name}." + if_red("a-sample-that-cannot-be-converted", retried),
        ),
        job(
            f"{name}_refresh",
            [declared.key(asset) for asset in derived],
            f"Publishes the finished {noun} of {name}, and makes what is derived from them."
            + if_red("a-failed-check", _READ),
        ),
        job(
            f"{name}_gc",
            [declared.key("garbage")],
            f"Deletes what no kept generation of {name} names." + if_red("where-is-the-reason", _READ),
        ),
        job(
            f"{name}_verify",
            [declared.key("deep_verification")],
            f"Reads every chunk of the {noun} of {name} that are due." + if_red("a-damaged-chunk", _READ),
        ),
    ]
