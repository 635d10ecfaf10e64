"""States of a store: one mutable object that names everything, and the history of its states.

A store of any kind describes its content in one small document, its *head*: ``manifest.json`` of a point store,
``HEAD.json`` of a wide matrix. Everything else is written once. A commit replaces the head by compare-and-swap. Each
committed state stays as an immutable numbered *generation* until garbage collection (``versioning.gc``) removes it,
some time after it was replaced.

A :class:`Head` describes one kind of store; commits, tags, history and garbage collection are the same for all kinds.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field as DataclassField
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import Field

from zarr_core._util.arguments import whole_number
from zarr_core._util.cached import cached_property
from zarr_core._util.commands import shell
from zarr_core.errors import CollectedError, CommitConflict, ManifestError, StoreError
from zarr_core.format.object_names import spelled_alike
from zarr_core.storage import Storage
from zarr_core.versioning.archive import documents, find_archive, read_archive, write_archive

MAX_GENERATION = 99_999_999  # eight digits

_COMMIT_ATTEMPTS = 20
_Integer = Annotated[int, Field(strict=True)]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retention:
    """What to keep and what is pending deletion: the part of a head that belongs to no generation.

    Attributes:
        tags: generation by name; a tagged generation is never collected.
        tombstones: prefixes that are pending deletion or were deleted lately, with the time of that decision (seconds
            since 1970, the store's clock). No commit may name them. Stored under the key "condemned".
        collections: how often tombstones were added. It makes every such head unique, so that a compare-and-swap
            cannot mistake a later head for an earlier one.
    """

    tags: Mapping[str, _Integer] = field(default_factory=dict)
    tombstones: Annotated[Mapping[str, _Integer], Field(alias="condemned")] = field(default_factory=dict)
    collections: _Integer = 0

    def is_tombstoned(self, prefix: str) -> bool:
        """Whether a prefix is pending deletion, or was deleted lately, also under another spelling."""
        return spelled_alike(prefix) in self._spelled_alike

    @cached_property
    def _spelled_alike(self) -> frozenset[str]:
        return frozenset(map(spelled_alike, self.tombstones))

    def to_document(self) -> dict[str, Any]:
        """Value of a head's key "retention"; empty if there is nothing to record."""
        if self == Retention():
            return {}
        return {
            "tags": dict(sorted(self.tags.items())),
            "condemned": dict(sorted(self.tombstones.items())),
            "collections": self.collections,
        }


@dataclass(frozen=True)
class Change:
    """One thing that a commit did.

    Attributes:
        what: kind of change: "added", "replaced", "retired", "quarantined", "codec".
        names: samples (or batches) that changed.
        note: details, as in "zstd:3 -> blosc-lz4:5".
    """

    what: str
    names: tuple[str, ...] = ()
    note: str = ""


class State(Protocol):
    """Interface of a store's state: a frozen dataclass with these fields and those of its kind."""

    __dataclass_fields__: ClassVar[dict[str, DataclassField[Any]]]

    @property
    def generation(self) -> int:
        """Number of commits so far; 0 if another program wrote the store."""

    @property
    def retention(self) -> Retention:
        """Retention of the head; empty in an archived generation."""

    def to_json(self) -> bytes:
        """The document. Equal states give equal bytes."""


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Head(Generic[S]):
    """The head of one kind of store: where it is, how to parse it, and which objects it names.

    A *prefix* is the name of an object or a folder of objects: "samples/a/0123" stands for itself and all below it.

    Attributes:
        name: of the head object.
        parse: makes the state from a document and the document's name for errors; raises ManifestError.
        roots: folders of the objects that commits name; garbage is collected there only.
        named: prefixes that a state names.
        owner: the prefix that an object below ``roots`` belongs to; None for an object that no writer of this kind of
            store makes, which is never collected.
        is_whole: whether everything below a prefix exists, judged by sizes.
        changes: differences of the second state from the first (None: the second is the store's first).
        extends: whether the second state may be the first one, or a later one of the same store by what they record.
            Of two states with the same number, what the first one names must be the same in the second one.
        others: folders of objects that no state names and that are never collected; temporary files in them are.
    """

    name: str
    parse: Callable[[bytes, str], S]
    roots: Callable[[S], Iterable[str]]
    named: Callable[[S], Iterable[str]]
    owner: Callable[[str], str | None]
    is_whole: Callable[[Storage, str], bool]
    changes: Callable[[S | None, S], list[Change]]
    extends: Callable[[S, S], bool]
    others: tuple[str, ...] = ()


def load(storage: Storage, head: Head[S], generation: int | str | None = None) -> S:
    """A state of a store: the current one, an earlier generation, or a tagged one.

    Raises:
        StoreError: there is no store, no such tag, no such generation, or it has been collected; or ``generation`` is
            neither a number nor a tag.
        ManifestError: the state cannot be read.
    """
    try:
        state = head.parse(storage.read(head.name), f"{storage.url}/{head.name}")
    except FileNotFoundError as error:
        raise no_store(storage, head.name) from error
    if generation is None:
        return state
    if isinstance(generation, str):
        if generation.isdecimal():  # a tag begins with a letter
            raise StoreError(
                f"generation={generation!r} is a string; for a generation by number pass {int(generation)}"
            )
        generation = tagged_generation(storage, state, generation)
    generation = whole_number("generation", generation, error=StoreError)
    found = find_generation(storage, head, state, generation)
    if found is None:
        reason = f"the current one is {state.generation}"
        if 0 < generation < state.generation:
            reason += "; it was replaced and has been collected (a tag would have kept it)"
        reason += f"; `{shell('log', storage.url)}` lists them"
        raise StoreError(f"{storage.url} has no generation {generation}; {reason}")
    return found


def no_store(storage: Storage, names: str) -> StoreError:
    """The error of a location that holds no head of these names."""
    verbs = f"`{shell('convert', '--help')}` and `{shell('matrix', 'create', '--help')}`"
    reason = f"is it the root of a store? {verbs} tell how to make one"
    try:
        storage.check_bucket()
    except StoreError as error:
        reason = str(error).removeprefix(f"{storage.url}: ")
    return StoreError(f"{storage.url} holds no {names}; {reason}")


def load_same(storage: Storage, head: Head[S], known: S) -> S:
    """The current state of the store that ``known`` is a state of; raises StoreError if it was deleted or replaced."""
    try:
        current: S | None = load(storage, head)
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        current = None
    return _check_same(storage, head, known, current)


def _check_same(storage: Storage, head: Head[S], known: S, current: S | None) -> S:
    """The current state; raises StoreError unless it is ``known``, or follows it in the history of the store.

    A generation that has been collected cannot be compared. But the numbers of a store only grow.
    """
    opened = f"{storage.url}: the store that was opened here at generation {known.generation}"
    if current is None:
        raise StoreError(f"{opened} was deleted or moved; open it where it is now, or create it again")
    then = find_generation(storage, head, current, known.generation)
    if then is None and current.generation > known.generation:
        then = current
    if then is None or not head.extends(known, then):
        raise StoreError(f"{opened} was replaced by another one; open it again, and repeat what was in progress")
    return current


def find_generation(storage: Storage, head: Head[S], current: S, generation: int) -> S | None:
    """A generation of the store whose current state is given; None if it is not archived, or was collected."""
    if generation == current.generation:
        return current
    try:
        name, data = read_archive(storage, generation)
    except FileNotFoundError:
        return None
    return head.parse(data, f"{storage.url}/{name}")


def check_kept(storage: Storage, head: Head[S], known: S, error: Exception) -> None:
    """Raise StoreError if objects of an open state are missing or damaged because the store was replaced or collected.

    ``error`` is that of the read that failed.
    """
    try:
        load_same(storage, head, known)
        load(storage, head, known.generation)
    except StoreError as reason:
        raise reason from error


def tagged_generation(storage: Storage, state: State, tag: str) -> int:
    """The generation that a tag names; raises StoreError."""
    tags = state.retention.tags
    if tag not in tags:
        raise StoreError(f"{storage.url} has no tag {tag!r}; its tags are: {', '.join(sorted(tags)) or 'none'}")
    return tags[tag]


def commit(storage: Storage, head: Head[S], change: Callable[[S | None], S], since: S | None = None) -> S:
    """Commit the next generation of a store; safe while others commit or collect garbage.

    Args:
        storage, head: the store.
        change: makes the next state from the current one (None: there is no store yet). It runs again on the newer
            state when another commit came first, so it must only add its own changes. Its generation and retention do
            not matter. If nothing else differs, nothing is committed.
        since: an earlier state, which the change is based on.

    Returns:
        The committed state, or the current one if nothing changed.

    Raises:
        CommitConflict: other writers kept committing first.
        CollectedError: the change names something deleted or pending deletion; nothing is committed.
        StoreError: the location cannot compare and swap, no reader could open the new state, or the store of ``since``
            was deleted or replaced by another one.
    """

    def step(current: S | None, data: bytes, overtaken: bool) -> S | None:
        if since is not None:
            _check_same(storage, head, since, current)
        changed = change(current)
        if current is None:
            storage.sync()
            return replace(changed, generation=_next_number(storage, 0, overtaken), retention=Retention())
        changed = replace(changed, generation=current.generation, retention=current.retention)
        if changed == current:
            return None
        _check_named(storage, head, current, changed)
        # Archive the state about to be replaced: its own committer may have died before it did so, and the head is
        # then the only copy.
        if find_archive(storage, current.generation) is None:
            write_archive(storage, current.generation, archived(current, data), None)
        storage.sync()
        return replace(changed, generation=_next_number(storage, current.generation, overtaken))

    before, committed, data = _swap(storage, head, step)
    if data is not None:

        def record() -> dict[str, Any]:
            changes = [asdict(change) for change in head.changes(before, committed)]
            return {"since": before.generation if before is not None else 0, "changes": changes}

        write_archive(storage, committed.generation, archived(committed, data), record)
    return committed


def amend(storage: Storage, head: Head[S], change: Callable[[S], Retention]) -> S:
    """Change the retention of a store. That makes no generation and changes nothing for readers.

    ``change`` makes the next retention from the current state, and may run again as in :func:`commit`. Raises what
    that raises, and StoreError where another program wrote the store.
    """

    def step(current: S | None, data: bytes, overtaken: bool) -> S | None:
        if current is None:
            raise no_store(storage, head.name)
        if not current.generation:
            raise StoreError(f"{storage.url} was written by another program and has no generations to keep or collect")
        retention = change(current)
        return None if retention == current.retention else replace(current, retention=retention)

    return _swap(storage, head, step)[1]


def archived(state: State, data: bytes) -> bytes:
    """The archived document of a state, given the document of the head."""
    return replace(state, retention=Retention()).to_json() if state.retention != Retention() else data


def archive_problem(storage: Storage, head: Head[S], state: S) -> str:
    """What is wrong with the archive of the current state, or "": it must hold the same state.

    It may be missing: its committer has not archived it yet, and if it died, the next commit does.
    """
    try:
        name, data = read_archive(storage, state.generation)
        same = head.parse(data, name) == replace(state, retention=Retention())
    except FileNotFoundError:
        return ""
    except ManifestError as error:
        return str(error)
    return "" if same else f"{name} is not equal to {head.name}"


def _next_number(storage: Storage, current: int, overtaken: bool) -> int:
    """Number of the generation after the current one (0: there is no head).

    No number is given twice: if the head was deleted, or restored from a backup, later generations are still archived.
    ``overtaken`` is whether another writer has just committed the current one, and has looked for later ones.
    """
    if overtaken:
        return current + 1
    try:
        archives = documents(storage)
    except FileNotFoundError:  # there is no such bucket, which the write that follows says
        archives = {}
    return max([current, *archives]) + 1


def _check_named(storage: Storage, head: Head[S], current: S, changed: S) -> None:
    """Raise CollectedError if the change newly names something deleted or pending deletion.

    A prefix tombstoned before ``current`` was read is in its list, or already deleted and therefore not whole. A later
    tombstone replaces the head, so that this commit runs again.
    """
    if not current.retention.collections:
        return
    added = sorted(set(head.named(changed)) - set(head.named(current)))
    pending = current.retention.is_tombstoned
    gone = tuple(name for name in added if pending(name) or not head.is_whole(storage, name))
    if gone:
        raise CollectedError(storage.url, gone)


def _swap(
    storage: Storage, head: Head[S], step: Callable[[S | None, bytes, bool], S | None]
) -> tuple[S | None, S, bytes | None]:
    """Replace the head by the result of a step; repeat on the newer head whenever another writer came first.

    The step gets the current state, its document, and whether another writer has just committed it. It returns None if
    there is nothing to do. Returns the state before, the state now, and its document if this call wrote it.
    """
    last: int | None = None
    tried: tuple[S | None, S, bytes] | None = None
    for attempt in range(_COMMIT_ATTEMPTS):
        current: S | None = None
        version: str | None = None
        document = b""
        with contextlib.suppress(FileNotFoundError):
            document, version = storage.read_versioned(head.name)
            current = head.parse(document, f"{storage.url}/{head.name}")
        number = current.generation if current is not None else 0
        if tried is not None and _has_become(storage, head, tried[1], current):
            return tried
        changed = step(current, document, last is not None and last != number)
        last = number
        if changed is None:
            assert current is not None
            return current, current, None
        data = changed.to_json()
        _check_readable(storage, head, data)
        try:
            storage.replace(head.name, data, version)
        except CommitConflict:
            logger.info("%s: another commit came first; repeating on top of it", storage.url)
            time.sleep(random.uniform(0, 0.05 * 2 ** min(attempt, 6)))
            tried = (current, changed, data) if changed.generation != number else None
            continue
        return current, changed, data
    raise CommitConflict(f"{storage.url}: {_COMMIT_ATTEMPTS} commits in a row lost to other writers; run again")


def _has_become(storage: Storage, head: Head[S], tried: S, current: S | None) -> bool:
    """Whether a state that this process tried to commit is one of the store.

    If the response to its write was lost, and others have changed the head since, it looks as if they came first. But
    they have archived it.
    """
    if current is None or current.generation < tried.generation:
        return False
    then = find_generation(storage, head, current, tried.generation)
    return then is not None and replace(then, retention=Retention()) == replace(tried, retention=Retention())


def _check_readable(storage: Storage, head: Head[S], data: bytes) -> None:
    """Raise StoreError unless readers can parse a new head, and nothing of it gets lost."""
    try:
        same = head.parse(data, head.name).to_json() == data
    except ManifestError as error:
        raise StoreError(f"{storage.url}: nothing was committed, because no reader could open it: {error}") from error
    if not same:
        raise StoreError(f"{storage.url}: nothing was committed, because {head.name} would be read as another state")
