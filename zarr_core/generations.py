"""States of a store: one mutable object that names everything, and every state that it ever had.

A store of any kind keeps what it holds in one small document, its *head*: ``manifest.json`` of points, ``HEAD.json`` of
a wide matrix. Everything else is written once. A commit swaps the head by compare-and-swap, and each committed state
stays as an immutable numbered generation.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from zarr_core.errors import CommitConflict, StoreError
from zarr_core.storage import Storage

MAX_GENERATION = 99_999_999  # eight digits

_COMMIT_ATTEMPTS = 20

logger = logging.getLogger(__name__)


class State(Protocol):
    """What a store holds: a frozen dataclass with these, and whatever else it is about."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def generation(self) -> int:
        """1 for a store's first commit, one more with each; 0 where another program wrote the store."""
        ...

    def to_json(self) -> bytes:
        """The document: the same state gives the same bytes."""
        ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Head(Generic[S]):
    """Where a kind of store keeps its state, and how to read it.

    Attributes:
        name: of the object.
        parse: the state from a document, and a name for it in errors; raises ManifestError.
    """

    name: str
    parse: Callable[[bytes, str], S]


def generation_name(generation: int) -> str:
    """Object that keeps a committed state for ever."""
    return f"generations/{generation:08d}.json"


def load(storage: Storage, head: Head[S], generation: int | None = None) -> S:
    """The state of a store: the current one, or one committed earlier.

    Raises:
        StoreError: there is no store, or no such generation.
        ManifestError: the state cannot be read.
    """
    try:
        state = head.parse(storage.read(head.name), f"{storage.url}/{head.name}")
    except FileNotFoundError as error:
        raise StoreError(f"{storage.url} holds no {head.name}; is it the root of a converted store?") from error
    if generation is None or generation == state.generation:
        return state
    name = generation_name(generation)
    try:
        return head.parse(storage.read(name), f"{storage.url}/{name}")
    except FileNotFoundError as error:
        raise StoreError(
            f"{storage.url} has no generation {generation}; the current one is {state.generation}"
        ) from error


def commit(storage: Storage, head: Head[S], change: Callable[[S | None], S]) -> S:
    """Make the next generation of a store, whoever else is committing.

    Args:
        storage: the store.
        head: of its kind.
        change: the next state from the current one (None: there is no store yet). It runs again on the newer state when
            another commit came first, so it must only add what it knows. Returning what it was given commits nothing.

    Returns:
        The state as committed, or the current one where nothing changed.

    Raises:
        CommitConflict: others kept committing first.
        StoreError: the location cannot compare and swap.
    """
    for attempt in range(_COMMIT_ATTEMPTS):
        current, data, version = _current(storage, head)
        changed = change(current)
        if changed is current:
            return changed
        committed = replace(changed, generation=(current.generation if current else 0) + 1)
        # The state about to be replaced is kept first: should its own committer have died before it did so, it is
        # still in the head now and would be lost a moment later.
        if current is not None:
            storage.create(generation_name(current.generation), data)
        storage.sync()
        try:
            storage.replace(head.name, committed.to_json(), version)
        except CommitConflict:
            logger.info("%s: another commit came first, trying again on top of it", storage.url)
            time.sleep(random.uniform(0, 0.05 * 2 ** min(attempt, 6)))
            continue
        storage.create(generation_name(committed.generation), committed.to_json())
        return committed
    raise CommitConflict(f"{storage.url}: {_COMMIT_ATTEMPTS} commits in a row lost the race against other writers")


def _current(storage: Storage, head: Head[S]) -> tuple[S | None, bytes, str | None]:
    try:
        data, version = storage.read_versioned(head.name)
    except FileNotFoundError:
        return None, b"", None
    return head.parse(data, f"{storage.url}/{head.name}"), data, version
