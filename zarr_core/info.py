"""Show what a store or one of its samples holds: ``zarr-core info STORE [SAMPLE]``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import Annotated

from zarr_core._util import command_line as cli
from zarr_core._util.command_line import format_time, table
from zarr_core._util.commands import shell
from zarr_core._util.units import format_size
from zarr_core.stores.info import SampleInfo, StoreInfo, sample_info, store_info

__all__ = ["SampleInfo", "StoreInfo", "sample_info", "store_info"]

_NAMES_SHOWN = 5
_UNITS = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}

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
        return cli.Result(format_store(found), asdict(found))
    one = sample_info(store, sample, generation=generation)
    return cli.Result(format_sample(one), asdict(one))


def format_store(info: StoreInfo) -> str:
    """Summary of a store in a few lines, and a table of its fields."""
    kind = "wide matrix" if info.kind == "matrix" else f"point store of {info.name}"
    lines = {
        "store": f"{info.store}, {kind}",
        "generation": f"{info.generation}, committed {format_time(info.committed)}",
        "tags": ", ".join(f"{tag} (generation {number})" for tag, number in info.tags.items()),
        "copy of": ", ".join(f"{key} {value}" for key, value in info.origin.items()),
        "samples": _samples(info),
        "batches": ", ".join(f"{batch} ({count:,})" for batch, count in info.batches.items()),
        "metadata": "; ".join(f"of {kind}: {', '.join(columns)}" for kind, columns in info.metadata.items()),
        "splits": ", ".join(
            f"{name} ({split.samples:,}{f', {split.missing:,} not in the store' * (split.missing > 0)})"
            for name, split in info.splits.items()
        ),
        "retired": _retired(info),
        "points": "; ".join(
            f"{domain}: {points.least:,} to {points.most:,} per sample, {points.total:,} in all"
            for domain, points in info.points.items()
        ),
        "settings": ", ".join(f"{key} {_text(value)}" for key, value in info.settings.items() if value not in ("", [])),
        "statistics": _statistics(info),
    }
    fields = [("field" if info.kind == "points" else "value", "dtype", "components", "units")]
    fields += [(name, field.dtype, str(field.components), field.units) for name, field in info.fields.items()]
    refused = [f"quarantined: {sample_id}: {reason}" for sample_id, reason in info.quarantined.items()]
    return "\n".join([*_aligned(lines), "", table(fields), *([""] if refused else []), *refused])


def format_sample(info: SampleInfo) -> str:
    """Summary of a sample in a few lines, and a table of its arrays."""
    lines = {
        "sample": f"{info.sample} of {info.store}, generation {info.generation}",
        "size": format_size(info.bytes) if info.bytes else "",
        "batch": f"{info.batch}, row {info.row}" if info.batch else "",
        "group": info.group,
        "splits": ", ".join(info.splits),
        "source": info.fingerprint,
        "settings": info.settings,
    }
    rows: list[tuple[str, ...]] = [
        ("field", "dtype", "points", "components", "chunk", "shard", "units", "RMS error", "max error", "zeroed")
    ]
    rows += [
        (
            name,
            array.dtype,
            *(f"{n:,}" for n in (*array.shape, array.chunk_points, array.shard_points)),
            array.units,
            # Relative to the standard deviation of the field.
            *("" if n is None else f"{100 * n:.2g} %" for n in (array.rms_error, array.max_error, array.zeroed)),
        )
        for name, array in info.fields.items()
    ]
    return "\n".join([*_aligned(lines), *(["", table(rows)] if info.fields else [])])


def _samples(info: StoreInfo) -> str:
    text = f"{info.samples:,}" + f" ({format_size(info.bytes)})" * (info.bytes > 0)
    if info.kind == "matrix":
        return f"{text} x {info.features:,} features, {info.column_major:,} samples in the column-major copy"
    return f"{text}, {len(info.quarantined):,} quarantined, {info.excluded:,} excluded"


def _retired(info: StoreInfo) -> str:
    samples = ", ".join(info.retired[:_NAMES_SHOWN]) + ", ..." * (len(info.retired) > _NAMES_SHOWN)
    batches = ", ".join(f"{batch} ({count:,} samples)" for batch, count in info.retired_batches.items())
    parts = (f"{len(info.retired):,} samples: {samples}" if samples else "", batches and f"batches: {batches}")
    return "; ".join(part for part in parts if part)


def _statistics(info: StoreInfo) -> str:
    if info.kind == "matrix":
        return ""
    if info.statistics is None:
        split = ("--split", "train") * ("train" in info.splits)
        return f"none; `{shell('statistics', info.store, *split, '--generation', info.generation)}` writes them"
    age = info.statistics.age
    text = f"written {format_time(info.statistics.written)}"
    if age is not None:
        unit, seconds = next(item for item in _UNITS.items() if age >= item[1] or item[1] == 1)
        text += f", {age / seconds:.0f} {unit} ago"
    return text + ", before this generation was committed" * info.statistics.outdated


def _aligned(lines: dict[str, str]) -> list[str]:
    return [f"{name:<12}{text}" for name, text in lines.items() if text]


def _text(value: object) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)


main = partial(cli.run, app)


if __name__ == "__main__":
    sys.exit(main())
