"""Samples and batches that were refused and would be again: nothing that decides has changed since.

The run that refuses a sample records that in Dagster, as the data version of an observation of the converted asset. The
manifest does not suffice: a store of which every sample is refused has none, and one that identifies samples by the
content of their files would have to read them.
"""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg
from zarr_core.platform.sensors.dagster_internals.queries import observed_versions
from zarr_core.platform.sensors.dagster_internals.tags import DATA_VERSION
from zarr_core.platform.sensors.migration import MigratingDataset, manifest_within_the_tick, settings_now
from zarr_core.platform.sensors.warehouse_batches import WatchedWarehouse, matrix_within_the_tick

from zarr_core._util.digests import short_digest
from zarr_core.matrix import WideMatrix


def refusal_tags(
    state: str, observation: tuple[Mapping[str, str], int | None] | None, seen: str | None = None
) -> dict[str, str]:
    """Tags of the observation that reports a refusal; none if what was refused is not what was observed.

    A sample that lacked a file when it was read may have all of them again, with the version that was observed before.

    Args:
        state: what decides besides the source: digest of the settings, or :func:`state_of` a matrix.
        observation: of the source, as :func:`sensors.dagster_internals.queries.latest_observations` returns it.
        seen: version of the source that was refused, if it is known.
    """
    version = observation[0].get(DATA_VERSION) if observation else None
    return {} if version is None or seen not in (None, version) else {DATA_VERSION: _version(state, version)}


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
    refused = {i for i, version in sources.items() if recorded.get(i) == _version(settings.digest, version)}
    return refused - (manifest.samples.keys() - manifest.quarantine.keys()) if manifest else refused


def refused_batches(instance: dg.DagsterInstance, declared: WatchedWarehouse) -> set[str]:
    """Batches that were refused when they were loaded last, into the matrix as it is now."""
    matrix = matrix_within_the_tick(declared)
    if matrix is None:
        return set()
    sources = observed_versions(instance, declared.observed)
    recorded = observed_versions(instance, declared.converted)
    return {i for i, version in sources.items() if recorded.get(i) == _version(state_of(matrix), version)}


def state_of(matrix: WideMatrix) -> str:
    """Digest of the samples that a matrix holds and of those that it retired: a batch may contradict them."""
    retired = matrix.retired
    # The empty texts separate the lists: a sample that is retired leaves the one and enters the other.
    parts = [matrix.matrix_id, *matrix.sample_ids, "", *sorted(retired.sample_ids), "", *sorted(retired.batches)]
    return short_digest(parts)


def _version(state: str, source_version: str) -> str:
    return f"refused/{state}/{source_version}"
