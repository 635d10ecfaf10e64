"""What a writer of samples does before its commit: it claims a place, announces its rows and creates the shards.

A shard is written only at a place that its writer has claimed. Claims form a chain. Each claim is an object that is
created only if it does not exist. It is named by the first shard that it takes, and records the start of the next
claim. A claim is never given back, so no two writers ever own the same shard. If a writer dies, its claim leaves rows
that no commit names; they cost nothing but their numbers.

Rows are announced in the arrays' ``zarr.json``, which other Zarr readers open; this library reads ``HEAD.json`` alone.
An array is announced with as many rows as were claimed so far. Announcing room for all rows that a matrix may ever get
would make other readers plan millions of chunks that do not exist.
"""

from __future__ import annotations

import io
import json
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from zarr_core._util.documents import expect, parse_json
from zarr_core.errors import CommitConflict, ManifestError, MatrixError, StoreError
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.matrix.store.copies import ChunkLayout, Copy
from zarr_core.matrix.store.state import MAX_LENGTH, MatrixState
from zarr_core.storage import Storage, is_local

CLAIMS = "claims"
# In the attributes: where the samples of the rows are recorded. Arrays of earlier versions, announced with all the
# rows that they may ever get, lack it.
_HEAD = {"head": "../HEAD.json"}
_ATTEMPTS = 50


def claim(storage: Storage, copy: str, start: int, count: int, purpose: str, limit: int = MAX_LENGTH) -> int:
    """Take ``count`` consecutive shards permanently, in the arrays of all value tables; returns the first one's number.

    Takes nothing if they would end after ``limit``, and returns where they would begin: room that is too small for them
    stays free for fewer.

    Args:
        copy: "rows" (row-major) or "columns" (column-major).
        start: first candidate: the end of an earlier claim, or 0.
        purpose: recorded in the claim, to explain unused rows.
        limit: number of shards that there is room for.
    """
    # Storage.create treats an object with equal bytes as its own, so the claims of two writers must differ.
    writer = uuid.uuid4().hex
    while start + count <= limit:
        name = f"{CLAIMS}/{copy}/{start:08d}.json"
        document = {"end": start + count, "purpose": purpose, "writer": writer}
        if storage.create(name, json.dumps(document).encode()):
            return start
        try:
            found = parse_json(storage.read(name))
        except ValueError as error:
            raise ManifestError(f"{storage.url}/{name} is damaged: {error}") from error
        end = found.get("end") if isinstance(found, dict) else None
        if type(end) is not int or not start < end <= MAX_LENGTH:
            raise ManifestError(f"{storage.url}/{name} is damaged: it ends at {end!r:.100}")
        start = end
    return start


def claim_shards(storage: Storage, state: MatrixState, copy: Copy, samples: int, purpose: str, way_out: str) -> int:
    """Claim the shards of a number of samples, behind all others of a copy; returns the number of the first.

    Raises:
        MatrixError: the copy is full; ``way_out`` says what to do then.
    """
    count = copy.shards_of(samples)
    if copy.name == "row-major":
        first = claim(storage, "rows", state.next_shard, count, purpose, state.max_shards)
    else:
        first = claim(storage, "columns", copy.shards_of(copy.end), count, purpose, state.max_shards)
    if first + count > state.max_shards:
        raise MatrixError(
            f"{storage.url}: the {copy.name} copy is full: it has room for {state.max_shards:,} shards of "
            f"{copy.shard_samples:,} samples. {way_out} (needed: {count:,}, taken by earlier writers: {first:,})"
        )
    return first


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


def create_shard(storage: Storage, name: str, pieces: Iterable[bytes]) -> int:
    """Write a shard at a claimed place; returns its size. Raises StoreError if it exists with other content.

    Memory: a piece on a local disk, elsewhere the shard.
    """
    sizes: list[int] = []

    def counted() -> Iterator[bytes]:
        for piece in pieces:
            sizes.append(len(piece))
            yield piece

    content: bytes | Iterator[bytes] = counted()
    if not is_local(storage.root):
        joined = io.BytesIO()  # b"".join would hold all pieces, too
        joined.writelines(counted())
        content = joined.getvalue()  # does not copy
    if not storage.create(name, content):
        raise StoreError(f"{storage.url}/{name} already exists with other content, although its place was claimed")
    return sum(sizes)


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
