"""What lies between two generations of a store: ``python -m zarr_core.diff STORE A B``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from zarr_core._util.command_line import exit_status, number_or_tag
from zarr_core.log import format_change
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.generations import load


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m zarr_core.diff", description=__doc__)
    parser.add_argument("store", metavar="STORE", help="path or URL of the store")
    parser.add_argument("before", type=number_or_tag, metavar="A", help="a generation, or its tag")
    parser.add_argument("after", type=number_or_tag, nargs="?", metavar="B", help="another; default: the current one")
    parser.add_argument("--all", action="store_true", help="name every sample, not the first few")
    options = parser.parse_args(arguments)

    def work() -> int:
        storage = Storage(options.store)
        head = find_head(storage)
        before, after = load(storage, head, options.before), load(storage, head, options.after)
        for change in head.changes(before, after):
            print(format_change(change, everything=options.all))
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
