"""What the store lacks of its source and nothing will convert by itself, and what never becomes complete there.

Both are checks of the manifest. The sensor of the source reports them, too, when they change: a person who cancels all
conversions leaves no run that would evaluate them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg
from zarr_core.platform.sensors.dagster_internals.partitions import (
    cancelled_partitions,
    partitions_seen_by,
    unconverted_partitions,
)
from zarr_core.platform.sensors.migration import group_name
from zarr_core.platform.sensors.observations import KnownItems, WatchedSource
from zarr_core.platform.sensors.pending import natural_order

from zarr_core._util.units import format_count
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.store.batch_names import home_of
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.sources.left_out import some
from zarr_core.sources.listing import Listing

CONVERTED_CHECK, COMPLETE_CHECK = "source_converted", "samples_complete"


@dataclass(frozen=True)
class Conversions:
    """What became of the samples or batches that are at the source.

    Attributes:
        total: how many there are.
        waiting: changed or arrived, and are about to be converted.
        cancelled: changed or arrived, and their conversion was cancelled.
        stale: changed, and the conversion of their new version failed. The store keeps the version before.
        refused: arrived, and their conversion failed.
        failed_at: storage ids of the failed attempts of the stale and the refused ones.
        lost: converted, but the store does not hold them as converted, although it was published since.
    """

    total: int
    waiting: frozenset[str]
    cancelled: frozenset[str]
    stale: frozenset[str]
    refused: frozenset[str]
    failed_at: Mapping[str, int]
    lost: frozenset[str]

    @property
    def converted(self) -> int:
        """How many are in the store as they are at the source."""
        return self.total - sum(map(len, (self.waiting, self.cancelled, self.stale, self.refused, self.lost)))


def conversions(known: KnownItems, held: Collection[str] | None) -> Conversions:
    """What became of the samples or batches of a source, from what Dagster has recorded.

    Args:
        known: what Dagster has recorded of them.
        held: those that the store holds, or need not hold; None if that is not known.
    """
    instance, source = known.instance, known.source
    pending = unconverted_partitions(instance, source.observed, source.converted, known.registered)
    cancelled = cancelled_partitions(instance, source.converted, [source.observed]) & pending.keys()
    failed_at = {}
    stale = set()
    refused = set()
    for name in pending.keys() - cancelled:
        each = pending[name]
        if each.failed_at is None:
            continue
        failed_at[name] = each.failed_at
        if each.is_refused:
            refused.add(name)
        else:
            stale.add(name)
    waiting = pending.keys() - cancelled - stale - refused
    lacking: set[str] = set()
    if held is not None:
        lacking = known.converted.keys() & set(known.registered).difference(held, pending)
    lost = partitions_seen_by(instance, source.published, source.converted, lacking)
    return Conversions(
        total=len(known.registered),
        waiting=frozenset(waiting),
        cancelled=frozenset(cancelled),
        stale=frozenset(stale),
        refused=frozenset(refused),
        failed_at=failed_at,
        lost=frozenset(lost),
    )


def held_samples(known: KnownItems, manifest: StoreManifest | None, listing: Listing) -> set[str]:
    """Samples that a store holds as they were converted or are at the source, has refused, or cannot hold yet.

    Those that cannot are incomplete at the source, or have just changed there. Fingerprints of content tell no version.
    """
    held = set(listing.incomplete)
    if manifest is None:
        return held
    held |= manifest.quarantine.keys()
    for sample_id, entry in manifest.samples.items():
        version, item = known.observed.get(sample_id), listing.items.get(sample_id)
        is_as_converted = group_name(entry.relpath) == group_name(known.converted.get(sample_id, ""))
        has_changed = item is None or item.fingerprint != version
        if is_as_converted or has_changed or entry.fingerprint == version or manifest.fingerprints == "content":
            held.add(sample_id)
    return held


def held_batches(matrix: WideMatrix | None, batch_ids: Sequence[str]) -> set[str] | None:
    """Those of the warehouse's batches that a matrix holds or has retired; None if that is not known."""
    if matrix is None:
        return set()
    if matrix.retired.samples:
        return None  # they may be all samples of a batch
    known = set(batch_ids)
    homes = (home_of(name, known) for name in (*matrix.batches, *matrix.retired.batches))
    return {name for name in homes if name is not None}


def check_converted(source: WatchedSource, found: Conversions) -> dg.AssetCheckEvaluation:
    """Whether samples or batches changed, or arrived, whose conversion was cancelled or failed, or were lost.

    A new one whose conversion failed is left out: its partition is red, and an alert has named it.

    Args:
        source: the dataset.
        found: the states of its samples or batches.
    """
    noun = source.partitions_name.rpartition("__")[2]
    sentences = []
    for names, reason in (
        (found.cancelled, "their conversion was cancelled"),
        (found.stale, "their conversion failed"),
    ):
        if names:
            ordered = sorted(names, key=natural_order)
            counted = format_count(len(ordered), noun)
            sentences.append(f"{counted} changed or arrived at the source and {reason}: {some(ordered)}")
    if sentences:
        sentences.append("The store keeps what it had of them")
    if found.lost:
        ordered = sorted(found.lost, key=natural_order)
        sentences.append(
            f"The store does not hold {format_count(len(ordered), noun)} as converted, because it was removed, "
            f"replaced or restored, or garbage was collected before they were published: {some(ordered)}"
        )
    if found.stale:
        # Of a refused sample, another run would refuse the same.
        sentences.append(
            "The overview says why conversions failed: mend that at the source. A failure of the network "
            "or a process is tried again by itself"
        )
    if found.cancelled or found.lost:
        them = "the others" if found.stale else "them"
        sentences.append(f"To convert {them}, materialize their partitions of {source.converted.to_user_string()}")
    return dg.AssetCheckEvaluation(
        asset_key=source.published,
        check_name=CONVERTED_CHECK,
        passed=not sentences,
        severity=dg.AssetCheckSeverity.WARN,
        description=". ".join(sentences) or f"all {noun} are converted as they are at the source, or are about to be",
        metadata={"cancelled": len(found.cancelled), "failed": len(found.stale), "lost": len(found.lost)},
    )


def check_complete(listing: Listing, within_hours: int, asset: dg.AssetKey) -> dg.AssetCheckEvaluation:
    """Whether samples lack files although their newest file was written long ago.

    Args:
        listing: of the source.
        within_hours: hours that a sample may take to become complete.
        asset: that the check belongs to.
    """
    before = time.time() - 3600 * within_hours
    late = sorted((name for name, since in listing.incomplete_since.items() if since < before), key=natural_order)
    description = f"no sample is incomplete for more than {format_count(within_hours, 'hours')}"
    if late:
        lacking = listing.incomplete[late[0]]
        description = (
            f"{format_count(len(late), 'samples')} incomplete for more than {format_count(within_hours, 'hours')}: "
            f"{some(late)}. {late[0]} lacks {some(lacking)}. Upload what is missing, or delete their folders"
        )
    return dg.AssetCheckEvaluation(
        asset_key=asset,
        check_name=COMPLETE_CHECK,
        passed=not late,
        severity=dg.AssetCheckSeverity.WARN,
        description=description,
        metadata={"incomplete": len(listing.incomplete), "late": len(late)},
    )
