"""The samples that every format holds, taken from a store, and the draws that it reads."""

from __future__ import annotations

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
from zarr_core.shootout.formats.samples import Draws, Runs, Samples
from zarr_core.storage import Storage, is_local

# Upper limit on the bytes of the samples: they are written once per format and tier.
_MAX_BYTES = 1 << 30
_EPOCHS = 8


@dataclass(frozen=True)
class Workload:
    """Samples on local disk, and what to read of them.

    Attributes:
        samples: the samples.
        draws: points of draws, by the name of what is read: "draws" and "samples" (whole).
        facts: for the report.
    """

    samples: Samples
    draws: dict[str, Draws]
    facts: dict[str, Any]


def take_workload(
    source: str,
    dataset_kind: str | None,
    folder: Path,
    *,
    limit: int,
    num_surface_points: int,
    num_volume_points: int,
) -> Workload:
    """Write samples of a store or of source files below a local folder.

    Raises:
        ZarrCoreError: there is nothing to measure, or files were given without their kind.
        SourceError, StoreError: the location cannot be read.
    """
    store, is_store = source, load_if_any(Storage(source)) is not None
    if not is_store:
        if dataset_kind is None:
            raise ZarrCoreError(
                f"{redact(source)} is no store of points; if it holds files to convert, pass --dataset-kind"
            )
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
    }
    draws = {
        "draws": Draws(drawn, num_points, chunk_points, domains),
        "samples": Draws(whole, {}, chunk_points, domains),
    }
    return Workload(Samples(folder / "samples"), draws, facts)
