"""A loader in a process of its own: prints a digest of what it loaded, and notes each unload in a file.

``python -m tests.helpers.loading_process MATRIX FILES NOTES LEASE_SECONDS lives|dies SAMPLE...``; with ``dies``
it is killed when it holds the lease of a batch and starts to unload it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
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


def main() -> None:
    matrix, files, notes, lease_seconds, fate, *sample_ids = sys.argv[1:]
    warehouse = NotingWarehouse(files)
    warehouse.notes, warehouse.dies = Path(notes), fate == "dies"
    loader = MatrixLoader(warehouse, WideMatrix.open(matrix), lease_seconds=float(lease_seconds))
    print(hashlib.sha256(loader.load(sample_ids).tobytes()).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
