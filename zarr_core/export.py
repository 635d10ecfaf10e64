"""Write a store in another format: ``zarr-core export webdataset|npy|parquet|h5ad|huggingface|croissant STORE OUT``."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Any

from zarr_core._util import command_line as cli
from zarr_core._util.dask_cluster import dask_executor
from zarr_core._util.units import format_size
from zarr_core.storage import Storage

app = cli.verb(
    "export",
    """
zarr-core export webdataset /data/store /scratch/shards --split train --ranks 8 --loader-workers 4
zarr-core export webdataset s3://bucket/store draws --draws-per-sample 10 --num-points surface=4096 volume=16384
zarr-core export h5ad s3://bucket/betas betas.h5ad --values beta --features probes.txt
zarr-core export parquet s3://bucket/betas betas_parquet
zarr-core export npy s3://bucket/betas betas_npy --values beta
zarr-core export huggingface /data/store hub --license cc-by-4.0
zarr-core export croissant s3://bucket/store s3://bucket/store/croissant.json --license CC-BY-4.0
""",
    usage="FORMAT STORE OUT [OPTIONS]",
)

Values = Annotated[list[str] | None, cli.option("Only these value tables.", metavar="NAME", several=True)]
Description = Annotated[str, cli.option("What the dataset is, in a sentence.")]
Citation = Annotated[str, cli.option("Citation, such as BibTeX.")]
Fields = Annotated[
    list[str] | None, cli.option("Only these fields, or value tables of a matrix.", metavar="FIELD", several=True)
]
Features = Annotated[
    str | None,
    cli.option("Only these features: the names in a .parquet, .csv, .tsv or .bed file, or the words of a text file."),
]


@app.command(
    name="webdataset",
    usage="Usage: zarr-core export webdataset STORE OUT [OPTIONS]",
    help="Tar shards of whole samples or of draws, for the webdataset library and zarr_core.ShardStream.",
)
def _webdataset(
    store: cli.Store,
    out: Annotated[str, cli.option("Folder or URL to write to, used by nothing else.")],
    *,
    split: cli.Split = None,
    samples: cli.Samples = None,
    fields: Fields = None,
    generation: cli.Generation = None,
    draws_per_sample: Annotated[
        int, cli.number("Items per sample: draws of --num-points. 0: whole samples.", least=0)
    ] = 0,
    num_points: Annotated[
        list[str] | None, cli.option("Points of a draw, by domain.", metavar="DOMAIN=N", several=True)
    ] = None,
    seed: Annotated[int, cli.number("Seed of the draws and of the order.", least=None)] = 0,
    shards: Annotated[int | None, cli.number("Number of shards. [default: by their size]")] = None,
    shard_bytes: Annotated[str, cli.option("Approximate size of a shard, such as 1GB.")] = "256MiB",
    ranks: Annotated[int, cli.number("Ranks of the training that will read the shards.")] = 1,
    loader_workers: Annotated[int, cli.number("DataLoader workers per rank of that training.")] = 1,
    check: Annotated[bool, cli.flag("Read existing objects again instead of comparing their sizes only.")] = False,
    workers: cli.Workers = 1,
    scheduler: cli.Scheduler = None,
    quiet: cli.Quiet = False,
    json: cli.Json = False,
) -> int:
    from zarr_core.exports.webdataset import export_webdataset

    with dask_executor(scheduler) as executor:
        index = export_webdataset(
            store,
            out,
            generation=generation,
            split=split,
            sample_ids=samples,
            fields=fields,
            num_points=_points(num_points),
            draws_per_sample=draws_per_sample,
            seed=seed,
            shards=shards,
            shard_bytes=shard_bytes,
            ranks=ranks,
            loader_workers=loader_workers,
            check=check,
            workers=workers,
            executor=executor,
            progress=not quiet,
        )
    (fewest, most), (least, largest) = index.evenness["items"], index.evenness["bytes"]
    text = (
        f"{index.items:,} items in {index.planned:,} shards of {fewest:,} to {most:,} items and {format_size(least)} "
        f"to {format_size(largest)}: {Storage(out).url}, from generation {index.generation}"
    )
    document = {
        "output": Storage(out).url,
        "generation": index.generation,
        "items": index.items,
        "shards": index.planned,
        "evenness": index.evenness,
        "plan": index.plan,
    }
    cli.show(text, document, json=json, quiet=quiet)
    return cli.DONE


#: The formats of a matrix, as ``zarr-core matrix export`` offers them.
matrix_formats = cli.application("export", "Write a wide matrix in another format.", "", None)


def _add_matrix_format(name: str, help: str) -> None:
    """Add a command that calls ``zarr_core.exports.export_<name>``, which is imported on use."""

    @matrix_formats.command(name=name, usage=f"Usage: zarr-core matrix export {name} STORE OUT [OPTIONS]", help=help)
    @app.command(name=name, usage=f"Usage: zarr-core export {name} STORE OUT [OPTIONS]", help=help)
    def _command(
        store: cli.Store,
        out: Annotated[str, cli.option("Local folder to write to; for h5ad a file.")],
        *,
        values: Values = None,
        samples: cli.Samples = None,
        features: Features = None,
        generation: cli.Generation = None,
        quiet: cli.Quiet = False,
        json: cli.Json = False,
    ) -> int:
        import zarr_core.exports

        rows = _rows(store, values, samples, features, generation)
        written = getattr(zarr_core.exports, f"export_{name}")(rows, out, progress=not quiet)
        return _shown(rows, written, json=json, quiet=quiet)


_add_matrix_format("npy", "Value tables of a wide matrix as .npy files for numpy.load(file, mmap_mode='r').")
_add_matrix_format("parquet", "A wide matrix as Parquet: a row per sample, a list of numbers per value table.")
_add_matrix_format("h5ad", "A wide matrix as AnnData: the first value table as X, the others as layers.")


@app.command(
    name="huggingface",
    usage="Usage: zarr-core export huggingface STORE OUT [OPTIONS]",
    help="A folder for the Hugging Face Hub: a dataset card, and shards or tables that its library loads.",
)
def _huggingface(
    store: cli.Store,
    out: Annotated[str, cli.option("Folder or URL to write to, used by nothing else.")],
    *,
    fields: Fields = None,
    license: Annotated[str, cli.option("Identifier of the licence on the Hub, such as cc-by-4.0.")] = "",
    description: Description = "",
    cite_as: Citation = "",
    generation: cli.Generation = None,
    workers: cli.Workers = 1,
    quiet: cli.Quiet = False,
    json: cli.Json = False,
) -> int:
    from zarr_core.exports.huggingface import export_huggingface

    splits = export_huggingface(
        store,
        out,
        fields=fields,
        generation=generation,
        license=license,
        description=description,
        cite_as=cite_as,
        workers=workers,
        progress=not quiet,
    )
    where = Storage(out).url
    text = f"{', '.join(f'{split}: {count:,} samples' for split, count in splits.items())}: {where}"
    cli.show(text, {"output": where, "samples": dict(splits)}, json=json, quiet=quiet)
    return cli.DONE


@app.command(
    name="croissant",
    usage="Usage: zarr-core export croissant STORE OUT [OPTIONS]",
    help="A description of one generation of a store for data catalogues: fields, units, splits, checksums, licence.",
)
def _croissant(
    store: cli.Store,
    out: Annotated[str, cli.option("Path or URL of the JSON document, such as STORE/croissant.json.")],
    *,
    url: Annotated[str | None, cli.option("Where others find the store. [default: STORE]")] = None,
    description: Description = "",
    license: Annotated[str, cli.option("URL or SPDX identifier of the licence.")] = "",
    creator: Annotated[str, cli.option("Person or organization.")] = "",
    cite_as: Citation = "",
    generation: cli.Generation = None,
    quiet: cli.Quiet = False,
    json: cli.Json = False,
) -> int:
    from zarr_core.exports.croissant import croissant_document, write_croissant

    document = croissant_document(
        store,
        generation=generation,
        url=url,
        description=description,
        license=license,
        creator=creator,
        cite_as=cite_as,
    )
    written = write_croissant(document, out)
    cli.show(f"{written}: {document['description']}", {"output": written}, json=json, quiet=quiet)
    return cli.DONE


def _rows(
    store: str,
    values: list[str] | None,
    samples: list[str] | None,
    features: str | None,
    generation: int | str | None,
) -> Any:
    from zarr_core.exports.matrix_rows import MatrixRows
    from zarr_core.matrix import WideMatrix
    from zarr_core.matrix.store.axis_file import read_axis_ids

    matrix = WideMatrix.open(store, generation)
    feature_ids = None if features is None else read_axis_ids(features, matrix.feature_ids.is_text)
    return MatrixRows(matrix, values, samples, feature_ids)


def _shown(rows: Any, out: Any, *, json: bool, quiet: bool) -> int:
    samples, features = rows.shape
    text = f"{samples:,} samples x {features:,} features of {', '.join(rows.values)}: {out}"
    document = {
        "output": str(out),
        "generation": rows.matrix.generation,
        "samples": samples,
        "features": features,
        "values": rows.values,
    }
    cli.show(text, document, json=json, quiet=quiet)
    return cli.DONE


def _points(given: list[str] | None) -> dict[str, int | None] | None:
    if given is None:
        return None
    points: dict[str, int | None] = {}
    for text in given:
        domain, _, number = text.partition("=")
        if not number.isdigit():
            raise cli.WrongUseError(f"--num-points {text}: expected DOMAIN=N, as in surface=4096")
        points[domain] = int(number)
    return points


main = partial(cli.run, app)


if __name__ == "__main__":
    sys.exit(main())
