"""Create objects of a matrix exactly once. A shard is written only at a place that its writer has claimed.

Claims form a chain. Each claim is an object that is created only if it does not exist. It is named by the first shard
that it takes, and records the start of the next claim. A claim is never given back, so no two writers ever own the same
shard. If a writer dies, its claim leaves rows that no commit names; they cost nothing but their numbers.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterable, Iterator

from zarr_core._util.documents import parse_json
from zarr_core.errors import ManifestError, MatrixError, StoreError
from zarr_core.matrix.store.copies import Copy
from zarr_core.matrix.store.state import MAX_LENGTH, MatrixState
from zarr_core.storage import Storage, is_local

CLAIMS = "claims"


def claim(storage: Storage, copy: str, start: int, count: int, purpose: str) -> int:
    """Take ``count`` consecutive shards permanently, in the arrays of all value tables; returns the first one's number.

    Args:
        copy: "rows" (row-major) or "columns" (column-major).
        start: first candidate: the end of an earlier claim, or 0.
        purpose: recorded in the claim, to explain unused rows.
    """
    # Storage.create treats an object with equal bytes as its own, so the claims of two writers must differ.
    writer = uuid.uuid4().hex
    while True:
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


def claim_shards(storage: Storage, state: MatrixState, copy: Copy, samples: int, purpose: str, way_out: str) -> int:
    """Claim the shards of a number of samples, behind all others of a copy; returns the number of the first.

    Raises:
        MatrixError: the copy is full; ``way_out`` says what to do then.
    """
    count = copy.shards_of(samples)
    if copy.name == "row-major":
        first = claim(storage, "rows", state.next_shard, count, purpose)
    else:
        first = claim(storage, "columns", copy.shards_of(copy.end), count, purpose)
    if first + count > state.max_shards:
        raise MatrixError(
            f"{storage.url}: the {copy.name} copy is full: it has room for {state.max_shards:,} shards of "
            f"{copy.shard_samples:,} samples. {way_out} (needed: {count:,}, taken by earlier writers: {first:,})"
        )
    return first


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
