"""The arrays' ``zarr.json``, which other Zarr readers open. This library reads ``HEAD.json`` alone.

An array is announced with as many rows as were claimed so far. Announcing room for all rows that a matrix may ever get
would make other readers plan millions of chunks that do not exist.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from zarr_core._util.documents import expect, parse_json
from zarr_core.errors import CommitConflict
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.matrix.store.copies import ChunkLayout, Copy
from zarr_core.storage import Storage

# In the attributes: where the samples of the rows are recorded. Arrays of earlier versions, announced with all the
# rows that they may ever get, lack it.
_HEAD = {"head": "../HEAD.json"}
_ATTEMPTS = 50


def announce(storage: Storage, copy: Copy, end: int = 0) -> None:
    """Make the arrays of a copy at least ``end`` samples long, and create them if they do not exist.

    Writers call this after they have claimed their rows and before they commit them, so a committed row is never
    beyond the end of its array. An array that this library describes never gets shorter. The committed samples of the
    copy are always announced.
    """
    end = max(end, copy.end)

    def change(layout: ChunkLayout, data: bytes) -> bytes | None:
        announced = announced_rows(layout, data)
        if announced is not None and announced >= end:
            return None
        return json.dumps(array_metadata(layout, end), indent=1).encode()

    for value, layout in copy.layouts.items():
        update_object(storage, f"{copy.path(value)}/{ZARR_JSON}", partial(change, layout))


def array_metadata(layout: ChunkLayout, rows: int) -> dict[str, Any]:
    """The ``zarr.json`` of an array that declares this number of rows."""
    shape = list(layout.shape)
    shape[layout.sample_axis] = rows
    return layout.to_zarr_json() | {"shape": shape, "attributes": _HEAD}


def announced_rows(layout: ChunkLayout, data: bytes) -> int | None:
    """The rows that a ``zarr.json`` announces; None if :func:`array_metadata` did not make it."""
    along = layout.sample_axis
    try:
        found = parse_json(data)
        rows = expect(int, expect(list, expect(dict, found, "metadata").get("shape"), "shape")[along], "rows")
    except (ValueError, IndexError):
        return None
    return rows if 0 <= rows <= layout.shape[along] and found == array_metadata(layout, rows) else None


def update_object(storage: Storage, name: str, change: Callable[[bytes], bytes | None]) -> None:
    """Replace the bytes of a small object; repeated on newer bytes if another writer came first.

    ``change`` makes the new bytes from the present ones (b"" if there is no object); None leaves the object alone.

    Raises:
        CommitConflict: other writers kept coming first.
    """
    for attempt in range(_ATTEMPTS):
        try:
            data, version = storage.read_versioned(name)
        except FileNotFoundError:
            data, version = b"", None
        changed = change(data)
        if changed is None:
            return
        try:
            storage.replace(name, changed, version)
        except CommitConflict:
            time.sleep(random.uniform(0, 0.02 * 2 ** min(attempt, 6)))
        else:
            return
    raise CommitConflict(f"{storage.url}/{name}: {_ATTEMPTS} changes in a row were overtaken by other writers")
