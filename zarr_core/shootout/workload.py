"""The samples that every format holds, and what to read of them; taken from a point store."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core._util.redaction import redact
from zarr_core.errors import ZarrCoreError
from zarr_core.points.convert.conversion import convert_samples
from zarr_core.points.convert.job import ConversionJob
from zarr_core.points.convert.publish import Pending, commit_results
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.read.sampling import draw
from zarr_core.points.store.head import load_if_any
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.shootout.candidates import ENTRIES, chunk_sizes
from zarr_core.shootout.formats import Entry
from zarr_core.shootout.formats.samples import Draws, Runs, Samples
from zarr_core.sources.resolve import short_name
from zarr_core.sources.sample import SourceSample
from zarr_core.sources.selection import open_source
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
    end: float = math.inf,
) -> Workload:
    """Write samples of a store or of source files below a local folder.

    Args:
        source: URL of the store or of the files.
        dataset_kind: of the files.
        folder: local.
        limit: number of samples, by default 16; fewer if they are larger than 1 GiB, but at least one.
        num_surface_points, num_volume_points: points per draw of a domain.
        end: time of ``time.monotonic`` after which no further sample is taken.

    Raises:
        ZarrCoreError: there is nothing to measure, or files were given without their kind.
        SourceError, StoreError: the location cannot be read.
    """
    limit = limit or _SAMPLES
    found = load_if_any(Storage(source))
    store, is_store, total = source, found is not None, 0 if found is None else len(found.samples)
    if not is_store:
        if dataset_kind is None:
            raise ZarrCoreError(f"{redact(source)} is no store; if it holds files to convert, pass --dataset-kind")
        store = str(folder / "converted")
        total = _convert_some(source, dataset_kind, store, limit, end)
    reader = ZarrChunkReader(store)
    manifest = reader.manifest
    if not manifest.samples:
        raise ZarrCoreError(f"{redact(source)} holds no samples")
    fields = list(manifest.fields_of(reader.sample_ids[0]))
    chosen: list[str] = []
    size = others = 0
    for sample_id in reader.sample_ids:
        if len(chosen) == limit:
            break
        if set(manifest.fields_of(sample_id)) != set(fields):
            others += 1
            continue
        if chosen and (size + _bytes_of(manifest, sample_id) > _MAX_BYTES or time.monotonic() >= end):
            break
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
        "dataset_kind": dataset_kind or short_name(manifest.dataset_kind),
        "dataset_name": manifest.dataset_name,
        "samples": len(chosen),
        "other_fields": others,
        "samples_total": total,
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


def _bytes_of(manifest: StoreManifest, sample_id: str) -> int:
    """Bytes of the arrays of a sample, uncompressed."""
    domains = manifest.samples[sample_id].domains
    return sum(
        domains[column.array_name.partition("/")[0]].n_points * column.dim * np.dtype(column.dtype).itemsize
        for column in manifest.fields_of(sample_id).values()
    )


def _convert_some(source: str, dataset_kind: str, store: str, limit: int, end: float) -> int:
    """Convert the first samples of a source, and return the number of all.

    Samples are chosen by the sizes of their files, and converted until ``end``; at least one is.
    """
    place = {"root": source} if is_local(source) else {"source_url": source}
    job = ConversionJob.open(open_source(dataset_kind, **place), store, {})
    tasks: list[tuple[SourceSample, str | None]] = []
    size = 0
    for sample in job.selection.samples.values():
        size += sum({file.name: file.size for file in sample.files.values()}.values())
        if len(tasks) == limit or (tasks and size > _MAX_BYTES):
            break
        tasks.append((sample, ""))
    pending, reason = Pending(), ""
    with closing(convert_samples(job, tasks)) as results:
        for result in results:
            if result.written is not None:
                pending.written[result.sample_id] = result.written
                if time.monotonic() >= end:
                    break
            reason = reason or result.reason
    if not pending.written:
        raise ZarrCoreError(f"no sample of {redact(source)} could be converted: {reason}")
    commit_results(job, pending)
    return len(job.selection.samples)
