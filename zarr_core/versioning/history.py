"""The commits of a store, as far back as its generations are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from zarr_core.errors import ManifestError, StoreError
from zarr_core.storage import Storage
from zarr_core.versioning.generations import Change, Head, S, documents, load


@dataclass(frozen=True)
class Commit:
    """One commit.

    Attributes:
        generation: number of the generation that it made.
        committed: time in seconds since 1970: modification time of the archived generation.
        since: the generation that it is compared with: the newest kept one before it, or None.
        tags: tags of the generation.
        changes: differences from ``since``; empty if all earlier generations have been collected.
    """

    generation: int
    committed: float
    since: int | None
    tags: tuple[str, ...]
    changes: list[Change]


def commits(storage: Storage, head: Head[S]) -> Iterator[Commit]:
    """The commits of a store, newest first. Two states are in memory at a time."""
    after = current = load(storage, head)
    times = {number: found.modified for number, found in documents(storage).items()}
    if current.generation not in times:  # its committer died before it archived it
        times[current.generation] = next(storage.objects(head.name)).modified
    numbers = sorted((number for number in times if number <= current.generation), reverse=True)
    for number, since in zip(numbers, [*numbers[1:], None], strict=True):
        tags = tuple(sorted(tag for tag, named in current.retention.tags.items() if named == number))
        before = None if since is None else load(storage, head, since)
        known = before is not None or number <= 1
        yield Commit(number, times[number], since, tags, head.changes(before, after) if known else [])
        if before is not None:
            after = before


def brought_by(storage: Storage, head: Head[S], prefixes: Collection[str]) -> dict[str, int]:
    """By prefix: the first kept and readable generation that names it."""
    found: dict[str, int] = {}
    looked_for = set(prefixes)
    for number in sorted({*documents(storage), load(storage, head).generation}):
        if not looked_for:
            break
        with contextlib.suppress(ManifestError, StoreError):
            named = looked_for & set(head.named(load(storage, head, number)))
            found |= dict.fromkeys(named, number)
            looked_for -= named
    return found
