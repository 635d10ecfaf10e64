"""Commit a change of a matrix, unless what it is based on has changed."""

from __future__ import annotations

from collections.abc import Callable

from zarr_core.matrix.store.state import HEAD, MatrixState
from zarr_core.storage import Storage
from zarr_core.versioning import generations


def commit(
    storage: Storage, since: MatrixState, change: Callable[[MatrixState], MatrixState | None]
) -> MatrixState | None:
    """Commit the next state of a matrix.

    Args:
        storage: root of the matrix.
        since: the state that the change is based on.
        change: makes the next state from the current one; again for a newer one if another commit came first. Returns
            its argument if nothing is to be committed, and None if other commits changed what it is based on.

    Returns:
        The committed or unchanged state; None if the change returned None.

    Raises:
        StoreError: the matrix was deleted or replaced.
    """
    results: list[MatrixState | None] = []

    def step(current: MatrixState | None) -> MatrixState:
        assert current is not None
        changed = change(current)
        results.append(changed)
        return current if changed is None else changed

    committed = generations.commit(storage, HEAD, step, since)
    return None if results[-1] is None else committed
