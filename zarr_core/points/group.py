"""A sample's group as objects: which objects belong to it, and whether all of them are there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zarr_core._util.documents import parse_json
from zarr_core.storage import Storage

SAMPLES = "samples"
ATTRIBUTES_KEY = "zarr_core"

# What a conversion writes in a group. A sample id may hold slashes, so the group is what is left of the longest match.
_GROUP = re.compile(
    r"(samples/.+/[0-9a-f]{16})/"
    r"(?:zarr\.json|quarantine\.json|\w+/zarr\.json|\w+/\w+/zarr\.json|\w+/\w+/c/\d+/\d+)"
)


def group_of(name: str) -> str | None:
    """The group that an object is part of; None for one that no conversion writes."""
    found = _GROUP.fullmatch(name)
    return found[1] if found else None


def is_whole(storage: Storage, relpath: str, group: Mapping[str, Any] | None = None) -> bool:
    """Whether a finished group has all its bytes.

    ``zarr.json`` is written last, but a power cut may keep it and lose a shard that was written before.

    Args:
        storage: the store.
        relpath: of the group.
        group: its ``zarr.json``, which is read where None.
    """
    try:
        document = group or parse_json(storage.read(f"{relpath}/zarr.json"))
        attributes = document.get("attributes", {}).get(ATTRIBUTES_KEY)
        if attributes is None:  # a copy of a sample that another program wrote, which records no sizes
            return True
        recorded = sum(attributes["stored_bytes"].values())
    except (FileNotFoundError, ValueError, AttributeError, KeyError, TypeError):
        return False
    sizes = storage.list(relpath)
    return bool(recorded == sum(size for name, size in sizes.items() if "/c/" in name[len(relpath) :]))
