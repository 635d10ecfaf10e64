"""Garbage collection: deletes everything that no kept generation names and that is older than a grace period.

Kept are the current generation, tagged ones, those that were replaced less than the grace period ago, and those with
higher numbers than the current one, which are there after its head was restored from a backup. All other archived
generations are deleted, and so is every group that no kept generation names. Readers and writers may be at work. A
prefix is *tombstoned* in the head before it is deleted, by compare-and-swap: a later commit cannot name it
(``versioning.generations.commit``), and an earlier one is seen here. The next collection finishes one that died.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Generic

from tqdm import tqdm

from zarr_core._util.commands import shell
from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.format.object_names import spelled_alike
from zarr_core.storage import Storage, StoredObject
from zarr_core.storage.backends import UnfinishedUpload
from zarr_core.storage.temporary import strip_temp_suffix
from zarr_core.storage.uploads import abort_uploads, unfinished_uploads
from zarr_core.versioning.archive import GENERATIONS, archive_names, documents, generation_name
from zarr_core.versioning.generations import Head, Retention, S, amend, find_generation, load

DEFAULT_GRACE = "24h"
# A tombstone lasts this long, also after its objects are deleted. No commit can name the prefix in that time, so a
# collector that was suspended (on a laptop that slept) deletes nothing in use; it stops after half of the time.
TOMBSTONE_SECONDS = 24 * 3600
_DELETED_AT_A_TIME = 1000
# A temporary file that is younger may have a writer, which would fail without it, regardless of the grace period.
_TEMPORARY_SECONDS = 3600


@dataclass
class Garbage:
    """Objects of one prefix to delete; ``newest`` is the latest modification time, in seconds since 1970."""

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
        temporary: temporary files, and uploads in parts, that killed writers left behind; at least an hour old, for any
            grace period. The bytes are those of the files.
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
    storage: Storage,
    head: Head[S],
    grace: float,
    *,
    dry_run: bool = False,
    drop: Collection[int] = (),
    progress: bool = False,
) -> GcReport:
    """Delete everything that no kept generation names and that is older than the grace period.

    Memory: the prefixes that kept generations name and those to delete, but no complete listing.

    Args:
        storage, head: the store.
        grace: seconds.
        dry_run: delete nothing. Ages are then by this machine's clock alone.
        drop: generations to delete regardless of their age, with everything that only they name.
        progress: show a progress bar.

    Raises:
        StoreError: there is no store, another program wrote it, a tagged generation is missing or to be dropped, or the
            collection took so long that it had to stop; run it again to continue.
        ManifestError: a kept generation cannot be read, so that it is unknown what it names.
        CommitConflict: other writers kept committing first.
    """
    if grace < 0:
        raise ZarrCoreError(f"the grace period must not be negative, but is {grace:g} seconds")
    state = load(storage, head)
    if not state.generation:
        raise StoreError(f"{storage.url} was written by another program and has no generations to keep or collect")
    collector = _Collector(storage, head, grace, dry_run, drop)
    report = collector.report
    collector.scan(state)

    def tombstone(current: S) -> Retention:
        kept = collector.kept(current)
        report.kept, report.expired = kept.numbers, kept.expired
        report.prefixes = {prefix: found for prefix, found in collector.garbage.items() if not kept.needs(prefix)}
        return collector.with_tombstones(current, [*report.prefixes, *map(generation_name, kept.expired)])

    if dry_run:
        tombstone(state)
        return report
    # Before the new head is written: a full disk may have no space for it.
    collector.delete(collector.temporary)
    abort_uploads(storage, collector.uploads)
    amend(storage, head, tombstone)
    collector.delete(chain.from_iterable(map(archive_names, report.expired)))
    garbage = chain.from_iterable(map(collector.objects_of, report.prefixes))
    total = sum(found.objects for found in report.prefixes.values())
    collector.delete(tqdm(garbage, "delete", total, unit="object", disable=not (progress and total)))
    return report


@dataclass(frozen=True)
class _Kept:
    """Kept and expired generations, and the prefixes that kept and dropped ones name, as :func:`spelled_alike`.

    Attributes:
        above: folders above the prefixes of kept generations.
    """

    numbers: list[int]
    expired: list[int]
    prefixes: set[str]
    dropped: set[str]
    above: set[str]

    def needs(self, prefix: str) -> bool:
        """Whether a kept generation names the prefix, something below it, or a folder above it."""
        prefix = spelled_alike(prefix)
        return prefix in self.prefixes or prefix in self.above or not self.prefixes.isdisjoint(folders_of(prefix))


class _Collector(Generic[S]):
    """One collection, and what it finds; the arguments are those of :func:`collect_garbage`."""

    def __init__(self, storage: Storage, head: Head[S], grace: float, dry_run: bool, drop: Collection[int]) -> None:
        self.storage, self.head, self.drop = storage, head, drop
        self._began, self._began_monotonic = time.time(), time.monotonic()
        self._store_time = self._began if dry_run else storage.now()
        # The earlier of the two clocks deletes less; later objects count as young.
        self._now = min(self._store_time, self._began)
        self._horizon = self._now - grace
        self._abandoned = min(self._horizon, self._now - _TEMPORARY_SECONDS)
        self._last: tuple[S, _Kept] | None = None
        self._single: dict[str, list[str]] = {}  # prefixes that are one object, and their temporary files
        self.report = GcReport(dry_run)
        self.garbage: dict[str, Garbage] = {}
        self.temporary: list[str] = []
        self.uploads: list[UnfinishedUpload] = []

    def kept(self, current: S) -> _Kept:
        """Kept generations and the prefixes that they name."""
        if self._last is None or self._last[0] != current:
            self._last = current, self._kept(current)
        return self._last[1]

    def _kept(self, current: S) -> _Kept:
        there = documents(self.storage)
        tagged = set(current.retention.tags.values())
        self._check_tags(current, there)
        kept = _Kept([], [], set(), set(), set())
        # A generation was replaced when the next one was committed.
        (replaced,) = (found.modified for found in self.storage.objects(self.head.name))
        for number in sorted({*there, current.generation}, reverse=True):
            # The next commit replaces a later one, whatever number the restored head has.
            is_earlier = number < current.generation
            if is_earlier and number in self.drop:
                kept.expired.append(number)
                kept.dropped.update(self._named_by(current, number))
            elif not is_earlier or number in tagged or replaced >= self._horizon:
                kept.numbers.append(number)
                kept.prefixes.update(self._named_by(current, number))
            else:
                kept.expired.append(number)
            if number <= current.generation and number in there:
                replaced = there[number].modified
        kept.numbers.sort()
        kept.expired.sort()
        kept.above.update(chain.from_iterable(map(folders_of, kept.prefixes)))
        return kept

    def _check_tags(self, current: S, there: Collection[int]) -> None:
        """Raise StoreError if a tagged generation is missing, or to be dropped."""
        url = self.storage.url
        for tag, number in sorted(current.retention.tags.items()):
            if number != current.generation and number not in there:
                raise StoreError(f"{url}: {generation_name(number)} is missing, though it is tagged")
            if number in self.drop:
                raise StoreError(
                    f"{url}: generation {number} is kept by the tag {tag!r}; delete the tag first "
                    f"(`{shell('tag', url, tag, '--delete')}`)"
                )

    def _named_by(self, current: S, number: int) -> set[str]:
        state = find_generation(self.storage, self.head, current, number)
        # Another collection, with a shorter grace period, may just have deleted it.
        return set() if state is None else set(map(spelled_alike, self.head.named(state)))

    def scan(self, state: S) -> None:
        """Find the old objects that no kept generation names."""
        kept = self.kept(state)
        unnamed: dict[str, Garbage] = {}
        for stored in chain.from_iterable(map(self.storage.objects, (*self.head.roots(state), GENERATIONS))):
            name, temporary = strip_temp_suffix(stored.name)
            owner = self.head.owner(name)
            if name.startswith(f"{GENERATIONS}/") or (owner is not None and kept.needs(owner)):
                if temporary:
                    self._add_temporary(stored)
            elif owner is None:
                self.report.foreign += 1
            else:
                unnamed.setdefault(owner, Garbage()).add(stored)
                if owner == name:
                    self._single.setdefault(owner, []).append(stored.name)
        others = chain.from_iterable(map(self.storage.objects, self.head.others))
        for stored in chain(self.storage.objects("", recursive=False), others):
            if strip_temp_suffix(stored.name)[1]:
                self._add_temporary(stored)
        self.uploads = [upload for upload in unfinished_uploads(self.storage) if upload.started < self._abandoned]
        self.report.temporary.objects += len(self.uploads)
        for prefix, garbage in unnamed.items():
            # A collection that died had decided to delete what is as old as its tombstone, maybe with another grace.
            is_unfinished = int(garbage.newest) <= state.retention.tombstones.get(prefix, -1)
            if garbage.newest < self._horizon or spelled_alike(prefix) in kept.dropped or is_unfinished:
                self.garbage[prefix] = garbage
            else:
                self.report.young += 1

    def _add_temporary(self, stored: StoredObject) -> None:
        if stored.modified < self._abandoned:
            self.temporary.append(stored.name)
            self.report.temporary.add(stored)

    def with_tombstones(self, current: S, prefixes: Sequence[str]) -> Retention:
        """The current retention with new tombstones and without those that have run out."""
        before = current.retention.tombstones
        recent = {prefix: since for prefix, since in before.items() if since >= self._now - TOMBSTONE_SECONDS}
        # By the clock that all collectors share: this machine's may be days behind theirs.
        tombstones = recent | dict.fromkeys(prefixes, int(self._store_time))
        collections = current.retention.collections + bool(set(prefixes) - set(before))
        return replace(current.retention, tombstones=tombstones, collections=collections)

    def objects_of(self, prefix: str) -> list[str]:
        """The object of a prefix, or those below it that writers of this kind of store make."""
        if prefix in self._single:
            return self._single[prefix]
        names = [stored.name for stored in self.storage.objects(prefix)]
        return [name for name in names if self.head.owner(strip_temp_suffix(name)[0]) == prefix]

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, many at a time."""
        remaining = iter(names)
        while batch := list(islice(remaining, _DELETED_AT_A_TIME)):
            # One clock may be set back, the other stops while the machine sleeps.
            taken = max(time.time() - self._began, time.monotonic() - self._began_monotonic)
            if taken > TOMBSTONE_SECONDS / 2:
                raise StoreError(
                    f"{self.storage.url}: this collection has taken too long to go on safely; run it again"
                )
            self.storage.delete(batch)


def folders_of(prefix: str) -> Iterator[str]:
    """The folders that an object or a prefix lies in, from the innermost on."""
    while "/" in prefix:
        prefix = prefix.rpartition("/")[0]
        yield prefix
