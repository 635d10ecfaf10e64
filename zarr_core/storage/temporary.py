"""Names of temporary files: ``.<final name>.<32 hex digits>.tmp``, in the folder of the final object."""

from __future__ import annotations

import re
import uuid

_TEMPORARY = re.compile(r"\.([^/]+)\.[0-9a-f]{32}\.tmp")


def add_temp_suffix(name: str) -> str:
    """A temporary name, new at each call, for the object that is to be called ``name`` in the end."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}.{last}.{uuid.uuid4().hex}.tmp"


def strip_temp_suffix(name: str) -> tuple[str, bool]:
    """Split a temporary name: (final object name, True), or (name, False) for any other name."""
    folder, slash, last = name.rpartition("/")
    found = _TEMPORARY.fullmatch(last)
    return (f"{folder}{slash}{found[1]}", True) if found else (name, False)
