"""The commands of ``zarr-core export``: each writes a format, and says what it has written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import zarr_core.exports
from zarr_core._util import command_line as cli
from zarr_core._util.units import format_size
from zarr_core.exports.croissant import croissant_document, write_croissant
from zarr_core.exports.huggingface import export_huggingface
from zarr_core.exports.matrix import MatrixRows
from zarr_core.exports.webdataset import export_webdataset
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.store.axis_file import read_axis_ids
from zarr_core.storage import Storage

Folder = Annotated[str, cli.option("Folder or URL to write to, used by nothing else.")]


@cli.command(export_webdataset)
def webdataset(
    store: cli.Store,
    out: Folder,
    *,
    num_points: Annotated[list[str] | None, cli.option("Points of a draw, by domain.", metavar="DOMAIN=N")] = None,
    **arguments: Any,
) -> cli.Result:
    """Write tar shards."""
    index = export_webdataset(store, out, num_points=_points(num_points), **arguments)
    (fewest, most), (least, largest) = index.evenness["items"], index.evenness["bytes"]
    document = {
        "output": Storage(out).url,
        "generation": index.generation,
        "items": index.items,
        "shards": index.planned,
        "evenness": index.evenness,
        "plan": index.plan,
    }
    text = (
        f"{index.items:,} items in {index.planned:,} shards of {fewest:,} to {most:,} items and {format_size(least)} "
        f"to {format_size(largest)}: {document['output']}, from generation {index.generation}"
    )
    return cli.Result(text, document)


@cli.command(export_huggingface)
def huggingface(store: cli.Store, out: Folder, **arguments: Any) -> cli.Result:
    """Write a folder for the Hugging Face Hub."""
    splits = export_huggingface(store, out, **arguments)
    where = Storage(out).url
    counts = ", ".join(f"{split}: {count:,} samples" for split, count in splits.items())
    return cli.Result(f"{counts}: {where}", {"output": where, "samples": dict(splits)})


@cli.command(croissant_document)
def croissant(
    store: cli.Store,
    out: Annotated[str, cli.option("Path or URL of the JSON document, such as STORE/croissant.json.")],
    **arguments: Any,
) -> cli.Result:
    """Write a description for catalogues."""
    document = croissant_document(store, **arguments)
    written = write_croissant(document, out)
    return cli.Result(f"{written}: {document['description']}", {"output": written})


def _matrix_format(name: str) -> Callable[..., int]:
    """The command that calls ``zarr_core.exports.export_<name>``."""
    export = getattr(zarr_core.exports, f"export_{name}")

    @cli.command(export)
    def write(
        store: cli.Store,
        out: Annotated[str, cli.option("Local folder to write to; for h5ad a file.")],
        *,
        values: cli.Values = None,
        samples: cli.Samples = None,
        features: cli.ChosenFeatures = None,
        generation: cli.Generation = None,
        **arguments: Any,
    ) -> cli.Result:
        matrix = WideMatrix.open(store, generation)
        feature_ids = None if features is None else read_axis_ids(features, matrix.feature_ids.is_text)
        rows = MatrixRows(matrix, values, samples, feature_ids)
        document = {
            "output": str(export(rows, out, **arguments)),
            "generation": matrix.generation,
            "samples": rows.shape[0],
            "features": rows.shape[1],
            "values": rows.values,
        }
        text = "{samples:,} samples x {features:,} features of {}: {output}".format(", ".join(rows.values), **document)
        return cli.Result(text, document)

    return write


npy = _matrix_format("npy")
parquet = _matrix_format("parquet")
h5ad = _matrix_format("h5ad")


def _points(given: list[str] | None) -> dict[str, int | None] | None:
    """The values of ``--num-points surface=4096``, by domain."""
    if given is None:
        return None
    points: dict[str, int | None] = {}
    for domain, number in cli.pairs("--num-points", given, "DOMAIN=N, as in surface=4096").items():
        if not number.isdigit():
            raise cli.WrongUseError(f"--num-points {domain}={number}: expected DOMAIN=N, as in surface=4096")
        points[domain] = int(number)
    return points
