"""Write the normalization statistics of a store: ``zarr-core statistics STORE``."""

from __future__ import annotations

from typing import Annotated, Any

from zarr_core._util import command_line as cli
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
@cli.command(calculate_store_statistics)
def _command(
    store: cli.Store,
    *,
    split: cli.Split = None,
    generation: cli.Generation = None,
    output_yaml: Annotated[
        str | None, cli.option("Write YAML to this file instead of recording it in STORE.", metavar="FILE")
    ] = None,
    output_json: Annotated[
        str | None, cli.option("Write JSON to this file instead of recording it in STORE.", metavar="FILE")
    ] = None,
    **arguments: Any,
) -> cli.Result:
    of_a_part = ("split_file", "sample_ids", "fields", "exclude_fields", "limit")
    given = [name for name in of_a_part if arguments.get(name) is not None]
    if given and output_yaml is None and output_json is None:
        options = ", ".join(f"--{name.replace('sample_ids', 'samples').replace('_', '-')}" for name in given)
        raise cli.WrongUseError(
            f"STORE records the statistics of its splits only (--split): name a file for those of {options}, with "
            "--output-yaml or --output-json"
        )
    manifest = load_manifest(store, generation)
    statistics = calculate_store_statistics(store, split=split, generation=manifest.generation or None, **arguments)
    chosen = [text for text in (split and f"split {split}", arguments.get("split_file")) if text]
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
    return cli.Result("\n".join(f"wrote {target}" for target in written), document)


main = cli.program(app, __name__)
