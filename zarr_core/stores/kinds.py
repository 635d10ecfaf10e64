"""Kinds of stores, identified by the name of their head."""

from __future__ import annotations

from typing import Any

from zarr_core.matrix.store.head import HEAD as MATRIX
from zarr_core.points.store.head import HEAD as POINTS
from zarr_core.storage import Storage
from zarr_core.versioning.generations import Head, no_store

_HEADS: tuple[Head[Any], ...] = (POINTS, MATRIX)


def head_if_any(storage: Storage) -> Head[Any] | None:
    """The head of whatever store is at a root; None where there is none."""
    for head in _HEADS:
        if storage.exists(head.name):
            return head
    return None


def find_head(storage: Storage) -> Head[Any]:
    """The head of whatever store is at a root; raises StoreError where there is none."""
    head = head_if_any(storage)
    if head is not None:
        return head
    raise no_store(storage, " or ".join(head.name for head in _HEADS))
