"""Changes of a source between listings, debounced: a change counts when two listings in a row show the same version.

A sample that is still being copied changes from one listing to the next and so stays pending. This module does not know
Dagster: the sensors keep :class:`PendingChanges` as their cursor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace

from zarr_core._util.units import format_count
from zarr_core.sources.listing import Listing

# A tick has to end within its minute. A change costs 10 ms, because partitions are deleted one by one; new items are
# added at once. The cursor takes 35 bytes per pending item.
MAX_CHANGES, MAX_NEW = 1000, 5000
# Digits of a fingerprint that a cursor keeps.
_DIGITS = 12


@dataclass(frozen=True)
class PendingChanges:
    """Changes that one listing shows and the next has to confirm.

    Attributes:
        seen_once: the first digits of the fingerprint of each new or changed item.
        gone_once: known items that the listing lacks.
        listed_at: when the whole source was listed last, in seconds since 1970, if a queue notifies the sensor.
        unlisted: whether items have vanished that the observation of the listing as a whole does not show yet.
    """

    seen_once: Mapping[str, str] = field(default_factory=dict)
    gone_once: tuple[str, ...] = ()
    listed_at: float = 0.0
    unlisted: bool = False

    def to_cursor(self) -> str:
        """Serialize for a sensor's cursor."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_cursor(cursor: str | None) -> PendingChanges:
        """Parse a sensor's cursor. A cursor of another form, written by another version, means nothing is pending."""
        try:
            document = json.loads(cursor or "{}")
        except ValueError:
            return PendingChanges()
        document = document if isinstance(document, dict) else {}
        seen, gone = document.get("seen_once"), document.get("gone_once")
        listed_at = document.get("listed_at")
        return PendingChanges(
            seen if isinstance(seen, dict) else {},
            tuple(gone) if isinstance(gone, list) else (),
            listed_at if isinstance(listed_at, float) else 0.0,
            document.get("unlisted") is True,
        )


@dataclass(frozen=True)
class Changes:
    """Confirmed changes, by id, those that stay pending, and how many vanished ones wait for the end of a run."""

    new: tuple[str, ...]
    changed: tuple[str, ...]
    vanished: tuple[str, ...]
    pending: PendingChanges
    waiting_for_a_run: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed, and nothing is pending."""
        return not (self.new or self.changed or self.vanished or self.pending.seen_once or self.pending.gone_once)

    def with_listed_at(self, listed_at: float) -> Changes:
        """The same changes, with the time of the last listing of the whole source."""
        return replace(self, pending=replace(self.pending, listed_at=listed_at))

    def with_unlisted(self, unlisted: bool) -> Changes:
        """The same changes, and whether the observation of the listing does not show yet what has vanished."""
        return replace(self, pending=replace(self.pending, unlisted=unlisted))

    def with_new_pending(self, fingerprints: Mapping[str, str]) -> Changes:
        """The same changes, but these new items, given with their fingerprints, stay pending."""
        seen = {i: fingerprint[:_DIGITS] for i, fingerprint in fingerprints.items()}
        pending = replace(self.pending, seen_once={**self.pending.seen_once, **seen})
        return replace(self, new=tuple(i for i in self.new if i not in seen), pending=pending)

    def with_vanished_pending(self) -> Changes:
        """The same changes, but vanished items stay pending until no run or backfill holds them."""
        gone = self.pending.gone_once + self.vanished
        pending = replace(self.pending, gone_once=gone)
        return replace(self, vanished=(), pending=pending, waiting_for_a_run=len(self.vanished))


def find_changes(
    listing: Listing,
    known: Mapping[str, str | None],
    before: PendingChanges,
    limit: int | None = MAX_CHANGES,
    new_limit: int | None = MAX_NEW,
) -> Changes:
    """Compare a listing with the known items.

    Args:
        listing: the source now.
        known: fingerprint last recorded of each known item; None if there is none.
        before: changes that the previous listing left pending.
        limit: maximum number of changed, and of vanished items; no limit if None.
        new_limit: maximum number of new items, and of items left pending of each kind; no limit if None.
    """
    differing = [i for i, item in listing.items.items() if known.get(i) != item.fingerprint]
    new: list[str] = []
    changed: list[str] = []
    unconfirmed: dict[str, str] = {}
    for item_id in sorted(differing, key=natural_order):
        seen = listing.items[item_id].fingerprint[:_DIGITS]
        is_confirmed = before.seen_once.get(item_id) == seen
        if is_confirmed and item_id not in known and _has_room(new, new_limit):
            new.append(item_id)
        elif is_confirmed and item_id in known and _has_room(changed, limit):
            changed.append(item_id)
        elif _has_room(unconfirmed, new_limit):
            unconfirmed[item_id] = seen
    # An item with some of its files left is being copied again; only one without any has vanished. A source without a
    # single item is a disk that is not mounted or a bucket that cannot be listed.
    gone: list[str] = []
    if listing.items or listing.incomplete:
        gone = sorted(known.keys() - listing.items.keys() - listing.incomplete.keys())[:new_limit]
    missed = set(before.gone_once)
    # The others stay pending: with notifications, the next tick lists the whole source only if something is.
    vanished = [item_id for item_id in gone if item_id in missed][:limit]
    handled = set(vanished)
    still_gone = tuple(item_id for item_id in gone if item_id not in handled)
    return Changes(tuple(new), tuple(changed), tuple(vanished), PendingChanges(unconfirmed, still_gone))


def _has_room(items: Collection[str], limit: int | None) -> bool:
    return limit is None or len(items) < limit


def describe(listing: Listing, changes: Changes, noun: str, held: Collection[str] = ()) -> str:
    """Summarize a listing in one line, for the sensor's page and the log.

    Args:
        listing: the source now.
        changes: since the last one.
        noun: what the items are.
        held: items that Dagster did not know and the store holds.
    """
    parts = [format_count(len(listing.items), f"complete {noun}")]
    new = tuple(item_id for item_id in changes.new if item_id not in set(held))
    for word, ids in (("new", new), ("changed", changes.changed), ("vanished", changes.vanished)):
        if ids:
            parts.append(f"{len(ids)} {word} ({_some(ids)})")
    if held:
        parts.append(f"{len(held)} taken over from the store")
    if changes.pending.seen_once:
        parts.append(f"{len(changes.pending.seen_once)} new or changed, waiting for the next listing")
    if changes.waiting_for_a_run:
        parts.append(f"{changes.waiting_for_a_run} not found, waiting for the end of a conversion")
    gone_once = len(changes.pending.gone_once) - changes.waiting_for_a_run
    if gone_once:
        parts.append(f"{gone_once} not found, waiting for the next listing")
    if listing.incomplete:
        item_id, missing = min(listing.incomplete.items())
        parts.append(f"{len(listing.incomplete)} incomplete ({item_id} lacks {_some(missing)})")
    return "; ".join([", ".join(parts), *listing.left_out])


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def natural_order(item_id: str) -> list[str | int]:
    """Sort key that puts run_10 after run_9, so that items that arrive together are neighbours as partitions."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", item_id)]
