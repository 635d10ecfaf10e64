"""Show the differences between two generations of a store: ``zarr-core diff STORE BEFORE AFTER``."""

from __future__ import annotations

from typing import Annotated

from zarr_core._util import command_line as cli
from zarr_core.log import format_change
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.generations import load

app = cli.verb(
    "diff",
    """
zarr-core diff /data/store 3 7
zarr-core diff s3://bucket/store paper-v2
zarr-core diff /data/store 3 --all
""",
    usage="STORE BEFORE [AFTER] [OPTIONS]",
)


@app.default
@cli.command(quiet=False)
def _command(
    store: cli.Store,
    before: Annotated[int | str, cli.generation_parameter("A generation: a number or a tag.")],
    after: Annotated[int | str | None, cli.generation_parameter("Another one. [default: the current one]")] = None,
    *,
    all: cli.All = False,
) -> cli.Result:
    storage = Storage(store)
    head = find_head(storage)
    old, new = load(storage, head, before), load(storage, head, after)
    changes = head.changes(old, new)
    document = {
        "store": storage.url,
        "before": old.generation,
        "after": new.generation,
        "changes": changes,
    }
    lines = [format_change(change, everything=all) for change in changes]
    same = f"no changes between generations {old.generation} and {new.generation}"
    return cli.Result("\n".join(lines) or same, document)


main = cli.program(app, __name__)
