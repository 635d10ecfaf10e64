"""Who writes where: rows are claimed before they are written, and a claim is never given back.

Claims form a chain: each is an object that is created only if it is not there yet, named by the first shard that it
takes and saying where the next claim begins. So no two writers ever have the same shard, however slow, dead or repeated
they are. A claim whose writer died leaves rows that no commit will ever name; they cost nothing but their numbers.
"""

from __future__ import annotations

import json

from zarr_core.errors import ManifestError
from zarr_core.storage import Storage

CLAIMS = "claims"


def claim(storage: Storage, array: str, start: int, count: int, purpose: str) -> int:
    """Take ``count`` consecutive shards of an array for good.

    Args:
        storage: the matrix.
        array: which copy, "rows" or "columns".
        start: where to look first: the end of some earlier claim.
        count: how many.
        purpose: what for, so that people can see whose rows were left unused.

    Returns:
        The first of them.
    """
    while True:
        name = f"{CLAIMS}/{array}/{start:08d}.json"
        document = {"end": start + count, "purpose": purpose}
        if storage.create(name, json.dumps(document).encode()):
            return start
        try:
            end = json.loads(storage.read(name))["end"]
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{storage.url}/{name} is damaged: {error!r}") from error
        if not isinstance(end, int) or end <= start:
            raise ManifestError(f"{storage.url}/{name} is damaged: it ends at {end!r}")
        start = end
