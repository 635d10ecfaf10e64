"""What the store lacks of its source and nothing will convert by itself, and what never becomes complete there.

Both are checks of the manifest. The sensor of the source reports them, too, when they change: a person who cancels all
conversions leaves no run that would evaluate them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg
from zarr_core.platform.sensors.dagster_internals.partitions import cancelled_partitions, unconverted_partitions
from zarr_core.platform.sensors.observations import KnownItems, WatchedSource
from zarr_core.platform.sensors.pending import natural_order

from zarr_core._util.units import format_count
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
    """

    total: int
    waiting: frozenset[str]
    cancelled: frozenset[str]
    stale: frozenset[str]
    refused: frozenset[str]
    failed_at: Mapping[str, int]

    @property
    def converted(self) -> int:
        """How many are in the store as they are at the source."""
        return self.total - sum(map(len, (self.waiting, self.cancelled, self.stale, self.refused)))


def conversions(known: KnownItems) -> Conversions:
    """What became of the samples or batches of a source, from what Dagster has recorded."""
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
    return Conversions(
        total=len(known.registered),
        waiting=frozenset(waiting),
        cancelled=frozenset(cancelled),
        stale=frozenset(stale),
        refused=frozenset(refused),
        failed_at=failed_at,
    )


def check_converted(source: WatchedSource, found: Conversions) -> dg.AssetCheckEvaluation:
    """Whether samples or batches changed, or arrived, whose conversion was cancelled or failed.

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
        sentences.append(
            "The store keeps what it had of them. To convert them, materialize their partitions of "
            f"{source.converted.to_user_string()}"
        )
    return dg.AssetCheckEvaluation(
        asset_key=source.published,
        check_name=CONVERTED_CHECK,
        passed=not sentences,
        severity=dg.AssetCheckSeverity.WARN,
        description=". ".join(sentences) or f"all {noun} are converted as they are at the source, or are about to be",
        metadata={"cancelled": len(found.cancelled), "failed": len(found.stale)},
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
            f"{some(late)}. {late[0]} lacks "
            f"{some(lacking)}. Upload what is missing, or delete their folders"
        )
    return dg.AssetCheckEvaluation(
        asset_key=asset,
        check_name=COMPLETE_CHECK,
        passed=not late,
        severity=dg.AssetCheckSeverity.WARN,
        description=description,
        metadata={"incomplete": len(listing.incomplete), "late": len(late)},
    )
