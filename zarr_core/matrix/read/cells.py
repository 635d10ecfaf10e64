"""Read cells of a matrix, those of each sample from the cheaper of the row-major and the column-major copy."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import numpy as np

from zarr_core.matrix.read import columns as column_copy
from zarr_core.matrix.read import rows as row_copy
from zarr_core.matrix.read.fetch import ChunkFetcher, ReadCost
from zarr_core.matrix.store.state import MatrixState

logger = logging.getLogger(__name__)


def read_cells(
    fetcher: ChunkFetcher,
    state: MatrixState,
    value: str,
    places: Mapping[str, int],
    columns: np.ndarray | None,
    out: np.ndarray,
) -> None:
    """Read features of samples; the copies chosen, and what they cost, are logged at debug level.

    Args:
        fetcher, state, value: matrix and value table to read.
        places: row of the output for each sample.
        columns: (features,) indices of the features; None: all of them.
        out: (rows, features) of the stored dtype.

    Raises:
        CorruptChunkError: stored bytes are missing or damaged.
    """
    n_features = out.shape[1]
    picked = row_copy.pick_chunks(state.row_copy.layouts[value], columns)

    def log(n_samples: int, copy: str, cost: ReadCost, started: float, otherwise: str = "") -> None:
        ms = (time.perf_counter() - started) * 1e3
        text = "%s: %s of %d samples x %d features from %s: %s, %.1f ms%s"
        logger.debug(text, fetcher.url, value, n_samples, n_features, copy, cost, ms, otherwise)

    held = [] if columns is None else [i for i in places if i in state.column_copy.positions]
    if columns is not None and held:
        by_rows = row_copy.expected_cost(state, value, held, picked)
        if column_copy.expected_cost(state, value, held, columns).weight < by_rows.weight:
            started = time.perf_counter()
            at = np.array([places[i] for i in held])
            cost = column_copy.read_columns(fetcher, state, value, held, columns, out, at)
            log(len(held), "columns", cost, started, f" (rows: about {by_rows})")
            taken = set(held)
            places = {i: place for i, place in places.items() if i not in taken}
    if places:
        started = time.perf_counter()
        at = np.array(list(places.values()))
        cost = row_copy.read_rows(fetcher, state, value, list(places), picked, out, at)
        log(len(places), "rows", cost, started)
