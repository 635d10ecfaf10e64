"""Name a generation of a store, list the names, or delete one: ``python -m zarr_core.tag STORE``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from zarr_core._util.command_line import exit_status
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.generations import load
from zarr_core.versioning.tags import delete_tag, make_tag


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m zarr_core.tag", description=__doc__)
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
