"""A loader for a process of its own, which notes each unload in a file and may be killed."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.warehouses import DuckDBWarehouse


class NotingWarehouse(DuckDBWarehouse):
    notes: Path
    dies: bool

    def pinned(self) -> NotingWarehouse:
        return self

    @contextmanager
    def unload(
        self, batches: Mapping[str, Sequence[str]], values: Sequence[str], feature_ids: Sequence[str]
    ) -> Iterator[Any]:
        with self.notes.open("a") as file:
            file.writelines(f"{batch_id}\n" for batch_id in batches)
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        with super().unload(batches, values, feature_ids) as unloaded:
            yield unloaded


def load(matrix: str, files: str, notes: Path, sample_ids: Sequence[str], digest: Path, *, dies: bool) -> None:
    """Load samples and write a digest of their values; ``dies``: killed when it has a lease and starts to unload."""
    warehouse = NotingWarehouse(files)
    warehouse.notes, warehouse.dies = notes, dies
    loader = MatrixLoader(warehouse, WideMatrix.open(matrix), lease_seconds=3_600)
    digest.write_text(hashlib.sha256(loader.load(sample_ids).tobytes()).hexdigest())
