"""Tags: names for generations, which are kept as long as they have one.

``python -m zarr_core.tag STORE paper-v2 12`` names generation 12; every reader takes the name where it takes a number.
A tag is never moved: delete it and make it again to name another generation.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace

from zarr_core._util.command_line import exit_status
from zarr_core.errors import StoreError
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m zarr_core.tag", description=__doc__.splitlines()[0])
    parser.add_argument("store", metavar="STORE", help="path or URL of the store")
    parser.add_argument("tag", nargs="?", metavar="NAME", help="none: list the tags")
    parser.add_argument("generation", nargs="?", type=int, metavar="GENERATION", help="default: the current one")
    parser.add_argument("--delete", action="store_true", help="delete the tag")
    options = parser.parse_args(arguments)
    if options.delete and (options.tag is None or options.generation is not None):
        parser.error("--delete takes the NAME of a tag, and nothing else")

    def work() -> int:
        storage = Storage(options.store)
        head = find_head(storage)
        if options.tag is None:
            for tag, generation in sorted(load(storage, head).retention.tags.items()):
                print(f"{tag}\tgeneration {generation}")
        elif options.delete:
            print(f"generation {delete_tag(storage, head, options.tag)} is no longer tagged {options.tag}")
        else:
            print(f"generation {make_tag(storage, head, options.tag, options.generation)} is tagged {options.tag}")
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
