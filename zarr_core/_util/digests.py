"""Digests of texts and of plain values, as versions of what they describe."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any


def short_digest(parts: Iterable[str]) -> str:
    """The first 16 hex digits of the SHA-256 of some strings, joined by newlines."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def json_digest(content: Any) -> str:
    """The SHA-256 of plain values, in hex digits; the order of the keys of a mapping does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
