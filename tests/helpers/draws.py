"""What a draw is made of."""

from __future__ import annotations

import numpy as np

from zarr_core.points.read.sampling import Draw


def indices_of(drawn: Draw) -> np.ndarray:
    """Stored point indices, int64, shape (num_points,), all different."""
    return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in drawn.runs])
