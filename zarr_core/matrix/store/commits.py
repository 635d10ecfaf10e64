"""Compare-and-swap: of the head of a matrix, and of small objects beside it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from zarr_core.errors import CommitConflict
from zarr_core.matrix.store.head import HEAD
from zarr_core.matrix.store.state import MatrixState
from zarr_core.storage import Storage
from zarr_core.versioning import generations

_ATTEMPTS = 50


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


def update_object(storage: Storage, name: str, change: Callable[[bytes], bytes | None]) -> None:
    """Replace the bytes of a small object; repeated on newer bytes if another writer came first.

    Args:
        storage, name: the object; it need not exist.
        change: makes the new bytes from the present ones (b"" if there is no object); None leaves the object alone.

    Raises:
        CommitConflict: other writers kept coming first.
    """
    for attempt in range(_ATTEMPTS):
        try:
            data, version = storage.read_versioned(name)
        except FileNotFoundError:
            data, version = b"", None
        changed = change(data)
        if changed is None:
            return
        try:
            storage.replace(name, changed, version)
        except CommitConflict:
            time.sleep(random.uniform(0, 0.02 * 2 ** min(attempt, 6)))
        else:
            return
    raise CommitConflict(f"{storage.url}/{name}: {_ATTEMPTS} changes in a row were overtaken by other writers")
