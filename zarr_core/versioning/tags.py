"""Tags: names for generations, which are kept as long as they have one.

``zarr-core tag STORE paper-v2 12`` names generation 12; every reader takes the name where it takes a number.
A tag is never moved: delete it and make it again to name another generation.
"""

from __future__ import annotations

import re
from dataclasses import replace

from zarr_core.errors import StoreError
from zarr_core.storage import Storage
from zarr_core.versioning.generations import Head, Retention, S, amend, generation_name, load, tagged_generation

# A letter first, so that no tag can be mistaken for a number.
_TAG = re.compile(r"[A-Za-z][\w.+-]{0,99}")


def make_tag(storage: Storage, head: Head[S], tag: str, generation: int | None = None) -> int:
    """Name a generation, the current one by default, so that it is never collected; returns its number.

    Raises:
        StoreError: the tag names another one already or is no name, or there is no such generation (any more).
    """
    if not _TAG.fullmatch(tag):
        raise StoreError(f"tag {tag!r}: use a letter, then letters, digits and _.+-, a hundred at most")

    def change(current: S) -> Retention:
        number = current.generation if generation is None else generation
        already = current.retention.tags.get(tag, number)
        if already != number:
            raise StoreError(f"{storage.url}: tag {tag!r} names generation {already}; delete it to use the name again")
        if number != current.generation:
            _check_kept(storage, head, current, number)
        return replace(current.retention, tags={**current.retention.tags, tag: number})

    return amend(storage, head, change).retention.tags[tag]


def delete_tag(storage: Storage, head: Head[S], tag: str) -> int:
    """Let a generation go its way again; returns its number. Raises StoreError where there is no such tag."""
    found = 0

    def change(current: S) -> Retention:
        nonlocal found
        found = tagged_generation(storage, current, tag)
        tags = {name: number for name, number in current.retention.tags.items() if name != tag}
        return replace(current.retention, tags=tags)

    amend(storage, head, change)
    return found


def _check_kept(storage: Storage, head: Head[S], current: S, generation: int) -> None:
    """Raise StoreError where a generation is gone, or about to go: garbage collection condemns before it deletes."""
    state = load(storage, head, generation)
    if not current.retention.condemned.keys().isdisjoint([generation_name(generation), *head.named(state)]):
        raise StoreError(f"{storage.url}: generation {generation} is being collected and can no longer be kept")
