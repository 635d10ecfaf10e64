"""What a matrix holds: ``python -m zarr_core.matrix URL``; ``--derive-columns`` completes its transposed copy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from zarr_core._util.command_line import exit_status
from zarr_core.matrix import WideMatrix


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m zarr_core.matrix", description=__doc__)
    parser.add_argument("matrix", metavar="URL", help="path or URL of the matrix")
    parser.add_argument("--derive-columns", action="store_true", help="write the transposed copy of what it lacks")
    options = parser.parse_args(arguments)

    def work() -> int:
        matrix = WideMatrix.open(options.matrix)
        if options.derive_columns:
            added = matrix.derive_columns()
            print(f"transposed: {', '.join(added)}" if added else "the transposed copy is up to date")
        print(matrix)
        for batch_id, sample_ids in matrix.batches.items():
            print(f"  {batch_id}: {len(sample_ids):,} samples")
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
