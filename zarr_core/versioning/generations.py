"""States of a store: one mutable object that names everything, and every state that it ever had.

A store of any kind keeps what it holds in one small document, its *head*: ``manifest.json`` of points, ``HEAD.json`` of
a wide matrix. Everything else is written once. A commit swaps the head by compare-and-swap, and each committed state
stays as an immutable numbered generation, until garbage collection (``versioning.gc``) finds it replaced long ago.

What differs between kinds of stores is given by their :class:`Head`; commits, tags, history, collection are one code.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from zarr_core.errors import CollectedError, CommitConflict, ManifestError, StoreError
from zarr_core.storage import Storage, StoredObject

GENERATIONS = "generations"

MAX_GENERATION = 99_999_999  # eight digits

_COMMIT_ATTEMPTS = 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retention:
    """What is to be kept and what is being removed: the part of a head that belongs to no generation.

    Attributes:
        tags: generation by name; a tagged generation is never collected.
        condemned: prefixes that are being removed, and when that was decided (seconds since 1970, the store's clock).
            No commit names them any more: whoever commits swaps the head that says so.
        collections: how often something has been condemned. So each of these heads differs from all others, and a
            compare-and-swap cannot mistake a later one for an earlier one.
    """

    tags: Mapping[str, int] = field(default_factory=dict)
    condemned: Mapping[str, int] = field(default_factory=dict)
    collections: int = 0

    def to_document(self) -> dict[str, Any]:
        """What a head keeps under the key "retention"; empty where there is nothing to keep."""
        if self == Retention():
            return {}
        return {
            "tags": dict(sorted(self.tags.items())),
            "condemned": dict(sorted(self.condemned.items())),
            "collections": self.collections,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Retention:
        """Read what :meth:`to_document` made; raises ManifestError."""
        tags, condemned = document.get("tags", {}), document.get("condemned", {})
        collections = document.get("collections", 0)
        if not (isinstance(tags, dict) and isinstance(condemned, dict)):
            raise ManifestError("retention: tags and condemned must be objects")
        if not all(isinstance(value, int) for value in (*tags.values(), *condemned.values(), collections)):
            raise ManifestError("retention: generations, times and counts must be integers")
        return cls(dict(tags), dict(condemned), collections)


@dataclass(frozen=True)
class Change:
    """One thing that a commit did.

    Attributes:
        what: in a word or a few: "added", "replaced", "retired", "quarantined", "codec".
        names: of the samples (or batches) that it was done to.
        note: what else there is to say, as in "zstd:3 -> blosc-lz4:5".
    """

    what: str
    names: tuple[str, ...] = ()
    note: str = ""


class State(Protocol):
    """What a store holds: a frozen dataclass with these, and whatever else it is about."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def generation(self) -> int:
        """1 for a store's first commit, one more with each; 0 where another program wrote the store."""
        ...

    @property
    def retention(self) -> Retention:
        """Of the head; empty in a generation that was committed earlier."""
        ...

    def to_json(self) -> bytes:
        """The document: the same state gives the same bytes."""
        ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Head(Generic[S]):
    """Where a kind of store keeps its state, how to read it, and what it says.

    A *prefix* below is an object's name or a folder of objects: "samples/a/0123" stands for itself and all below it.

    Attributes:
        name: of the object.
        parse: the state from a document, and a name for it in errors; raises ManifestError.
        roots: folders that hold what the commits of a store name; garbage is looked for there and nowhere else.
        named: prefixes that a state needs.
        owner: the prefix that an object below ``roots`` belongs to, which is named or not as a whole; None for objects
            that no writer of this kind of store makes, and which are left alone.
        is_whole: whether everything below a prefix is there, as far as sizes tell.
        changes: what the second state has done to the first, None where it is the store's first.
    """

    name: str
    parse: Callable[[bytes, str], S]
    roots: Callable[[S], Iterable[str]]
    named: Callable[[S], Iterable[str]]
    owner: Callable[[str], str | None]
    is_whole: Callable[[Storage, str], bool]
    changes: Callable[[S | None, S], list[Change]]


def generation_name(generation: int) -> str:
    """Object that keeps a committed state."""
    return f"{GENERATIONS}/{generation:08d}.json"


def documents(storage: Storage) -> dict[int, StoredObject]:
    """The objects that keep committed states, by generation; each was written when its generation was committed."""
    names = (
        (re.fullmatch(rf"{GENERATIONS}/(\d{{8,}})\.json", found.name), found) for found in storage.objects(GENERATIONS)
    )
    return {int(name[1]): found for name, found in names if name}


def load(storage: Storage, head: Head[S], generation: int | str | None = None) -> S:
    """The state of a store: the current one, one committed earlier, or the one that a tag names.

    Raises:
        StoreError: there is no store, no such tag, no such generation, or it has been collected.
        ManifestError: the state cannot be read.
    """
    try:
        state = head.parse(storage.read(head.name), f"{storage.url}/{head.name}")
    except FileNotFoundError as error:
        raise StoreError(f"{storage.url} holds no {head.name}; is it the root of a converted store?") from error
    if isinstance(generation, str):
        generation = tagged_generation(storage, state, generation)
    if generation is None or generation == state.generation:
        return state
    name = generation_name(generation)
    try:
        return head.parse(storage.read(name), f"{storage.url}/{name}")
    except FileNotFoundError as error:
        reason = f"the current one is {state.generation}"
        if 0 < generation < state.generation:
            reason += "; it was replaced long ago and has been collected (a tag would have kept it)"
        raise StoreError(f"{storage.url} has no generation {generation}; {reason}") from error


def tagged_generation(storage: Storage, state: State, tag: str) -> int:
    """The generation that a tag names; raises StoreError."""
    tags = state.retention.tags
    if tag not in tags:
        raise StoreError(f"{storage.url} has no tag {tag!r}; its tags are: {', '.join(sorted(tags)) or 'none'}")
    return tags[tag]


def commit(storage: Storage, head: Head[S], change: Callable[[S | None], S]) -> S:
    """Make the next generation of a store, whoever else is committing or collecting.

    Args:
        storage: the store.
        head: of its kind.
        change: the next state from the current one (None: there is no store yet). It runs again on the newer state when
            another commit came first, so it must only add what it knows. Returning what it was given commits nothing.

    Returns:
        The state as committed, or the current one where nothing changed.

    Raises:
        CommitConflict: others kept committing first.
        CollectedError: the change names what has been, or is being, removed; nothing is committed.
        StoreError: the location cannot compare and swap.
    """

    def step(current: S | None, data: bytes) -> S | None:
        changed = change(current)
        if changed is current:
            return None
        if current is None:
            storage.sync()
            return replace(changed, generation=1, retention=Retention())
        _check_named(storage, head, current, changed)
        # The state about to be replaced is kept first: should its own committer have died before it did so, it is
        # still in the head now and would be lost a moment later.
        name = generation_name(current.generation)
        if not storage.exists(name):
            storage.create(name, archived(current, data))
        storage.sync()
        return replace(changed, generation=current.generation + 1, retention=current.retention)

    committed, swapped = _swap(storage, head, step)
    if swapped:
        storage.create(generation_name(committed.generation), archived(committed, committed.to_json()))
    return committed


def amend(storage: Storage, head: Head[S], change: Callable[[S], Retention]) -> S:
    """Change what is kept and what is being removed. That makes no generation: readers see what they saw.

    Args:
        storage, head: as for :func:`commit`.
        change: the next retention, from the current state; it runs again like that of :func:`commit`.

    Raises:
        StoreError: there is no store, or another program wrote it; otherwise as :func:`commit`.
    """

    def step(current: S | None, data: bytes) -> S | None:
        if current is None:
            raise StoreError(f"{storage.url} holds no {head.name}; is it the root of a converted store?")
        if not current.generation:
            raise StoreError(f"{storage.url} was written by another program and has no generations to keep or collect")
        retention = change(current)
        return None if retention == current.retention else replace(current, retention=retention)

    return _swap(storage, head, step)[0]


def archived(state: State, data: bytes) -> bytes:
    """A state as its generation keeps it, given the document of the head."""
    return replace(state, retention=Retention()).to_json() if state.retention != Retention() else data


def is_below(name: str, prefix: str) -> bool:
    """Whether an object, or a prefix, is part of a prefix."""
    return name == prefix or name.startswith(f"{prefix}/")


def _check_named(storage: Storage, head: Head[S], current: S, changed: S) -> None:
    """Raise CollectedError where the change names something that garbage collection has taken or is about to.

    What was condemned before ``current`` was read is in its list, or deleted and therefore not whole. What is condemned
    later swaps the head, so that this commit is tried again.
    """
    if not current.retention.collections:
        return
    added = sorted(set(head.named(changed)) - set(head.named(current)))
    gone = tuple(name for name in added if name in current.retention.condemned or not head.is_whole(storage, name))
    if gone:
        raise CollectedError(storage.url, gone)


def _swap(storage: Storage, head: Head[S], step: Callable[[S | None, bytes], S | None]) -> tuple[S, bool]:
    """Replace the head by what a step makes of it, and again on top of every other swap that came first.

    A step returns None where nothing is to be done. Returns the state now, and whether this call made it.
    """
    for attempt in range(_COMMIT_ATTEMPTS):
        current, data, version = _current(storage, head)
        changed = step(current, data)
        if changed is None:
            assert current is not None
            return current, False
        try:
            storage.replace(head.name, changed.to_json(), version)
        except CommitConflict:
            logger.info("%s: another commit came first, trying again on top of it", storage.url)
            time.sleep(random.uniform(0, 0.05 * 2 ** min(attempt, 6)))
            continue
        return changed, True
    raise CommitConflict(
        f"{storage.url}: {_COMMIT_ATTEMPTS} commits in a row lost the race against other writers; run again"
    )


def _current(storage: Storage, head: Head[S]) -> tuple[S | None, bytes, str | None]:
    try:
        data, version = storage.read_versioned(head.name)
    except FileNotFoundError:
        return None, b"", None
    return head.parse(data, f"{storage.url}/{head.name}"), data, version
