"""Misspelt names of settings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: "; did you mean 'chunk_points'?", or "" if none is like it."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
