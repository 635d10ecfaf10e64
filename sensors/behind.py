"""What the store lacks of its source and nothing will convert by itself, and what never becomes complete there.

Both are checks of the manifest. The sensor of the source reports them, too, when they change: a person who cancels all
conversions leaves no run that would evaluate them.
"""

from __future__ import annotations

import time

import dagster as dg

from sensors.dagster_internals.partitions import cancelled_partitions, failed_partitions, unconverted_partitions
from sensors.observations import WatchedSource
from sensors.pending import natural_order
from zarr_core.sources.left_out import some
from zarr_core.sources.listing import Listing

CONVERTED_CHECK, COMPLETE_CHECK = "source_converted", "samples_complete"


def check_converted(instance: dg.DagsterInstance, source: WatchedSource) -> dg.AssetCheckEvaluation:
    """Whether samples or batches changed, or arrived, whose conversion was cancelled or failed.

    A new one whose conversion failed is left out: its partition is red, and an alert has named it.
    """
    noun = source.partitions_name.rpartition("__")[2]
    waiting = unconverted_partitions(instance, source.observed, source.converted, source.partitions_name)
    cancelled = cancelled_partitions(instance, source.converted, [source.observed]) & waiting.keys()
    attempts = failed_partitions(instance, source.converted)
    stale = set()
    for name in waiting.keys() & attempts.keys() - cancelled:
        if waiting[name].converted_before and attempts[name] > waiting[name].observed_at:
            stale.add(name)
    sentences = []
    for names, reason in ((cancelled, "their conversion was cancelled"), (stale, "their conversion failed")):
        if names:
            ordered = sorted(names, key=natural_order)
            sentences.append(f"{len(ordered)} {noun} changed or arrived at the source and {reason}: {some(ordered)}")
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
        metadata={"cancelled": len(cancelled), "failed": len(stale)},
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
    description = "no sample is incomplete for longer"
    if late:
        lacking = listing.incomplete[late[0]]
        description = (
            f"{len(late)} samples are incomplete for more than {within_hours} hours: {some(late)}. {late[0]} lacks "
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
