"""Garbage collection: what no kept generation names, and is older than a grace period, is removed.

``zarr-core gc STORE`` keeps the current generation, tagged ones, and those that were replaced less than the
grace period ago; the documents of all others go, and with them every group that only they name, or nobody. Readers and
writers may be at work. What is to go is *condemned* first, in the head, by compare-and-swap: so whoever commits later
cannot name it (``versioning.generations.commit``), and whoever committed earlier is seen here. Only then is anything
deleted. A collection that died in the middle is finished by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic

from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.storage import Storage, StoredObject
from zarr_core.storage.temporary import strip_temp_suffix
from zarr_core.versioning.generations import GENERATIONS, Head, Retention, S, amend, documents, generation_name, load

DEFAULT_GRACE = "24h"
# Names stay condemned for so long after their objects are gone. Nobody writes them anew in that time, so that a
# collector that was suspended in the middle (a laptop that slept) deletes nothing that is in use; it stops after half.
CONDEMNED_SECONDS = 24 * 3600
_DELETED_AT_A_TIME = 1000


@dataclass
class Garbage:
    """Objects of one prefix that are to go.

    Attributes:
        bytes: of its objects.
        objects: how many they are.
        newest: when the last of them was written, in seconds since 1970.
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
class Collection:
    """What :func:`collect_garbage` removed, or would remove.

    Attributes:
        dry_run: whether it only looked.
        kept: numbers of the generations that are kept.
        expired: numbers of those that went.
        prefixes: what went, by prefix; generations left out.
        temporary: files that writers left half-written when they were killed.
        young: prefixes that nothing names, but that are not older than the grace period.
        foreign: objects among ours that no writer of this kind of store makes; they are left alone.
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
        """Bytes of all objects below the prefixes, and of temporary files."""
        return sum(garbage.bytes for garbage in self.prefixes.values()) + self.temporary.bytes


def collect_garbage(storage: Storage, head: Head[S], grace: float, *, dry_run: bool = False) -> Collection:
    """Remove what no kept generation names and is older than the grace period.

    Memory: the prefixes that kept generations name, and those that are to go; no listing is held whole.

    Args:
        storage: the store.
        head: of its kind.
        grace: seconds.
        dry_run: only look. Ages are then by this machine's clock alone.

    Raises:
        StoreError: there is no store, another program wrote it, a tagged generation is missing, or this took so long
            that it had to stop; run again to go on.
        ManifestError: a kept generation cannot be read, so that nothing can be said to be unnamed.
        CommitConflict: others kept committing first.
    """
    if grace < 0:
        raise ZarrCoreError(f"the grace period must not be negative, but is {grace:g} seconds")
    began = time.time()
    state = load(storage, head)
    if not state.generation:
        raise StoreError(f"{storage.url} was written by another program and has no generations to keep or collect")
    # Of two clocks that disagree the earlier one: it removes less. What seems to be from the future is young.
    now = began if dry_run else min(storage.now(), began)
    collector = _Collector(storage, head, now, now - grace)
    found = collector.scan(state)
    result = Collection(dry_run, young=found.young, foreign=found.foreign)
    for temporary in found.temporary:
        result.temporary.add(temporary)

    def condemn(current: S) -> Retention:
        kept = collector.kept(current)
        result.kept, result.expired = kept.numbers, kept.expired
        result.prefixes = {prefix: garbage for prefix, garbage in found.garbage.items() if not kept.needs(prefix)}
        return collector.condemn(current, [*result.prefixes, *map(generation_name, kept.expired)])

    if dry_run:
        condemn(state)
        return result
    amend(storage, head, condemn)
    collector.delete(
        [
            *(temporary.name for temporary in found.temporary),
            *map(generation_name, result.expired),
            *(prefix for prefix in result.prefixes if prefix in found.objects),
        ],
        [prefix for prefix in result.prefixes if prefix not in found.objects],
        began,
    )
    return result


@dataclass(frozen=True)
class _Kept:
    """Generations that stay, those that do not, and what the former need."""

    numbers: list[int]
    expired: list[int]
    prefixes: set[str]
    above: set[str]

    def needs(self, prefix: str) -> bool:
        """Whether a prefix, something below it, or something that it is part of is named."""
        return prefix in self.prefixes or prefix in self.above or not self.prefixes.isdisjoint(_folders_of(prefix))


@dataclass
class _Found:
    """What a look at all objects has found; ``objects`` are the prefixes that are one object each."""

    garbage: dict[str, Garbage] = field(default_factory=dict)
    objects: set[str] = field(default_factory=set)
    temporary: list[StoredObject] = field(default_factory=list)
    young: int = 0
    foreign: int = 0


@dataclass
class _Collector(Generic[S]):
    """One collection: ``horizon`` is the time before which everything is old."""

    storage: Storage
    head: Head[S]
    now: float
    horizon: float
    _last: tuple[S, _Kept] | None = None

    def kept(self, current: S) -> _Kept:
        """What the newest state, and every other that is kept, needs."""
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
        numbers, expired, prefixes = [current.generation], [], set(self.head.named(current))
        # A generation was replaced when the next one was committed.
        (replaced,) = (found.modified for found in self.storage.objects(self.head.name))
        for number in sorted(there, reverse=True):
            if number < current.generation:
                if number in tagged or replaced >= self.horizon:
                    numbers.append(number)
                    prefixes |= self._named_by(number)
                else:
                    expired.append(number)
            replaced = there[number].modified
        above = {folder for prefix in prefixes for folder in _folders_of(prefix)}
        return _Kept(sorted(numbers), sorted(expired), prefixes, above)

    def _named_by(self, number: int) -> set[str]:
        name = generation_name(number)
        try:
            data = self.storage.read(name)
        except FileNotFoundError:  # another collection, with a shorter grace period, has just removed it
            return set()
        return set(self.head.named(self.head.parse(data, f"{self.storage.url}/{name}")))

    def scan(self, state: S) -> _Found:
        """Look at every object: is it old, and named by nothing?"""
        kept, found = self.kept(state), _Found()
        young: dict[str, Garbage] = {}
        for stored in self._ours(state):
            name, temporary = strip_temp_suffix(stored.name)
            owner = self.head.owner(name)
            if name.startswith(f"{GENERATIONS}/") or (owner is not None and kept.needs(owner)):
                if temporary and stored.modified < self.horizon:
                    found.temporary.append(stored)
            elif owner is None:
                found.foreign += 1
            else:
                young.setdefault(owner, Garbage()).add(stored)
                if owner == stored.name:
                    found.objects.add(owner)
        for stored in self.storage.objects("", recursive=False):
            if strip_temp_suffix(stored.name)[1] and stored.modified < self.horizon:
                found.temporary.append(stored)
        for prefix, garbage in young.items():
            if garbage.newest < self.horizon:
                found.garbage[prefix] = garbage
            else:
                found.young += 1
        return found

    def _ours(self, state: S) -> Iterator[StoredObject]:
        for root in (*self.head.roots(state), GENERATIONS):
            yield from self.storage.objects(root)

    def condemn(self, current: S, doomed: Sequence[str]) -> Retention:
        """The retention that says that these are being removed; what was removed long ago is forgotten."""
        before = current.retention.condemned
        recent = {prefix: since for prefix, since in before.items() if since >= self.now - CONDEMNED_SECONDS}
        condemned = recent | dict.fromkeys(doomed, int(self.now))
        collections = current.retention.collections + bool(set(doomed) - set(before))
        return replace(current.retention, condemned=condemned, collections=collections)

    def delete(self, names: Sequence[str], prefixes: Sequence[str], began: float) -> None:
        """Remove objects, and all of ours that is below prefixes."""
        batch = list(names)
        for prefix in prefixes:
            below = (found.name for found in self.storage.objects(prefix))
            batch += [name for name in below if self.head.owner(strip_temp_suffix(name)[0]) == prefix]
            if len(batch) >= _DELETED_AT_A_TIME:
                self._delete_batch(batch, began)
                batch = []
        self._delete_batch(batch, began)

    def _delete_batch(self, names: Sequence[str], began: float) -> None:
        for start in range(0, len(names), _DELETED_AT_A_TIME):
            if time.time() - began > CONDEMNED_SECONDS / 2:
                raise StoreError(
                    f"{self.storage.url}: this collection has taken too long to go on safely; run it again"
                )
            self.storage.delete(names[start : start + _DELETED_AT_A_TIME])


def _folders_of(prefix: str) -> Iterator[str]:
    while "/" in prefix:
        prefix = prefix.rpartition("/")[0]
        yield prefix
