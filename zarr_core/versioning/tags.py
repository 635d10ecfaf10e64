"""Tags: names of generations. A tagged generation is never collected.

Readers accept a tag wherever they accept a number. A tag is never moved: delete it and create it again to name another
generation.
"""

from __future__ import annotations

import re
from dataclasses import replace

from zarr_core.errors import StoreError
from zarr_core.storage import Storage
from zarr_core.versioning.archive import generation_name
from zarr_core.versioning.generations import Head, Retention, S, amend, load, tagged_generation

# A letter first, so that no tag can be mistaken for a number.
_TAG = re.compile(r"[A-Za-z][\w.+-]{0,99}")


def make_tag(storage: Storage, head: Head[S], tag: str, generation: int | None = None) -> int:
    """Tag a generation, the current one by default; returns its number.

    Raises:
        StoreError: the tag already names another generation or is not a valid name, or the generation does not exist.
    """
    if not _TAG.fullmatch(tag):
        raise StoreError(f"tag {tag!r}: use a letter, then letters, digits and _.+-, at most 100 characters")

    def change(current: S) -> Retention:
        number = current.generation if generation is None else generation
        already = current.retention.tags.get(tag, number)
        if already != number:
            raise StoreError(f"{storage.url}: tag {tag!r} names generation {already}; delete it to use the name again")
        if number != current.generation:
            needed = [generation_name(number), *head.named(load(storage, head, number))]
            if any(map(current.retention.is_tombstoned, needed)):
                raise StoreError(f"{storage.url}: generation {number} is being collected and can no longer be kept")
        return replace(current.retention, tags={**current.retention.tags, tag: number})

    return amend(storage, head, change).retention.tags[tag]


def delete_tag(storage: Storage, head: Head[S], tag: str) -> int:
    """Delete a tag; returns the number of its generation. Raises StoreError if there is no such tag."""
    generation = tagged_generation(storage, load(storage, head), tag)

    def change(current: S) -> Retention:
        tags = {name: number for name, number in current.retention.tags.items() if name != tag}
        return replace(current.retention, tags=tags)

    amend(storage, head, change)
    return generation
