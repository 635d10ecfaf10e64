"""Commits that give up if what they are based on has changed."""

from __future__ import annotations

from collections.abc import Callable

from zarr_core.matrix.store.state import HEAD, MatrixState
from zarr_core.storage import Storage
from zarr_core.versioning import generations


def commit(
    storage: Storage, since: MatrixState, change: Callable[[MatrixState], MatrixState | None]
) -> MatrixState | None:
    """Commit the next state of a matrix, and return it; None if the change returned None.

    Args:
        storage, since: the matrix, and the state that the change is based on.
        change: as for ``generations.commit``; returns None if other commits changed what it is based on.
    """
    results: list[MatrixState | None] = []

    def step(current: MatrixState | None) -> MatrixState:
        assert current is not None
        changed = change(current)
        results.append(changed)
        return current if changed is None else changed

    committed = generations.commit(storage, HEAD, step, since)
    return None if results[-1] is None else committed
