"""Converts the given samples: SOURCE STORE ID..."""

from __future__ import annotations

import sys

from tests.attacks.truth import CHUNK_POINTS
from zarr_core.points.convert import convert

if __name__ == "__main__":
    source, store, *sample_ids = sys.argv[1:]
    report = convert("ahmedml", store, root=source, sample_ids=sample_ids, chunk_points=CHUNK_POINTS)
    sys.exit(0 if report.ok else 1)
