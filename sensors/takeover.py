"""Takes what a store holds into an instance of Dagster that does not know it, without a run.

The instance may have lost its database, or the command line may have converted samples.
"""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from sensors.dagster_internals import DATA_VERSION, materialized_versions, version_tags
from sensors.migration import MigratingDataset, data_version_of, group_name
from sensors.pending import MAX_CHANGES, Changes
from zarr_core.points.manifest import StoreManifest
from zarr_core.sources import SampleTree
from zarr_core.sources.listing import Listing
from zarr_core.sources.sample import SourceSample
from zarr_core.sources.selection import with_contents

# Bytes of source files that one tick reads. Dagster ends a tick after a minute.
_MAX_READ_BYTES = 2**31


def compare_contents(
    tree: SampleTree, manifest: StoreManifest | None, listing: Listing, changes: Changes
) -> tuple[Changes, dict[str, str]]:
    """Read the new samples that a store holds, if it identifies samples by the content of their files.

    Samples for which a tick has no time stay pending. A sample larger than what a tick reads is compared in a run, as
    is one that cannot be read.

    Returns:
        The changes without those that stay pending, and the fingerprint of the content of each sample that was read.
    """
    if manifest is None or manifest.fingerprints != "content":
        return changes, {}
    held = [listing.items[sample_id] for sample_id in changes.new if sample_id in manifest.samples]
    chosen, waiting, n_bytes = {}, {}, 0
    for sample in held:
        if not isinstance(sample, SourceSample) or sample.n_bytes > _MAX_READ_BYTES:
            continue
        n_bytes += sample.n_bytes
        if n_bytes <= _MAX_READ_BYTES:
            chosen[sample.sample_id] = sample
        else:
            waiting[sample.sample_id] = sample.fingerprint
    read, _ = with_contents(tree, chosen)
    return changes.with_new_pending(waiting), {i: sample.fingerprint for i, sample in read.items()}


def held_samples(
    instance: dg.DagsterInstance,
    dataset: MigratingDataset,
    manifest: StoreManifest | None,
    versions: Mapping[str, str | None],
    contents: Mapping[str, str],
) -> list[dg.AssetMaterialization]:
    """Materializations of samples that the store holds, from the source as it is now, without Dagster's knowledge.

    Args:
        instance: where.
        dataset: of the samples.
        manifest: of its store.
        versions: fingerprints of the samples' sources by id, as Dagster will know them after this tick.
        contents: fingerprints of content by id, as :func:`compare_contents` returns them.
    """
    if manifest is None:
        return []
    current = manifest.conversion.current if manifest.conversion else None
    known = materialized_versions(instance, dataset.converted)
    found = []
    for sample_id, version in versions.items():
        entry = manifest.samples.get(sample_id)
        if entry is None or version is None or entry.fingerprint != contents.get(sample_id, version):
            continue
        # A sample with other settings than the store's may have been converted since, and wait for its publication.
        if sample_id in known and (
            group_name(known[sample_id]) == group_name(entry.relpath) or entry.settings != current
        ):
            continue
        observation = {DATA_VERSION: version}, None
        tags = version_tags(
            dataset.code_version_of(entry.settings), data_version_of(entry), dataset.observed, observation
        )
        points = sum(grid.n_points for grid in entry.domains.values())
        metadata = {"status": "in the store", "group": entry.relpath, "points": points, "bytes_out": entry.bytes}
        found.append(dg.AssetMaterialization(dataset.converted, partition=sample_id, metadata=metadata, tags=tags))
    return found[:MAX_CHANGES]
