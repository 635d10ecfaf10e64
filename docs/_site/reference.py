"""The pages of the reference, made from the code: names, commands, settings and errors."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pydantic

import zarr_core

#: Public names by subject, each a page.
SUBJECTS = {
    "datasets": (
        "Datasets",
        "Samples as items and batches of tensors.",
        "build_dataset ZarrPointDataset ZarrPointDatasetConfig MixedDataset MatrixDataset Collate Normalizers m_values "
        "Predictions write_vtk",
    ),
    "loaders": (
        "Loaders",
        "The order of the samples of an epoch, batches read ahead, and their way to the device.",
        "EpochBatchSampler ResumableLoader to_device ZarrIterableDataset ShardStream",
    ),
    "conversion": (
        "Conversion",
        "From files and arrays to stores.",
        "write_sample ConversionSettings ZarrStoreWriter verify_store calculate_store_statistics",
    ),
    "stores": (
        "Stores",
        "What a store holds, read without a dataset.",
        "ZarrChunkReader open_store as_tensorstore store_info sample_info StoreManifest load_manifest stage_store "
        "DiskCache make_store export_webdataset",
    ),
    "matrices": (
        "Matrices and warehouses",
        "Wide matrices, and the long tables that fill them.",
        "WideMatrix MatrixLoader DuckDBWarehouse IcebergWarehouse AthenaWarehouse LongColumns",
    ),
}


def pages() -> dict[str, str]:
    """Text of each page by its name."""
    made = {"index.md": _index(), "commands.md": _commands(), "errors.md": _errors()}
    made["dataset_config.md"] = _dataset_config()
    made["descriptions.md"] = _descriptions()
    made["declarations.md"] = _declarations()
    for name, (title, about, names) in SUBJECTS.items():
        made[f"{name}.md"] = f"# {title}\n\n{about}\n\n" + "\n".join(map(_documented, names.split()))
    return made


def _documented(name: str) -> str:
    found = getattr(zarr_core, name)
    home = inspect.getmodule(found)
    assert home is not None
    return f"::: {home.__name__}.{name}\n"


def _index() -> str:
    lines = ["# Reference", "", "Every public name of `zarr_core`; each is imported from there.", ""]
    for page, (title, about, names) in SUBJECTS.items():
        lines += [f"**[{title}]({page}.md).** {about}", ""]
        lines += [f"* `{name}`: {_first_line(getattr(zarr_core, name))}" for name in names.split()]
        lines += [""]
    return "\n".join(lines)


def _first_line(documented: Any) -> str:
    text = inspect.getdoc(documented) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _commands() -> str:
    from zarr_core.__main__ import app

    text = app.generate_docs(output_format="markdown", recursive=True, include_hidden=False)
    return f"{text}\n"


def _errors() -> str:
    lines = [
        "# Errors",
        "",
        "Every error that a user can cause is a `ZarrCoreError`. The command line prints its message and exits with",
        "status 1, or with 2 after wrong use ([exit status](../command_line.md#exit-status)).",
        "",
        "| error | raised when | is also |",
        "|---|---|---|",
    ]
    for name in zarr_core._ERRORS:
        error = getattr(zarr_core, name)
        bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        lines.append(f"| `{name}` | {_first_line(error)} | {bases} |")
    return "\n".join(lines) + "\n"


def _dataset_config() -> str:
    model = zarr_core.ZarrPointDatasetConfig
    about = "Keys of the config of [`build_dataset`](datasets.md), in Python or in a YAML file."
    return "\n".join(["# Settings of datasets", "", about, "", *_table(model), "", *_schema(model)]) + "\n"


def _descriptions() -> str:
    from zarr_core.sources import description

    about = (
        "Keys of a YAML file that [describes a dataset](../datasets.md), and of the entries below them. "
        "[Splits](source_rules.md#splits) have rules of their own."
    )
    lines = ["# Settings of descriptions", "", about, "", *_table(description.SourceDescription)]
    for entry, model in (
        ("meshes", description.MeshFile),
        ("files, and fields of meshes", description.FieldArray),
        ("parameters", description.ParameterFile),
        ("tables", description.TableFile),
    ):
        lines += ["", f"## {entry}", "", _first_line(model), "", *_table(model)]
    return "\n".join(lines) + "\n"


def _declarations() -> str:
    from zarr_core.platform.assets.component import PointDataset
    from zarr_core.platform.assets.dataset import DatasetDeclaration
    from zarr_core.platform.assets.wide_matrix import WarehouseMatrix
    from zarr_core.platform.assets.wide_matrix.declaration import MatrixDeclaration

    lines = ["# Settings of declarations", "", "Keys of `attributes` in the `defs.yaml` of a dataset."]
    for component, declaration in ((PointDataset, DatasetDeclaration), (WarehouseMatrix, MatrixDeclaration)):
        lines += ["", f"## zarr_core.platform.{component.__name__}", ""]
        lines += [_first_line(component), "", *_table(declaration)]
    return "\n".join(lines) + "\n"


def _table(model: type[pydantic.BaseModel]) -> Iterator[str]:
    about = _attributes(model)
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else f"`{_plain(field.get_default(call_default_factory=True))}`"
        meaning = field.description or about.get(name, "")
        yield f"| `{name}` | {default} | {_cell(meaning)} |"


def _plain(value: Any) -> str:
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, Mapping | tuple | list | str | int | float | bool | None):
        return json.dumps(value, default=str)
    return str(value)


def _attributes(model: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each attribute."""
    from docstring_parser import parse

    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if each.__doc__ and each is not object:
            found |= {item.arg_name: item.description or "" for item in parse(inspect.cleandoc(each.__doc__)).params}
    return found


def _cell(text: str) -> str:
    parts = " ".join(text.split()).replace("|", "\\|").split("``")
    # Outside of code, asterisks of globs are not emphasis.
    parts[::2] = [part.replace("*", "\\*") for part in parts[::2]]
    return "``".join(parts)


def _schema(model: type[pydantic.BaseModel]) -> list[str]:
    schema = json.dumps(model.model_json_schema(), indent=1)
    return [
        '??? note "JSON schema, for editors"',
        "    ```json",
        *(f"    {line}" for line in schema.splitlines()),
        "    ```",
    ]
