"""Short digests of texts, as versions of what they describe."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def short_digest(parts: Iterable[str]) -> str:
    """The first 16 hex digits of the SHA-256 of some strings, joined by newlines."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
