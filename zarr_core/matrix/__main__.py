"""Show what a wide matrix holds, complete its column-major copy, and copy it to other features.

``zarr-core matrix STORE`` and ``zarr-core matrix reindex STORE TARGET --features FILE``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from zarr_core._util.command_line import DONE, Json, Quiet, Store, flag, option, run, show, verb
from zarr_core.errors import MatrixError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.axis import FeatureAxis
from zarr_core.matrix.axis_file import read_feature_ids

app = verb(
    "matrix",
    """
zarr-core matrix s3://bucket/betas
zarr-core matrix s3://bucket/betas --derive-columns
zarr-core matrix reindex s3://bucket/betas s3://bucket/betas-epic --features epic_probes.txt --union
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


@app.command(
    name="reindex",
    usage="Usage: zarr-core matrix reindex STORE TARGET --features FILE [OPTIONS]",
    help="Copy a matrix to another feature axis, as a new matrix; without the warehouse.",
)
def _reindex(
    store: Store,
    target: Annotated[str, option("Path or URL of the new matrix.")],
    *,
    features: Annotated[
        str, option("The features: first column of a .parquet file, or the words of a text file.", metavar="FILE")
    ],
    union: Annotated[bool, flag("Keep the features of STORE, too.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    matrix = WideMatrix.open(store)
    old = matrix.feature_ids
    names = read_feature_ids(features)
    axis = FeatureAxis(names if old.is_text else _integers(names))
    if union:
        axis = old.union(axis)
    copy = matrix.reindex(target, axis, progress=not quiet)
    kept = len(old.shared(axis)[0])
    document = {
        "store": copy.url,
        "samples": copy.shape[0],
        "features": len(axis),
        "kept": kept,
        "added": len(axis) - kept,
        "dropped": len(old) - kept,
    }
    text = "{store}: {samples:,} samples x {features:,} features ({kept:,} kept, {added:,} added, {dropped:,} dropped)"
    show(text.format(**document), document, json=json, quiet=quiet)
    return DONE


def _integers(names: Sequence[str]) -> np.ndarray:
    try:
        return np.array([int(name) for name in names], np.int64)
    except (ValueError, OverflowError) as error:
        raise MatrixError(f"the features of this matrix are integers: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
