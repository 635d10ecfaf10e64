"""What a benchmark is asked for, and its report: all numbers, distributions of fields, and the picture of a sample."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
from tqdm import tqdm

from zarr_core._util.arguments import whole_number
from zarr_core._util.commands import shell
from zarr_core._util.redaction import redact
from zarr_core.benchmark.measure import MeasuredSample, count_reads, locate_sample, time_reads
from zarr_core.errors import ZarrCoreError
from zarr_core.format.names import POSITION, FieldName
from zarr_core.points.convert.savings import savings
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.statistics import calculate_store_statistics
from zarr_core.points.store.footprint import USD_PER_MILLION_GETS, count_inodes, footprint
from zarr_core.points.store.group import chunk_object_bytes, recorded_rounding
from zarr_core.points.store.settings import ConversionSettings, current_settings
from zarr_core.points.verify.source import ComparedSource
from zarr_core.points.verify.store import verify_store
from zarr_core.reports import environment, points_by_domain
from zarr_core.storage import Storage, is_local

# Samples and points per histogram: enough to show the shape of a distribution.
_HISTOGRAM_SAMPLES, _HISTOGRAM_POINTS, _HISTOGRAM_BINS = 8, 20_000, 48
# Upper limit on points in the picture; more only slow it down.
_PICTURE_POINTS = 40_000


def make_report(request: BenchmarkRequest) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Take all numbers of the report.

    Returns:
        The report, and the arguments of :func:`zarr_core.benchmark.page.sample_figure` (None if no sample has a
        scalar on its surface).

    Raises:
        ZarrCoreError: no sample can be found in the source, or the store is a thin copy.
    """
    reader = ZarrChunkReader(request.store)
    origin = reader.manifest.origin
    if "points" in origin:
        raise ZarrCoreError(
            f"{redact(request.store)} has {origin['points']} of the points of its samples: reading them is less "
            f"work than reading the source: measure the store that it is a copy of, {origin['store']}"
        )
    num_points = points_by_domain(reader.manifest.domains, request.num_surface_points, request.num_volume_points)
    chosen = reader.sample_ids[: request.samples]
    source = ComparedSource.open(request.source, reader.manifest, request.dataset_kind)
    equivalence = verify_store(request.store, source=source, sample_ids=chosen, progress=request.progress)
    samples = []
    most: dict[str, int] = {}
    for sample_id in chosen:
        sample = locate_sample(reader, source, sample_id)
        if sample is not None:  # else the equivalence check has reported that its files no longer exist
            samples.append(sample)
    if not samples:
        raise ZarrCoreError(
            f"none of the {len(chosen)} samples of {redact(request.store)} are in {source.files.url}; "
            "the source must be the folder or URL that the store was made from"
        )
    for sample in samples:
        for domain, grid in reader.manifest.samples[sample.sample_id].domains.items():
            most[domain] = max(most.get(domain, 0), grid.n_points)
    num_points = {domain: min(n, most[domain]) for domain, n in num_points.items() if domain in most}
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
    storage = Storage(reader.root)
    bytes_total = bytes_stored = bytes_source = objects_stored = objects_source = inodes_stored = inodes_source = 0
    layouts = set()
    for entry in manifest.samples.values():
        bytes_total += entry.bytes
        for domain, grid in entry.domains.items():
            low, high = points.get(domain, (grid.n_points, grid.n_points))
            points[domain] = [min(low, grid.n_points), max(high, grid.n_points)]
            chunk_points[domain] = max(chunk_points.get(domain, 0), grid.chunk_points)
    for sample in samples:
        entry = manifest.samples[sample.sample_id]
        taken = footprint(storage, manifest, entry)
        layouts.add(taken.layout)
        objects_stored += len(taken.sizes)
        inodes_stored += taken.inodes
        # No bytes of the arrays are recorded of a sample of another program.
        bytes_stored += entry.bytes or chunk_object_bytes(taken.sizes, entry.relpath)
        files = sample.paths
        objects_source += len(files)
        inodes_source += count_inodes(files, sample.source.folder) if sample.source.storage.is_local else 0
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
        "inodes_stored": inodes_stored,
        "inodes_source": inodes_source,
        "usd_per_million_gets": USD_PER_MILLION_GETS,
    }


def field_distributions(reader: ZarrChunkReader, ids: Sequence[str]) -> dict[str, Any]:
    """Moments over every point of the samples, and histograms of a uniform subset of some of them."""
    statistics = calculate_store_statistics(reader.root, sample_ids=ids)
    errors: dict[str, list[float]] = defaultdict(list)
    for sample_id in ids:
        for name, error in recorded_rounding(reader.read_attributes(sample_id)).items():
            errors[name].append(error.largest[0])
    values: dict[str, list[np.ndarray]] = defaultdict(list)
    for sample_id in ids[:_HISTOGRAM_SAMPLES]:
        points = dict.fromkeys(reader.manifest.samples[sample_id].domains, _HISTOGRAM_POINTS)
        for name, rows in reader.read_sample(sample_id, points).items():
            values[name].append(rows.astype(np.float64))
    found = {}
    for name, column in reader.manifest.fields.items():
        if name in values:
            found[name] = {
                "dtype": column.dtype,
                # The largest of the samples and components; None if another program wrote one of them.
                "rms_error": max(errors[name]) if len(errors[name]) == len(ids) else None,
                "histogram": _histogram(np.concatenate(values[name])),
                **{key: statistics[f"{name}_{key}"] for key in ("mean", "std", "min", "max")},
            }
    return found


def _histogram(rows: np.ndarray) -> dict[str, Any]:
    """Counts by component between the 0.1 and 99.9 percentiles, so that long tails do not flatten the histogram."""
    low, high = np.percentile(rows, (0.1, 99.9))
    edges = np.linspace(low, high if high > low else low + 1.0, _HISTOGRAM_BINS + 1)
    names = {1: ["value"], 3: ["x", "y", "z"]}.get(rows.shape[1]) or range(rows.shape[1])
    counts = {}
    for name, column in zip(names, rows.T, strict=True):
        counts[str(name)] = np.histogram(column, edges)[0].tolist()
    return {"edges": edges.tolist(), "counts": counts}


def sample_picture(
    reader: ZarrChunkReader, sample_ids: Sequence[str], num_points: Mapping[str, int]
) -> dict[str, Any] | None:
    """Arguments of :func:`zarr_core.benchmark.page.sample_figure` for the first sample with a scalar on its surface.

    Args:
        reader: reader of the store.
        sample_ids: samples to choose from.
        num_points: points per draw by domain.

    Returns:
        The figure's arguments and ``sample_id``; None if no sample has such a surface.
    """
    for sample_id in sample_ids:
        for domain, grid in reader.manifest.samples[sample_id].domains.items():
            columns = reader.manifest.domains[domain].arrays
            scalars = [name for name, column in columns.items() if column.dim == 1]
            if not domain.startswith("surface") or not scalars:
                continue
            pressures = [name for name in scalars if name.endswith("pressure")]
            position, scalar = f"{domain}_{POSITION}", (pressures or scalars)[0]
            picture = {"sample_id": sample_id, "n_points": grid.n_points, "label": scalar}
            for name, points, epoch in (("whole", _PICTURE_POINTS, 0), ("drawn", num_points[domain], 1)):
                read = reader.read_sample(sample_id, {domain: points}, (position, scalar), epoch=epoch)
                picture[name] = (read[position], read[scalar][:, 0].astype(np.float32))
            return picture
    return None


@dataclass(frozen=True)
class BenchmarkRequest:
    """Arguments of :func:`zarr_core.benchmark.run_benchmark`, checked."""

    source: str
    store: str
    num_surface_points: int
    num_volume_points: int
    samples: int | None
    repeats: int
    dataset_kind: str | None
    progress: bool

    def __post_init__(self) -> None:
        for name in ("num_surface_points", "num_volume_points", "repeats"):
            whole_number(name, getattr(self, name), 1)
        if self.samples is not None:
            whole_number("samples", self.samples, 1)

    @property
    def command(self) -> str:
        """The command line that measures again."""
        words = [redact(self.store), "--source", redact(self.source)]
        for name in ("num_surface_points", "num_volume_points", "repeats", "samples", "dataset_kind"):
            value = getattr(self, name)
            if value is not None:
                words += [f"--{name.replace('_', '-')}", str(value)]
        return shell("benchmark", *words)
