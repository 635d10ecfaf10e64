"""The samples that every format holds, and what to read of them; taken from a point store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core._util.redaction import redact
from zarr_core.errors import ZarrCoreError
from zarr_core.points.convert import convert
from zarr_core.points.manifest import load_if_any
from zarr_core.points.reader import ZarrChunkReader
from zarr_core.points.sampling import draw
from zarr_core.shootout.candidates import ENTRIES, chunk_sizes
from zarr_core.shootout.formats import Entry
from zarr_core.shootout.formats.samples import Draws, Runs, Samples
from zarr_core.storage import Storage, is_local

# Upper limit on the bytes of the samples: they are written once per format and tier.
_MAX_BYTES = 1 << 30
_EPOCHS = 8
_SAMPLES = 16


@dataclass(frozen=True)
class Workload:
    """Samples on local disk, and what to read of them.

    Attributes:
        samples: input of the formats; ``ids`` are their names.
        draws: by name, what to read; ``ids`` are the items. The recommendation is for the first one.
        entries: the formats that hold such samples.
        chunk_sizes: to compare, in units per chunk; the current one first.
        facts: for the report. "reads" describes an item of each of the draws, "described" has lines for the page.
    """

    samples: Any
    draws: Mapping[str, Any]
    entries: Sequence[Entry]
    chunk_sizes: Sequence[int]
    facts: dict[str, Any]


def take_points(
    source: str,
    dataset_kind: str | None,
    folder: Path,
    *,
    limit: int | None = None,
    num_surface_points: int,
    num_volume_points: int,
) -> Workload:
    """Write samples of a store or of source files below a local folder: ``limit`` of them, or 16.

    Raises:
        ZarrCoreError: there is nothing to measure, or files were given without their kind.
        SourceError, StoreError: the location cannot be read.
    """
    limit = limit or _SAMPLES
    store, is_store = source, load_if_any(Storage(source)) is not None
    if not is_store:
        if dataset_kind is None:
            raise ZarrCoreError(f"{redact(source)} is no store; if it holds files to convert, pass --dataset-kind")
        store = str(folder / "converted")
        place: dict[str, Any] = {"root": source} if is_local(source) else {"source_url": source}
        report = convert(dataset_kind, store, limit=limit, **place)
        if not report.having("converted"):
            raise ZarrCoreError(f"no sample of {redact(source)} could be converted: {report.results[0].reason}")
    reader = ZarrChunkReader(store)
    manifest = reader.manifest
    if not manifest.samples:
        raise ZarrCoreError(f"{redact(source)} holds no samples")
    fields = list(manifest.fields_of(reader.sample_ids[0]))
    chosen: list[str] = []
    size = others = 0
    for sample_id in reader.sample_ids:
        if len(chosen) == limit or size > _MAX_BYTES:
            break
        if set(manifest.fields_of(sample_id)) != set(fields):
            others += 1
            continue
        name = f"s{len(chosen):05d}"
        (folder / "samples" / name).mkdir(parents=True)
        for field, array in reader.read_sample(sample_id, {}, fields).items():
            np.save(folder / "samples" / name / f"{field}.npy", array)
            size += array.nbytes
        chosen.append(sample_id)
    domains = {field: manifest.fields[field].array_name.partition("/")[0] for field in fields}
    num_points = {
        domain: num_surface_points if domain.startswith("surface") else num_volume_points
        for domain in dict.fromkeys(domains.values())
    }
    grids = [manifest.samples[sample_id].domains for sample_id in chosen]
    chunk_points = max(max(grid[domain].chunk_points for domain in num_points) for grid in grids)
    points = {domain: [grid[domain].n_points for grid in grids] for domain in num_points}
    drawn: dict[str, list[dict[str, Runs]]] = {}
    whole: dict[str, list[dict[str, Runs]]] = {}
    for number, grid in enumerate(grids):
        name = f"s{number:05d}"
        whole[name] = [{domain: [(0, grid[domain].n_points)] for domain in num_points}]
        drawn[name] = [
            {
                domain: draw(
                    grid[domain].n_points, chunk_points, wanted, epoch=epoch, sample_id=name, stream=domain
                ).runs
                for domain, wanted in num_points.items()
            }
            for epoch in range(_EPOCHS)
        ]
    facts = {
        "source": redact(source),
        "is_store": is_store,
        "dataset_kind": dataset_kind or manifest.dataset_kind,
        "dataset_name": manifest.dataset_name,
        "samples": len(chosen),
        "other_fields": others,
        # Of a source, only what was converted is known.
        "samples_total": len(manifest.samples) if is_store else None,
        "fields": {field: manifest.fields[field].dtype for field in fields},
        "points": {domain: [min(counts), max(counts)] for domain, counts in points.items()},
        "num_points": num_points,
        "bytes_raw": size,
        "codec": manifest.compressor,
        "chunk_points": chunk_points,
        "unit": "points",
        "reads": {"draws": "draws", "samples": "whole samples"},
        "described": {
            "points per sample": ", ".join(f"{name} {min(n):,} to {max(n):,}" for name, n in points.items()),
            "points per draw": ", ".join(f"{name} {count:,}" for name, count in num_points.items()),
        },
    }
    draws = {
        "draws": Draws(drawn, num_points, chunk_points, domains),
        "samples": Draws(whole, {}, chunk_points, domains),
    }
    wanted = max(num_points.values())
    sizes = chunk_sizes(max(map(max, points.values())), chunk_points, wanted, 4 * wanted, wanted // 4)
    return Workload(Samples(folder / "samples"), draws, ENTRIES, sizes, facts)
