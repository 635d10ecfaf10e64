"""Show what a wide matrix holds, and complete its column-major copy: ``zarr-core matrix STORE``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from zarr_core._util.command_line import DONE, Json, Store, flag, run, show, verb
from zarr_core.matrix import WideMatrix

app = verb(
    "matrix",
    """
zarr-core matrix s3://bucket/betas
zarr-core matrix s3://bucket/betas --derive-columns
""",
)


@app.default
def _command(
    store: Store,
    *,
    derive_columns: Annotated[bool, flag("Write what the column-major copy lacks.")] = False,
    json: Json = False,
) -> int:
    matrix = WideMatrix.open(store)
    lines = []
    derived: list[str] = []
    if derive_columns:
        derived = matrix.derive_columns()
        added = f"added to the column-major copy: {', '.join(derived)}"
        lines = [added if derived else "the column-major copy is up to date"]
    lines += [str(matrix), *(f"  {batch}: {len(ids):,} samples" for batch, ids in matrix.batches.items())]
    document = {
        "store": matrix.url,
        "generation": matrix.generation,
        "samples": matrix.shape[0],
        "features": matrix.shape[1],
        "values": matrix.values,
        "batches": {batch: len(ids) for batch, ids in matrix.batches.items()},
        "derived": derived,
    }
    show("\n".join(lines), document, json=json)
    return DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
