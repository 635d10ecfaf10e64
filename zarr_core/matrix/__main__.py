"""Show what a wide matrix holds, complete its column-major copy, copy it to other features, and retire samples.

``zarr-core matrix STORE``, ``zarr-core matrix reindex STORE TARGET --features FILE``, and
``zarr-core matrix retire STORE --samples ID``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from zarr_core._util.command_line import DONE, Json, Quiet, Store, WrongUseError, flag, option, run, show, verb
from zarr_core._util.units import format_size
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.axis import FeatureAxis
from zarr_core.matrix.axis_file import read_axis_ids

app = verb(
    "matrix",
    """
zarr-core matrix s3://bucket/betas
zarr-core matrix s3://bucket/betas --derive-columns
zarr-core matrix reindex s3://bucket/betas s3://bucket/betas-epic --features epic_probes.txt --union
zarr-core matrix retire s3://bucket/betas --samples GSM1 GSM7 --forget
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
        "retired": {"batches": matrix.retired.batches, "samples": matrix.retired.samples},
    }
    if gone := matrix.retired.sample_ids:
        lines.append(f"  retired: {len(gone):,} samples")
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
    axis = FeatureAxis(read_axis_ids(features, old.is_text))
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


@app.command(
    name="retire",
    usage="Usage: zarr-core matrix retire STORE [--samples ID...] [--batches ID...] [OPTIONS]",
    help="Remove samples and batches, for example after a withdrawn consent, and refuse them from now on. Earlier "
    "generations still hold them until gc deletes these; --forget deletes them now.",
)
def _retire(
    store: Store,
    *,
    samples: Annotated[list[str], option("Samples to retire.", metavar="ID", several=True)] = [],  # noqa: B006
    batches: Annotated[
        list[str], option("Batches to retire, with samples that joined them later.", metavar="ID", several=True)
    ] = [],  # noqa: B006
    forget: Annotated[
        bool, flag("Also delete every earlier generation that holds a retired sample, now. Pinned readers fail.")
    ] = False,
    undo: Annotated[bool, flag("Allow retired samples and batches to be appended again.")] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    if undo and forget:
        raise WrongUseError("--undo and --forget exclude each other")
    if not (samples or batches or forget):
        raise WrongUseError("name what to retire with --samples or --batches")
    matrix = WideMatrix.open(store)
    if undo:
        matrix.reinstate(samples, batches)
        text = f"{matrix.url}, generation {matrix.generation}: what was named can be appended again"
        show(text, {"store": matrix.url, "generation": matrix.generation}, json=json, quiet=quiet)
        return DONE
    done = matrix.retire(samples, batches)
    deleted = matrix.forget_retired() if forget else None
    readable = {} if deleted else done.readable
    count = sum(map(len, done.samples.values()))
    lines = [f"{matrix.url}: retired {count:,} samples; generation {done.generation} and later do not hold them"]
    lines += [f"  {batch}: {', '.join(ids)}" for batch, ids in done.samples.items()]
    if done.underived:
        lines.append(f"to be added to the column-major copy again (--derive-columns): {', '.join(done.underived)}")
    if deleted:
        lines.append(f"deleted generations {deleted.expired} and {format_size(deleted.bytes)} that only they named")
    elif readable:
        named = ", ".join(f"{number} ({', '.join(tags)})" if tags else str(number) for number, tags in readable.items())
        lines.append(
            f"still readable in generations {named}: zarr-core gc deletes them after its grace period, tagged ones "
            "after their tag was deleted; --forget deletes them now"
        )
    document = {
        "store": matrix.url,
        "generation": done.generation,
        "retired_batches": list(done.batches),
        "retired_samples": {batch: list(ids) for batch, ids in done.samples.items()},
        "underived": list(done.underived),
        "readable_generations": {str(number): list(tags) for number, tags in readable.items()},
        "deleted_generations": deleted.expired if deleted else [],
        "deleted_bytes": deleted.bytes if deleted else 0,
    }
    show("\n".join(lines), document, json=json, quiet=quiet)
    return DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
