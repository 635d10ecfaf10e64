"""Garbage collection: deletes everything that no kept generation names and that is older than a grace period.

Kept are the current generation, tagged ones, and those that were replaced less than the grace period ago. All other
archived generations are deleted, and so is every group that no kept generation names. Readers and writers may be at
work. A prefix is *tombstoned* in the head before it is deleted, by compare-and-swap: a later commit cannot name it
(``versioning.generations.commit``), and an earlier one is seen here. The next collection finishes one that died.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Generic

from zarr_core._util.commands import shell
from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.storage import Storage, StoredObject
from zarr_core.storage.temporary import strip_temp_suffix
from zarr_core.versioning.archive import GENERATIONS, archive_names, documents, generation_name, read_archive
from zarr_core.versioning.generations import Head, Retention, S, amend, load

DEFAULT_GRACE = "24h"
# A tombstone lasts this long, also after its objects are deleted. No commit can name the prefix in that time, so a
# collector that was suspended (on a laptop that slept) deletes nothing in use; it stops after half of the time.
TOMBSTONE_SECONDS = 24 * 3600
_DELETED_AT_A_TIME = 1000
# A temporary file that is younger may have a writer, which would fail without it, whatever the grace period.
_TEMPORARY_SECONDS = 3600


@dataclass
class Garbage:
    """Objects of one prefix to delete.

    Attributes:
        bytes: sum of their sizes.
        objects: their number.
        newest: latest modification time, in seconds since 1970.
    """

    bytes: int = 0
    objects: int = 0
    newest: float = 0.0

    def add(self, found: StoredObject) -> None:
        """Count an object in."""
        self.bytes += found.size
        self.objects += 1
        self.newest = max(self.newest, found.modified)


@dataclass
class GcReport:
    """What :func:`collect_garbage` deleted, or would delete.

    Attributes:
        dry_run: whether nothing was deleted.
        kept: numbers of the kept generations.
        expired: numbers of the deleted generations.
        prefixes: deleted objects by prefix, without generations.
        temporary: temporary files that killed writers left behind; at least an hour old, whatever the grace period.
        young: number of prefixes that no generation names, but that are within the grace period.
        foreign: number of objects that no writer of this kind of store makes; they are never deleted.
    """

    dry_run: bool
    kept: list[int] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)
    prefixes: dict[str, Garbage] = field(default_factory=dict)
    temporary: Garbage = field(default_factory=Garbage)
    young: int = 0
    foreign: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of all deleted objects and temporary files."""
        return sum(garbage.bytes for garbage in self.prefixes.values()) + self.temporary.bytes


def collect_garbage(
    storage: Storage, head: Head[S], grace: float, *, dry_run: bool = False, drop: Collection[int] = ()
) -> GcReport:
    """Delete everything that no kept generation names and that is older than the grace period.

    Memory: the prefixes that kept generations name and those to delete, but no complete listing.

    Args:
        storage, head: the store.
        grace: seconds.
        dry_run: delete nothing. Ages are then by this machine's clock alone.
        drop: generations to delete whatever their age, with everything that only they name.

    Raises:
        StoreError: there is no store, another program wrote it, a tagged generation is missing or to be dropped, or the
            collection took so long that it had to stop; run it again to continue.
        ManifestError: a kept generation cannot be read, so that it is unknown what it names.
        CommitConflict: other writers kept committing first.
    """
    if grace < 0:
        raise ZarrCoreError(f"the grace period must not be negative, but is {grace:g} seconds")
    began = time.time(), time.monotonic()
    state = load(storage, head)
    if not state.generation:
        raise StoreError(f"{storage.url} was written by another program and has no generations to keep or collect")
    store_time = began[0] if dry_run else storage.now()
    # The earlier of the two clocks deletes less. Objects from the future count as young.
    now = min(store_time, began[0])
    collector = _Collector(storage, head, now, now - grace, store_time, drop)
    found = collector.scan(state)
    result = GcReport(dry_run, young=found.young, foreign=found.foreign)
    for temporary in found.temporary:
        result.temporary.add(temporary)

    def tombstone(current: S) -> Retention:
        kept = collector.kept(current)
        result.kept, result.expired = kept.numbers, kept.expired
        result.prefixes = {prefix: garbage for prefix, garbage in found.garbage.items() if not kept.needs(prefix)}
        return collector.with_tombstones(current, [*result.prefixes, *map(generation_name, kept.expired)])

    if dry_run:
        tombstone(state)
        return result
    # Before the new head is written: a full disk may have no space for it.
    collector.delete([temporary.name for temporary in found.temporary], [], began)
    amend(storage, head, tombstone)
    collector.delete(
        [
            *(name for number in result.expired for name in archive_names(number)),
            *(prefix for prefix in result.prefixes if prefix in found.objects),
        ],
        [prefix for prefix in result.prefixes if prefix not in found.objects],
        began,
    )
    return result


@dataclass(frozen=True)
class _Kept:
    """Kept and expired generations, and the prefixes that kept and dropped ones name."""

    numbers: list[int]
    expired: list[int]
    prefixes: set[str]
    above: set[str]
    dropped: set[str]

    def needs(self, prefix: str) -> bool:
        """Whether a kept generation names the prefix, something below it, or a folder above it."""
        return prefix in self.prefixes or prefix in self.above or not self.prefixes.isdisjoint(_folders_of(prefix))


@dataclass
class _Found:
    """Result of a scan of all objects; ``objects`` are the prefixes that are a single object."""

    garbage: dict[str, Garbage] = field(default_factory=dict)
    objects: set[str] = field(default_factory=set)
    temporary: list[StoredObject] = field(default_factory=list)
    young: int = 0
    foreign: int = 0


@dataclass
class _Collector(Generic[S]):
    """One collection. ``horizon``: objects last modified before this time are old. ``store_time``: by its clock."""

    storage: Storage
    head: Head[S]
    now: float
    horizon: float
    store_time: float
    drop: Collection[int]
    _last: tuple[S, _Kept] | None = None

    def kept(self, current: S) -> _Kept:
        """Kept generations and the prefixes that they name."""
        if self._last is not None and self._last[0] == current:
            return self._last[1]
        kept = self._kept(current)
        self._last = current, kept
        return kept

    def _kept(self, current: S) -> _Kept:
        there = documents(self.storage)
        tagged = set(current.retention.tags.values()) - {current.generation}
        for number in sorted(tagged - set(there)):
            raise StoreError(f"{self.storage.url}: {generation_name(number)} is missing, though it is tagged")
        for tag, number in sorted(current.retention.tags.items()):
            if number in self.drop:
                raise StoreError(
                    f"{self.storage.url}: generation {number} is kept by the tag {tag!r}; delete the tag first "
                    f"(`{shell('tag', self.storage.url, tag, '--delete')}`)"
                )
        numbers, expired, prefixes = [current.generation], [], set(self.head.named(current))
        dropped: set[str] = set()
        # A generation was replaced when the next one was committed.
        (replaced,) = (found.modified for found in self.storage.objects(self.head.name))
        for number in sorted(there, reverse=True):
            if number < current.generation:
                if number in self.drop:
                    expired.append(number)
                    dropped |= self._named_by(number)
                elif number in tagged or replaced >= self.horizon:
                    numbers.append(number)
                    prefixes |= self._named_by(number)
                else:
                    expired.append(number)
            replaced = there[number].modified
        above = {folder for prefix in prefixes for folder in _folders_of(prefix)}
        return _Kept(sorted(numbers), sorted(expired), prefixes, above, dropped)

    def _named_by(self, number: int) -> set[str]:
        try:
            name, data = read_archive(self.storage, number)
        except FileNotFoundError:  # another collection, with a shorter grace period, has just deleted it
            return set()
        return set(self.head.named(self.head.parse(data, f"{self.storage.url}/{name}")))

    def scan(self, state: S) -> _Found:
        """Find the old objects that no kept generation names."""
        kept, found = self.kept(state), _Found()
        young: dict[str, Garbage] = {}
        abandoned = min(self.horizon, self.now - _TEMPORARY_SECONDS)
        roots = (*self.head.roots(state), GENERATIONS)
        for stored in chain.from_iterable(map(self.storage.objects, roots)):
            name, temporary = strip_temp_suffix(stored.name)
            owner = self.head.owner(name)
            if name.startswith(f"{GENERATIONS}/") or (owner is not None and kept.needs(owner)):
                if temporary and stored.modified < abandoned:
                    found.temporary.append(stored)
            elif owner is None:
                found.foreign += 1
            else:
                young.setdefault(owner, Garbage()).add(stored)
                if owner == stored.name:
                    found.objects.add(owner)
        for stored in self.storage.objects("", recursive=False):
            if strip_temp_suffix(stored.name)[1] and stored.modified < abandoned:
                found.temporary.append(stored)
        for prefix, garbage in young.items():
            if garbage.newest < self.horizon or prefix in kept.dropped:
                found.garbage[prefix] = garbage
            else:
                found.young += 1
        return found

    def with_tombstones(self, current: S, prefixes: Sequence[str]) -> Retention:
        """The current retention with new tombstones and without those that have run out."""
        before = current.retention.tombstones
        recent = {prefix: since for prefix, since in before.items() if since >= self.now - TOMBSTONE_SECONDS}
        # By the clock that all collectors share: this machine's may be days behind theirs.
        tombstones = recent | dict.fromkeys(prefixes, int(self.store_time))
        collections = current.retention.collections + bool(set(prefixes) - set(before))
        return replace(current.retention, tombstones=tombstones, collections=collections)

    def delete(self, names: Sequence[str], prefixes: Sequence[str], began: tuple[float, float]) -> None:
        """Delete objects, and everything below prefixes that writers of this kind of store make.

        Args:
            names: of the objects.
            prefixes: the prefixes.
            began: when the collection began, by ``time.time`` and ``time.monotonic``.
        """
        batch = list(names)
        for prefix in prefixes:
            below = (found.name for found in self.storage.objects(prefix))
            batch += [name for name in below if self.head.owner(strip_temp_suffix(name)[0]) == prefix]
            if len(batch) >= _DELETED_AT_A_TIME:
                self._delete_batch(batch, began)
                batch = []
        self._delete_batch(batch, began)

    def _delete_batch(self, names: Sequence[str], began: tuple[float, float]) -> None:
        for start in range(0, len(names), _DELETED_AT_A_TIME):
            # One clock may be set back, the other stops while the machine sleeps.
            if max(time.time() - began[0], time.monotonic() - began[1]) > TOMBSTONE_SECONDS / 2:
                raise StoreError(
                    f"{self.storage.url}: this collection has taken too long to go on safely; run it again"
                )
            self.storage.delete(names[start : start + _DELETED_AT_A_TIME])


def _folders_of(prefix: str) -> Iterator[str]:
    while "/" in prefix:
        prefix = prefix.rpartition("/")[0]
        yield prefix
