"""Look at a folder of unknown files: ``zarr-core inspect``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from zarr_core._util import command_line as cli
from zarr_core._util.commands import shell
from zarr_core._util.units import format_count, format_size
from zarr_core.points.convert.savings import TRIED, savings_of_source
from zarr_core.sources.left_out import some
from zarr_core.sources.survey import FileSummary, Survey, survey
from zarr_core.storage import local_path

app = cli.verb(
    "inspect",
    """
zarr-core inspect /data/simulations
zarr-core inspect s3://bucket/cases --write cases.yaml
zarr-core inspect /data/simulations --error-bounds
zarr-core inspect /data/simulations --json
""",
    usage="PATH [OPTIONS]",
)


@app.default
@cli.command(quiet=False)
def _command(
    path: Annotated[str, cli.option("Folder or URL that contains the samples.")],
    *,
    write: Annotated[str | None, cli.option("Write a description to start from to this file.", metavar="FILE")] = None,
    error_bounds: Annotated[
        bool, cli.flag("Encode the first sample, and show the bytes per point of each field with error bounds.")
    ] = False,
) -> cli.Result:
    target = None if write is None else local_path(write)
    found = survey(path)
    saved = None
    if error_bounds:  # before the description is written, because packages may be missing
        saved = savings_of_source(found.kinds[0] if found.kinds else found.description, path)
    if target is not None:
        try:
            with target.open("x") as file:
                file.write(found.to_yaml())
        except FileExistsError:
            raise cli.WrongUseError(
                f"{write} exists; --write does not replace a file: remove it, or name another"
            ) from None
    text, document = _summary(found, write), _document(found)
    if saved is not None:
        tried = ", ".join(TRIED)
        text += f"\nbytes per point of {saved['sample']}: by default, then with --max-error FIELD=ERROR for {tried}"
        for name, numbers in saved["fields"].items():
            text += f"\n  {name}: {', '.join(f'{number:g}' for number in numbers)}"
        text += f"\n  all fields of the sample: {', '.join(map(format_size, saved['bytes']))}"
        document["error_bounds"] = saved
    return cli.Result(text, document)


def _summary(found: Survey, written: str | None) -> str:
    """What a location could be, in a few lines, and the command that converts it."""
    missing = f", {len(found.incomplete)} incomplete" if found.incomplete else ""
    splits = [f"{name} {count:,}" for name, count in found.splits.items()]
    lines = [
        f"{found.url}: {format_count(found.samples, 'samples')}, {format_size(found.n_bytes)}{missing}",
        f"  kind: {' or '.join(found.kinds) or 'none that comes with the library; the description is a guess'}",
        f"  samples: {found.description.samples}",
        "  files of the first sample:",
        *(f"    {_file(file)}" for file in found.files),
        f"  fields: {', '.join(found.fields)}",
        f"  splits: {', '.join(splits) or 'none'}",
    ]
    if found.parameter_files:
        lines.append(f"  parameters: {', '.join(found.parameter_files)}")
    if found.incomplete:
        sample_id, files = next(iter(found.incomplete.items()))
        lines.append(f"  incomplete: {some(list(found.incomplete))}; {sample_id} lacks {', '.join(files)}")
    lines += [f"  note: {sentence}" for sentence in found.odd]
    kind = written or (found.kinds[0] if found.kinds else "")
    if found.extras:
        again = f"delete {written}, and inspect again" if written else "and inspect again"
        lines.append(f"next: pip install 'zarr-core[{','.join(found.extras)}]', {again}")
    elif kind:
        # Fields that nobody has looked at may be out of float16's range.
        dtype = () if found.kinds else ("--values-dtype", "float32")
        lines.append(f"next: {shell('convert', 'STORE', '--source', found.url, '--dataset-kind', kind, *dtype)}")
        lines.append(f"then: {shell('first-step', 'STORE')}")
    else:
        lines.append(f"next: {shell('inspect', found.url, '--write', 'description.yaml')}")
    return "\n".join(lines)


def _file(file: FileSummary) -> str:
    parts = [f"{file.pattern}: {format_size(file.size)}"]
    if file.problem:
        parts.append(file.problem)
    if file.contents is not None:
        if file.contents.points:
            parts.append(f"{file.contents.cells:,} cells, {file.contents.points:,} points")
        if file.contents.patches:
            parts.append(f"parts {', '.join(file.contents.patches)}")
        for at in ("cells", "points", ""):
            names = [array.name or "one array" for array in file.contents.arrays if array.at == at]
            if names:
                parts.append(f"at {at}: {', '.join(names)}" if at else ", ".join(names))
        if not file.contents.complete:
            parts.append("the file is large, and its end was not looked at")
    return "; ".join(parts)


def _document(found: Survey) -> dict[str, Any]:
    return {
        "url": found.url,
        "kinds": found.kinds,
        "samples": found.samples,
        "incomplete": found.incomplete,
        "bytes": found.n_bytes,
        "files": list(map(_file_document, found.files)),
        "fields": found.fields,
        "parameter_files": found.parameter_files,
        "splits": found.splits,
        "notes": found.odd,
        "description": found.to_yaml(),
    }


def _file_document(file: FileSummary) -> dict[str, Any]:
    document = {"pattern": file.pattern, "example": file.example, "bytes": file.size, "problem": file.problem}
    if file.contents is None:
        return document | {"points": None, "cells": None, "arrays": []}
    arrays = list(map(asdict, file.contents.arrays))
    return document | {"points": file.contents.points, "cells": file.contents.cells, "arrays": arrays}


main = cli.program(app, __name__)
