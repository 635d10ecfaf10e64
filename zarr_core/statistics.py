"""Write the normalization statistics of a store: ``zarr-core statistics STORE``."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

from zarr_core._util import command_line as cli
from zarr_core._util.dask_cluster import dask_executor
from zarr_core._util.redaction import redact
from zarr_core.points.statistics import calculate_store_statistics, write_statistics
from zarr_core.points.store.head import load_manifest

__all__ = ["calculate_store_statistics", "write_statistics"]

app = cli.verb(
    "statistics",
    """
zarr-core statistics /data/store --split train
zarr-core statistics /data/store --split train --generation 3   # for datasets of that generation
zarr-core statistics s3://bucket/store --split-file train_design_ids.txt --output-json stats.json
zarr-core statistics /data/store --recompute --workers 8 --read-concurrency 4
zarr-core statistics /data/store --exclude-fields surface_area --limit 100 --output-yaml some.yaml
""",
)


@app.default
def _command(
    store: cli.Store,
    *,
    split: cli.Split = None,
    split_file: Annotated[
        str | None,
        cli.option(
            "Only the samples that this file lists; a bare name is a file in the root of STORE.", metavar="FILE"
        ),
    ] = None,
    fields: Annotated[list[str] | None, cli.option("Only these fields.", metavar="FIELD", several=True)] = None,
    exclude_fields: Annotated[
        list[str] | None, cli.option("Without these fields.", metavar="FIELD", several=True)
    ] = None,
    limit: Annotated[int | None, cli.number("At most N samples, the first by id.")] = None,
    generation: cli.Generation = None,
    recompute: Annotated[
        bool, cli.flag("Read every array, also of samples whose moments were recorded when they were written.")
    ] = False,
    workers: cli.Workers = 1,
    scheduler: cli.Scheduler = None,
    read_concurrency: Annotated[int, cli.number("Concurrent reads per worker.")] = 1,
    output_yaml: Annotated[
        str | None, cli.option("Write YAML to this file instead of recording it in STORE.", metavar="FILE")
    ] = None,
    output_json: Annotated[
        str | None, cli.option("Write JSON to this file instead of recording it in STORE.", metavar="FILE")
    ] = None,
    quiet: cli.Quiet = False,
    json: cli.Json = False,
) -> int:
    parts = {"--split-file": split_file, "--fields": fields, "--exclude-fields": exclude_fields, "--limit": limit}
    given = [option for option, value in parts.items() if value is not None]
    if given and output_yaml is None and output_json is None:
        raise cli.WrongUseError(
            f"STORE records the statistics of its splits only (--split): name a file for those of {', '.join(given)}, "
            "with --output-yaml or --output-json"
        )
    manifest = load_manifest(store, generation)
    with dask_executor(scheduler) as executor:
        statistics = calculate_store_statistics(
            store,
            split=split,
            split_file=split_file,
            limit=limit,
            fields=fields,
            exclude_fields=exclude_fields or (),
            generation=manifest.generation or None,
            recompute=recompute,
            workers=workers,
            executor=executor,
            read_concurrency=read_concurrency,
            progress=not quiet,
        )
    chosen = [text for text in (split and f"split {split}", split_file) if text]
    written = write_statistics(
        store,
        statistics,
        of=" and ".join(chosen) or "all samples",
        split=split,
        generation=manifest.generation,
        output_yaml=output_yaml,
        output_json=output_json,
    )
    document = {"store": redact(store), "written": written, "statistics": statistics}
    cli.show("\n".join(f"wrote {target}" for target in written), document, json=json, quiet=quiet)
    return cli.DONE


main = partial(cli.run, app)


if __name__ == "__main__":
    sys.exit(main())
