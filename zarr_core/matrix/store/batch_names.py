"""Names of batches and samples."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any

# What :func:`later_part` appends. Any other "@" belongs to the name of a batch.
_LATER = re.compile(r"(.+)@[0-9a-f]{12}", re.DOTALL)


def among(names: Iterable[str], chosen: Container[Any]) -> list[str]:
    """Those of the names that are chosen, in their order."""
    return [name for name in names if name in chosen]


def outside(names: Iterable[str], known: Container[Any]) -> list[str]:
    """Those of the names that are not known, in their order."""
    return [name for name in names if name not in known]


def is_name(text: object) -> bool:
    """Whether a batch or sample can have this name: a string that JSON can hold in UTF-8, and not empty."""
    if not isinstance(text, str) or not text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def later_part(batch_id: str, sample_ids: Sequence[str]) -> str:
    """Name of the batch that holds samples which joined a batch of the warehouse later: "<batch>@<digest>"."""
    digest = hashlib.sha256("\n".join(sample_ids).encode()).hexdigest()
    return f"{batch_id}@{digest[:12]}"


def home_of(batch_id: str, batch_ids: Collection[str]) -> str | None:
    """The one of the warehouse's batches that a batch of the matrix was loaded from; None if it is not among them."""
    if batch_id in batch_ids:
        return batch_id
    part = _LATER.fullmatch(batch_id)
    return part[1] if part and part[1] in batch_ids else None
