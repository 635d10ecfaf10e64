"""The commits of a store, as far back as its generations are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from zarr_core._util.documents import describe_problems
from zarr_core.errors import ManifestError, StoreError
from zarr_core.storage import Storage, StoredObject
from zarr_core.versioning.archive import documents, read_commit
from zarr_core.versioning.generations import Change, Head, S, load

_CHANGES = TypeAdapter(list[Change])


@dataclass(frozen=True)
class Commit:
    """The commit that made a generation.

    Attributes:
        committed: time in seconds since 1970: modification time of the archived generation.
        since: the generation that it is compared with: the newest kept one before it, or None.
        changes: differences from ``since``; empty if all earlier generations have been collected.
    """

    generation: int
    committed: float
    since: int | None
    tags: tuple[str, ...]
    changes: list[Change]


def commits(storage: Storage, head: Head[S]) -> Iterator[Commit]:
    """The commits of a store, newest first. At most two states are in memory at a time.

    What a commit changed is read from its archive if that records it, and found by a comparison of two states if not.
    """
    current = loaded = load(storage, head)
    archives = documents(storage)
    times = {number: found.modified for number, found in archives.items()}
    if current.generation not in times:  # its committer died before it archived it
        times[current.generation] = next(storage.objects(head.name)).modified
    numbers = sorted((number for number in times if number <= current.generation), reverse=True)
    while numbers:
        number, *earlier = numbers
        since = earlier[0] if earlier else None
        tags = tuple(sorted(tag for tag, named in current.retention.tags.items() if named == number))
        try:
            changes = recorded_changes(storage, archives[number], since or 0) if number in archives else None
            if changes is None and (since is not None or number <= 1):
                after = loaded if loaded.generation == number else load(storage, head, number)
                before = None if since is None else load(storage, head, since)
                changes = head.changes(before, after)
                loaded = before or after
        except (FileNotFoundError, StoreError):
            kept = {*documents(storage), current.generation}
            if kept.issuperset(numbers):
                raise
            numbers = [number for number in numbers if number in kept]  # the others have been collected meanwhile
            continue
        numbers = earlier
        yield Commit(number, times[number], since, tags, changes or [])


def recorded_changes(storage: Storage, archive: StoredObject, since: int) -> list[Change] | None:
    """The changes that an archive records; None without any, or if they are not those since a given generation."""
    record = read_commit(storage, archive)
    if record.get("since") != since:
        return None
    try:
        return _CHANGES.validate_python(record.get("changes"))
    except ValidationError as error:
        raise ManifestError(f"{storage.url}/{archive.name} is damaged: {describe_problems(error)}") from error


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
