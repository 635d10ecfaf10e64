"""Show what a store or one of its samples holds: ``zarr-core info STORE [SAMPLE]``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap
from typing import Annotated

from zarr_core._util import command_line as cli
from zarr_core._util.commands import shell
from zarr_core._util.units import format_count, format_duration, format_size
from zarr_core.points.store.footprint import USD_PER_MILLION_GETS, LayoutInfo
from zarr_core.sources.left_out import some
from zarr_core.stores.summary import SampleInfo, SplitInfo, StoreInfo, sample_info, store_info

__all__ = ["SampleInfo", "StoreInfo", "sample_info", "store_info"]

app = cli.verb(
    "info",
    """
zarr-core info /data/store
zarr-core info s3://bucket/store run_17
zarr-core info /data/store --generation paper-v2 --json
""",
    usage="STORE [SAMPLE] [OPTIONS]",
)


@app.default
@cli.command(quiet=False)
def _command(
    store: cli.Store,
    sample: Annotated[str | None, cli.option("Id of a sample. Without it, the store is summarized.")] = None,
    *,
    generation: cli.Generation = None,
) -> cli.Result:
    if sample is None:
        found = store_info(store, generation=generation)
        return cli.Result(format_store(found), found)
    one = sample_info(store, sample, generation=generation)
    return cli.Result(format_sample(one), one)


def format_store(info: StoreInfo) -> str:
    """Summary of a store in a few lines, and a table of its fields."""
    kind = "wide matrix" if info.kind == "matrix" else f"point store of {info.name}"
    size = f" ({format_size(info.bytes)} of arrays)" if info.bytes else ""
    lines = {
        "store": f"{info.store}, {kind}",
        "generation": f"{info.generation}, committed {cli.format_time(info.committed)}",
        "tags": _listed("{} (generation {})", info.tags),
        "copy of": _listed("{} {}", info.origin),
        "samples": f"{info.samples:,}{size}",
        "batches": _listed("{} ({:,})", info.batches),
        "metadata": "; ".join(f"of {kind}: {', '.join(columns)}" for kind, columns in info.metadata.items()),
        "splits": ", ".join(starmap(_split, info.splits.items())),
        "retired": _retired(info),
        "points": _listed("{0}: {1.least:,} to {1.most:,} per sample, {1.total:,} in all", info.points, "; "),
        "layout": "; ".join(starmap(_layout, info.layouts.items())),
        "settings": _settings(info.settings),
    }
    if info.kind == "matrix":
        lines["samples"] += f" x {info.features:,} features, {info.column_major:,} samples in the column-major copy"
    else:
        lines["samples"] += f", {len(info.quarantined):,} quarantined, {info.excluded:,} excluded"
        lines["statistics"] = _statistics(info)
    fields = [("field" if info.kind == "points" else "value", "dtype", "components", "units")]
    for name, field in info.fields.items():
        fields.append((name, field.dtype, str(field.components), field.units))
    text = f"{_aligned(lines)}\n\n{cli.table(fields)}"
    if info.quarantined:
        text += "\n"
    for sample_id, reason in info.quarantined.items():
        text += f"\nquarantined: {sample_id}: {reason}"
    return text


def format_sample(info: SampleInfo) -> str:
    """Summary of a sample in a few lines, and a table of its arrays."""
    lines = {
        "sample": f"{info.sample} of {info.store}, generation {info.generation}",
        "size": f"{format_size(info.bytes)} of arrays" if info.bytes else "",
        "batch": f"{info.batch}, row {info.row}" if info.batch else "",
        "group": info.group,
        "splits": "none, a blacklist excludes it" if info.excluded else ", ".join(info.splits),
        "refused": f"a newer source: {info.refused}" if info.refused else "",
        "fingerprint": info.fingerprint,
        "source": _source(info),
        "settings": info.settings,
        "parameters": _listed("{} {}", info.parameters),
    }
    if not info.fields:
        return _aligned(lines)
    counts = ("points", "components", "chunk", "shard")
    rows: list[tuple[str, ...]] = [("field", "dtype", *counts, "units", "RMS error", "max error", "zeroed")]
    for name, array in info.fields.items():
        sizes = map("{:,}".format, (*array.shape, array.chunk_points, array.shard_points))
        errors = map(_percent, (array.rms_error, array.max_error, array.zeroed))
        rows.append((name, array.dtype, *sizes, array.units, *errors))
    return f"{_aligned(lines)}\n\n{cli.table(rows)}"


def _source(info: SampleInfo) -> str:
    """The folder and the files that a sample was made from."""
    names = dict.fromkeys(str(file["name"]) for file in info.source.get("files", {}).values())
    folder = info.source.get("folder")
    return f"{folder}: {', '.join(names)}" if folder else ", ".join(names)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2g} %"


def _listed(template: str, items: Mapping[str, object], separator: str = ", ") -> str:
    return separator.join(template.format(name, value) for name, value in items.items())


def _settings(settings: Mapping[str, object]) -> str:
    """Those that have a value."""
    parts = []
    for name, value in settings.items():
        if isinstance(value, dict):
            text = " ".join(f"{field}={of_field}" for field, of_field in value.items())
        elif isinstance(value, list):
            text = " or ".join(map(str, value))
        else:
            text = str(value)
        if text:
            parts.append(f"{name} {text}")
    return ", ".join(parts)


def _split(name: str, split: SplitInfo) -> str:
    missing = f", {split.missing:,} not in the store" if split.missing else ""
    return f"{name} ({split.samples:,}{missing})"


def _layout(name: str, layout: LayoutInfo) -> str:
    """What a sample of a layout takes: inodes of a disk, or objects and requests of a bucket."""
    samples = format_count(layout.samples, "samples")
    if layout.inodes:
        return f"{name} ({samples}, {layout.inodes:,} inodes each)"
    price = layout.requests * USD_PER_MILLION_GETS
    draw = f"a draw: {layout.requests:,} GETs"
    cost = f"USD {price:.2f} per million draws if a million GETs cost {USD_PER_MILLION_GETS:g}"
    return f"{name} ({samples}, {format_count(layout.objects, 'objects')} each; {draw}, {cost})"


def _retired(info: StoreInfo) -> str:
    parts = []
    if info.retired:
        parts.append(f"{format_count(len(info.retired), 'samples')}: {some(info.retired)}")
    if info.retired_batches:
        batches = {name: format_count(count, "samples") for name, count in info.retired_batches.items()}
        parts.append(f"batches: {_listed('{} ({})', batches)}")
    return "; ".join(parts)


def _statistics(info: StoreInfo) -> str:
    if info.statistics is None:
        split = ["--split", "train"] if "train" in info.splits else []
        return f"none; `{shell('statistics', info.store, *split, '--generation', info.generation)}` writes them"
    text = f"written {cli.format_time(info.statistics.written)}"
    if info.statistics.age is not None:
        text += f", {format_duration(info.statistics.age)} ago"
    if info.statistics.outdated:
        text += ", before this generation was committed"
    if "points" in info.origin:
        text += f"; of all points of the source, of which this copy has {info.origin['points']}, in whole chunks"
    return text


def _aligned(lines: Mapping[str, str]) -> str:
    return "\n".join(f"{name:<12}{text}" for name, text in lines.items() if text)


main = cli.program(app, __name__)
