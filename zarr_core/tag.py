"""Name a generation of a store, list the names, or delete one: ``zarr-core tag STORE NAME``."""

from __future__ import annotations

from typing import Annotated

from zarr_core._util import command_line as cli
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.generations import load
from zarr_core.versioning.tags import delete_tag, make_tag

app = cli.verb(
    "tag",
    """
zarr-core tag /data/store               # list the tags
zarr-core tag /data/store paper-v2      # name the latest generation
zarr-core tag /data/store paper-v2 7
zarr-core tag /data/store paper-v2 --delete
""",
    usage="STORE [NAME] [GENERATION] [OPTIONS]",
)


@app.default
@cli.command()
def _command(
    store: cli.Store,
    name: Annotated[str | None, cli.option("The tag. Without it, the tags are listed.")] = None,
    generation: Annotated[
        int | str | None,
        cli.generation_parameter("The generation to name: a number or tag. [default: the current one]"),
    ] = None,
    *,
    delete: Annotated[bool, cli.flag("Delete the tag.")] = False,
) -> cli.Result:
    if delete and (name is None or generation is not None):
        raise cli.WrongUseError("--delete needs the NAME of a tag, and no GENERATION")
    storage = Storage(store)
    head = find_head(storage)
    text = ""
    if name is not None and delete:
        text = f"generation {delete_tag(storage, head, name)} is no longer tagged {name}"
    elif name is not None:
        number = load(storage, head, generation).generation if isinstance(generation, str) else generation
        text = f"generation {make_tag(storage, head, name, number)} is tagged {name}"
    tags = dict(sorted(load(storage, head).retention.tags.items()))
    if name is None:
        text = "\n".join(f"{tag}\tgeneration {number}" for tag, number in tags.items())
    return cli.Result(text, {"store": storage.url, "tags": tags})


main = cli.program(app, __name__)
