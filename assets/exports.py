"""Copies of a store in other formats, and its description: an asset per declared export.

A copy costs as much as the store, so no automation makes it. A description is small, and follows each generation.
"""

from collections.abc import Mapping
from typing import Any, Self

import dagster as dg
import pydantic
from pydantic import Field
from zarr_core.platform.assets.conditions import follow_what_was_published
from zarr_core.platform.sensors.operating import if_red

from zarr_core._util.redaction import redact
from zarr_core._util.units import format_size
from zarr_core.storage import Storage, is_local
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.generations import load

_CELLS = ("values", "sample_ids", "feature_ids")
_HUB = ("fields", "license", "description", "cite_as", "workers")
_CROISSANT = ("url", "description", "license", "creator", "cite_as")
#: Formats of point stores and of wide matrices, and the arguments that a declaration may give them.
POINT_FORMATS: Mapping[str, tuple[str, ...]] = {
    "webdataset": (
        *("split", "sample_ids", "fields", "num_points", "draws_per_sample", "seed"),
        *("shards", "shard_bytes", "ranks", "loader_workers", "workers"),
    ),
    "huggingface": _HUB,
    "croissant": _CROISSANT,
}
MATRIX_FORMATS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("npy", "parquet", "h5ad"), _CELLS),
    "huggingface": _HUB,
    "croissant": _CROISSANT,
}


class ExportDeclaration(dg.Model, dg.Resolvable):
    """An export of a dataset."""

    name: str = Field(description="The asset is export_<name>.", pattern="^[a-z][a-z0-9_]*$")
    format: str = Field(
        description="webdataset, huggingface or croissant; of a matrix also npy, parquet, h5ad, not webdataset."
    )
    output: str = Field(
        repr=False,
        description="Folder, file or URL to write to, of a matrix a local path except for croissant; webdataset and "
        "huggingface add a folder per generation.",
    )
    arguments: dict[str, Any] = Field(default={}, description="Arguments of the export, as in zarr_core.exports.")

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        known = {**POINT_FORMATS, **MATRIX_FORMATS}.get(self.format)
        if known is None:
            raise ValueError(f"format {self.format!r} is none of {', '.join({**POINT_FORMATS, **MATRIX_FORMATS})}")
        if not self.output:  # the folder of the project otherwise
            raise ValueError("output is empty; a template may name a variable of the environment that is empty")
        if unknown := [name for name in self.arguments if name not in known]:
            raise ValueError(f"{self.format} has no argument {unknown[0]!r}; it has {', '.join(known)}")
        return self


def check_exports(exports: list[ExportDeclaration], formats: Mapping[str, Any]) -> None:
    """Check the exports of a dataset with a kind of store.

    Raises:
        ValueError: an export has a format of another kind of store, the name of another one, or an output that its
            format cannot be written to.
    """
    for number, export in enumerate(exports):
        if export.format not in formats:
            raise ValueError(f"exports: {export.name}: {export.format} is for another kind of store")
        if export.name in [other.name for other in exports[:number]]:
            raise ValueError(f"exports: two have the name {export.name}")
        if formats is MATRIX_FORMATS and export.format != "croissant" and not is_local(export.output):
            raise ValueError(
                f"exports: {export.name}: {redact(export.output)}: {export.format} of a matrix is written to a local "
                "path; upload the result from there"
            )


def export_asset(name: str, store: str, upstream: dg.AssetKey, export: ExportDeclaration) -> dg.AssetsDefinition:
    """The asset of an export.

    Args:
        name: of the dataset.
        store: URL of its store or matrix.
        upstream: the asset of its generations.
        export: what to write.
    """

    @dg.asset(
        key=[name, f"export_{export.name}"],
        group_name=name,
        deps=[upstream],
        automation_condition=follow_what_was_published() if export.format == "croissant" else None,
        description=f"The store as {export.format} in `{redact(export.output)}`: the generation that is "
        "current when it is materialized."
        + if_red("where-is-the-reason", "read the last event of the run, and materialize the export again"),
        kinds={export.format},
    )
    def exported() -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata=_write(store, export))

    return exported


def _write(store: str, export: ExportDeclaration) -> dict[str, Any]:
    """Write the current generation; returns the metadata of the materialization."""
    from zarr_core import exports

    storage = Storage(store)
    generation, output = load(storage, find_head(storage)).generation, export.output
    found: dict[str, Any] = {}
    if export.format in ("webdataset", "huggingface"):
        output = f"{output.rstrip('/')}/{generation}"
        write = getattr(exports, f"export_{export.format}")
        result = write(store, output, generation=generation, **export.arguments)
        if export.format == "webdataset":
            (fewest, most), (least, largest) = result.evenness["items"], result.evenness["bytes"]
            found = {
                "items": result.items,
                "shards": result.planned,
                "items_per_shard": f"{fewest:,} to {most:,}",
                "size_per_shard": f"{format_size(least)} to {format_size(largest)}",
            }
        else:
            found = {f"samples/{split}": count for split, count in result.items()}
    elif export.format == "croissant":
        exports.write_croissant(exports.croissant_document(store, generation=generation, **export.arguments), output)
    else:
        from zarr_core.exports.matrix import MatrixRows
        from zarr_core.matrix import WideMatrix

        rows = MatrixRows(WideMatrix.open(store, generation), **export.arguments)
        getattr(exports, f"export_{export.format}")(rows, output)
        found = dict(zip(("samples", "features"), rows.shape, strict=True))
    return {"generation": generation, "output": dg.MetadataValue.path(redact(output)), **found}
