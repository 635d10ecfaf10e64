"""What each commit of a store did, newest first: ``python -m zarr_core.log STORE``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice

from zarr_core._util.command_line import exit_status
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.generations import Change
from zarr_core.versioning.history import Commit, commits

_NAMES_SHOWN = 5


def format_commit(commit: Commit, *, everything: bool = False) -> Iterator[str]:
    """Lines that tell a commit."""
    when = datetime.fromtimestamp(commit.committed, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    tags = f"  tags: {', '.join(commit.tags)}" if commit.tags else ""
    yield f"generation {commit.generation}  {when}{tags}"
    if commit.since is None and commit.generation > 1:
        yield "  the generations before it have been collected"
    elif commit.since is not None and commit.since != commit.generation - 1:
        yield f"  since generation {commit.since}; those between have been collected"
    for change in commit.changes:
        yield f"  {format_change(change, everything=everything)}"


def format_change(change: Change, *, everything: bool = False) -> str:
    """A change on one line, with the first few names or all of them."""
    if not change.names:
        return f"{change.what}: {change.note}"
    shown = change.names if everything else change.names[:_NAMES_SHOWN]
    more = "" if len(shown) == len(change.names) else ", ..."
    note = f" ({change.note})" if change.note else ""
    return f"{change.what} {len(change.names):,}: {', '.join(shown)}{more}{note}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m zarr_core.log", description=__doc__)
    parser.add_argument("store", metavar="STORE", help="path or URL of the store")
    parser.add_argument("--limit", type=int, metavar="N", help="only the last N commits")
    parser.add_argument("--all", action="store_true", help="name every sample, not the first few")
    options = parser.parse_args(arguments)

    def work() -> int:
        storage = Storage(options.store)
        for commit in islice(commits(storage, find_head(storage)), options.limit):
            print("\n".join(format_commit(commit, everything=options.all)))
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
