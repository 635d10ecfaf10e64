"""Samples that were refused and would be refused again: neither their source nor the settings have changed since.

The run that refuses a sample records that in Dagster, as the data version of an observation of the converted asset. The
manifest does not suffice: a store of which every sample is refused has none, and one that identifies samples by the
content of their files would have to read them.
"""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from sensors.dagster_internals.queries import observed_versions
from sensors.dagster_internals.tags import DATA_VERSION
from sensors.migration import MigratingDataset, manifest_within_the_tick, settings_now
from zarr_core.points.settings import ConversionSettings


def refusal_tags(
    settings: ConversionSettings, observation: tuple[Mapping[str, str], int | None] | None
) -> dict[str, str]:
    """Tags of the observation that reports a refusal.

    Args:
        settings: of the conversion.
        observation: of the source, as :func:`sensors.dagster_internals.queries.latest_observations` returns it.
    """
    version = observation[0].get(DATA_VERSION) if observation else None
    return {} if version is None else {DATA_VERSION: _version(settings, version)}


def refused_samples(instance: dg.DagsterInstance, dataset: MigratingDataset) -> set[str]:
    """Samples that were refused in their latest conversion, from the present source with the present settings.

    Those that a commit has accepted since, because they fit the other samples now, are not among them.
    """
    manifest = manifest_within_the_tick(dataset)
    settings = settings_now(dataset, manifest)
    if settings is None:
        return set()
    sources = observed_versions(instance, dataset.observed)
    recorded = observed_versions(instance, dataset.converted)
    refused = {i for i, version in sources.items() if recorded.get(i) == _version(settings, version)}
    return refused - (manifest.samples.keys() - manifest.quarantine.keys()) if manifest else refused


def _version(settings: ConversionSettings, source_version: str) -> str:
    return f"refused/{settings.digest}/{source_version}"
