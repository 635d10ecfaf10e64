"""Writing shards: only once, and only at a place that was claimed.

Claims form a chain: each is an object that is created only if it is not there yet, named by the first shard that it
takes and saying where the next claim begins. A claim is never given back, so no two writers ever have the same shard,
however slow, dead or repeated they are. A claim whose writer died leaves rows that no commit will ever name; they cost
nothing but their numbers.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable

from zarr_core._util.documents import parse_json
from zarr_core.errors import ManifestError, StoreError
from zarr_core.matrix.state import MAX_LENGTH
from zarr_core.storage import Storage

CLAIMS = "claims"


def claim(storage: Storage, copy: str, start: int, count: int, purpose: str) -> int:
    """Take ``count`` consecutive shards for good, in the arrays of all value tables.

    Args:
        storage: the matrix.
        copy: of which copy, "rows" or "columns".
        start: where to look first: the end of some earlier claim, or 0.
        count: how many.
        purpose: what for, so that people can see whose rows were left unused.

    Returns:
        The first of them.
    """
    # To Storage.create an object with the same bytes is this call's own, so the claims of two writers must differ.
    writer = uuid.uuid4().hex
    while True:
        name = f"{CLAIMS}/{copy}/{start:08d}.json"
        document = {"end": start + count, "purpose": purpose, "writer": writer}
        if storage.create(name, json.dumps(document).encode()):
            return start
        try:
            end = parse_json(storage.read(name))["end"]
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{storage.url}/{name} is damaged: {error!r}") from error
        if type(end) is not int or not start < end <= MAX_LENGTH:
            raise ManifestError(f"{storage.url}/{name} is damaged: it ends at {end!r:.100}")
        start = end


def create_shard(storage: Storage, name: str, pieces: Iterable[bytes]) -> int:
    """Write a shard whose place is claimed, never over another; its bytes. Memory: the shard."""
    data = b"".join(pieces)
    # A service may have taken the bytes although its answer was lost; another try then finds them there.
    if not storage.create(name, data) and storage.read(name) != data:
        raise StoreError(f"{storage.url}/{name} is there already with other content, though its place was claimed")
    return len(data)
