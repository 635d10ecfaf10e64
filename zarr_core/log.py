"""List the commits of a store, newest first: ``zarr-core log STORE``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

from zarr_core._util import command_line as cli
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.generations import Change
from zarr_core.versioning.history import Commit, commits

_NAMES_SHOWN = 5

app = cli.verb(
    "log",
    """
zarr-core log /data/store
zarr-core log s3://bucket/store --limit 3 --all
zarr-core log /data/store --json | jq '.commits[0].generation'
""",
)


@app.default
def _command(
    store: cli.Store,
    *,
    limit: Annotated[int | None, cli.number("At most the last N commits.")] = None,
    all: cli.All = False,
    json: cli.Json = False,
) -> int:
    storage = Storage(store)
    found = islice(commits(storage, find_head(storage)), limit)
    if json:
        cli.print_json({"store": storage.url, "commits": list(found)})
        return cli.DONE
    for commit in found:
        if not cli.write_line("\n".join(format_commit(commit, everything=all))):
            break
    return cli.DONE


def format_commit(commit: Commit, *, everything: bool = False) -> Iterator[str]:
    """Lines that describe a commit."""
    tags = f"  tags: {', '.join(commit.tags)}" if commit.tags else ""
    yield f"generation {commit.generation}  {cli.format_time(commit.committed)}{tags}"
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


main = cli.program(app, __name__)
