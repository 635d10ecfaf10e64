"""Puts the report of a benchmark together."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tqdm import tqdm

from zarr_core._util.redaction import redact
from zarr_core.benchmark.contents import field_distributions, sample_picture
from zarr_core.benchmark.measure import MeasuredSample, count_reads, locate_sample, time_reads
from zarr_core.benchmark.request import BenchmarkRequest
from zarr_core.errors import ZarrCoreError
from zarr_core.format.names import FieldName
from zarr_core.points.convert.savings import savings
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.group import chunk_object_bytes
from zarr_core.points.store.recorded_settings import current_settings
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.points.verify.source import ComparedSource
from zarr_core.points.verify.store import verify_store
from zarr_core.reports.environment import environment
from zarr_core.reports.points import points_by_domain
from zarr_core.storage import Storage, is_local


def make_report(request: BenchmarkRequest) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Take all numbers of the report.

    Returns:
        The report, and the arguments of :func:`zarr_core.benchmark.figures.sample_figure` (None if no sample has a
        scalar on its surface).

    Raises:
        ZarrCoreError: no sample can be found in the source.
    """
    reader = ZarrChunkReader(request.store)
    num_points = points_by_domain(reader.manifest.domains, request.num_surface_points, request.num_volume_points)
    chosen = reader.sample_ids[: request.samples]
    source = ComparedSource.open(request.source, reader.manifest, request.dataset_kind)
    equivalence = verify_store(request.store, source=source, sample_ids=chosen, progress=request.progress)
    samples = []
    for sample_id in chosen:
        sample = locate_sample(reader, source, sample_id)
        if sample is not None:  # else the equivalence check has reported that its files no longer exist
            samples.append(sample)
    if not samples:
        raise ZarrCoreError(
            f"none of the {len(chosen)} samples of {redact(request.store)} are in {source.files.url}; "
            "the source must be the folder or URL that the store was made from"
        )
    bar = partial(tqdm, unit="sample", disable=not request.progress)
    ids = [sample.sample_id for sample in samples]
    report = {
        "format": 1,
        "created": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": request.command,
        "environment": environment(),
        "local": is_local(request.source) and is_local(request.store),
        "equivalence": {
            "ok": equivalence.ok,
            "samples": equivalence.samples,
            "arrays": equivalence.arrays,
            "chunks": equivalence.chunks,
            "how": equivalence.how,
            "problems": list(map(str, equivalence.problems)),
        },
        "reads": count_reads(bar(samples, desc="bytes"), request.store, num_points, request.repeats),
        "throughput": time_reads(samples, reader, num_points, request.repeats, bar),
        "fields": field_distributions(reader, ids),
        "error_bounds": _error_bounds(reader, samples[0]),
        "store": {"root": redact(request.store), **_store_facts(reader, samples)},
    }
    picture = sample_picture(reader, ids, num_points)
    report["picture"] = picture and picture.pop("sample_id")
    return report, picture


def _error_bounds(reader: ZarrChunkReader, sample: MeasuredSample) -> dict[str, Any]:
    """See :func:`zarr_core.points.convert.savings.savings`; "problem" instead where that is not possible."""
    names = []
    for field in sample.fields:
        domain, _, name = reader.manifest.fields[field].array_name.partition("/")
        names.append(FieldName(domain, name))
    settings = current_settings(reader.manifest) or ConversionSettings()
    try:
        return savings(sample.sample_id, names, sample.source.load, settings)
    except ZarrCoreError as error:  # as where the extra pcodec is not installed
        return {"problem": str(error)}


def _store_facts(reader: ZarrChunkReader, samples: Sequence[MeasuredSample]) -> dict[str, Any]:
    manifest = reader.manifest
    points: dict[str, list[int]] = {}
    chunk_points: dict[str, int] = {}
    bytes_total = bytes_stored = bytes_source = objects_stored = objects_source = 0
    layouts = set()
    for entry in manifest.samples.values():
        bytes_total += entry.bytes
        for domain, grid in entry.domains.items():
            low, high = points.get(domain, (grid.n_points, grid.n_points))
            points[domain] = [min(low, grid.n_points), max(high, grid.n_points)]
            chunk_points[domain] = max(chunk_points.get(domain, 0), grid.chunk_points)
    for sample in samples:
        entry = manifest.samples[sample.sample_id]
        # A folder has many objects; of a sample of another program, no bytes of the arrays are recorded either.
        listed = {} if entry.head else Storage(reader.root).list(entry.relpath)
        layouts.add("packed" if entry.head else "directory")
        objects_stored += len(listed) or 1
        objects_source += sum(size > 0 for size in sample.sizes.values())
        bytes_stored += entry.bytes or chunk_object_bytes(listed, entry.relpath)
        bytes_source += sum(sample.sizes.values())
    return {
        "dataset_name": manifest.dataset_name,
        "dataset_kind": manifest.dataset_kind,
        "generation": manifest.generation,
        "samples": len(manifest.samples),
        "quarantined": len(manifest.quarantine),
        "codec": manifest.compressor,
        "shuffle_seed": manifest.shuffle_seed,
        "chunk_points": chunk_points,
        "points": points,
        "bytes_total": bytes_total,
        "bytes_stored": bytes_stored,
        "bytes_source": bytes_source,
        "layouts": sorted(layouts),
        "objects_stored": objects_stored,
        "objects_source": objects_source,
    }
