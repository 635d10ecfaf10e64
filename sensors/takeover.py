"""Takes what a store holds into an instance of Dagster that does not know it, without a run.

The instance may have lost its database, or the command line may have converted samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import dagster as dg
from zarr_core.platform.sensors.dagster_internals.tags import DATA_VERSION, version_tags
from zarr_core.platform.sensors.migration import MigratingDataset, data_version_of, group_name
from zarr_core.platform.sensors.observations import KnownItems
from zarr_core.platform.sensors.pending import MAX_NEW, Changes

from zarr_core.points.store.manifest import StoreManifest
from zarr_core.sources import SampleTree
from zarr_core.sources.listing import Listing
from zarr_core.sources.sample import SourceSample
from zarr_core.sources.selection import with_contents

# Bytes of source files that one tick reads. Dagster ends a tick after a minute.
_MAX_READ_BYTES = 2**31


def take_over(
    dataset: MigratingDataset,
    tree: SampleTree,
    manifest: StoreManifest | None,
    listing: Listing,
    known: KnownItems,
    changes: Changes,
    *,
    in_a_tick: bool,
) -> tuple[Changes, list[dg.AssetMaterialization]]:
    """Find samples that the store holds, from the source as it is now, without Dagster's knowledge.

    Args:
        dataset: of the samples.
        tree: the source.
        manifest: of the dataset's store; None if there is no store.
        listing: of the source.
        known: what Dagster has recorded of the samples.
        changes: of the source since then.
        in_a_tick: take no more than a tick of a sensor has time for; the next tick continues.

    Returns:
        The changes, without those for which a tick has no time, and a materialization per sample to report. Report them
        before the partitions are registered: the automation then requests no run of them.
    """
    if manifest is None:
        return changes, []
    contents: dict[str, str] = {}
    if manifest.fingerprints == "content":
        changes, contents = _compare_contents(tree, manifest, listing, changes, _MAX_READ_BYTES if in_a_tick else None)
    versions = dict(known.observed)
    for sample_id in changes.new + changes.changed:
        versions[sample_id] = listing.items[sample_id].fingerprint
    held = _held_samples(dataset, manifest, known, versions, contents)
    return changes, held[:MAX_NEW] if in_a_tick else held


def _compare_contents(
    tree: SampleTree, manifest: StoreManifest, listing: Listing, changes: Changes, max_bytes: int | None
) -> tuple[Changes, dict[str, str]]:
    """Read the new samples that the store holds: it identifies samples by the content of their files.

    Samples beyond ``max_bytes`` stay pending. A sample that alone is larger is compared in a run, as is one that cannot
    be read.

    Returns:
        The changes without those that stay pending, and the fingerprint of the content of each sample that was read.
    """
    held = [listing.items[sample_id] for sample_id in changes.new if sample_id in manifest.samples]
    chosen: dict[str, SourceSample] = {}
    waiting: dict[str, str] = {}
    n_bytes = 0
    for sample in held:
        if not isinstance(sample, SourceSample) or (max_bytes is not None and sample.n_bytes > max_bytes):
            continue
        n_bytes += sample.n_bytes
        if max_bytes is None or n_bytes <= max_bytes:
            chosen[sample.sample_id] = sample
        else:
            waiting[sample.sample_id] = sample.fingerprint
    read, _ = with_contents(tree, chosen)
    return changes.with_new_pending(waiting), {i: sample.fingerprint for i, sample in read.items()}


def _held_samples(
    dataset: MigratingDataset,
    manifest: StoreManifest,
    known: KnownItems,
    versions: Mapping[str, str | None],
    contents: Mapping[str, str],
) -> list[dg.AssetMaterialization]:
    """Materializations of the samples whose group in the store is of these versions of their sources."""
    code_version_of = cache(dataset.code_version_of)
    current = manifest.conversion.current if manifest.conversion else None
    found = []
    for sample_id, version in versions.items():
        entry = manifest.samples.get(sample_id)
        if entry is None or version is None or entry.fingerprint != contents.get(sample_id, version):
            continue
        converted = known.converted.get(sample_id)
        # A sample with other settings than the store's may have been converted since, and wait for its publication.
        if converted is not None and (group_name(converted) == group_name(entry.relpath) or entry.settings != current):
            continue
        observation = {DATA_VERSION: version}, None
        tags = version_tags(code_version_of(entry.settings), data_version_of(entry), dataset.observed, observation)
        points = sum(grid.n_points for grid in entry.domains.values())
        metadata = {"status": "in the store", "group": entry.relpath, "points": points, "bytes_out": entry.bytes}
        found.append(dg.AssetMaterialization(dataset.converted, partition=sample_id, metadata=metadata, tags=tags))
    return found
