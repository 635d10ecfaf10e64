"""Measures the ways to get a training sample, and reports all numbers, distributions of fields, and one picture."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from zarr_core._util.arguments import whole_number
from zarr_core._util.commands import shell
from zarr_core._util.redaction import redact
from zarr_core.benchmark.wording import WAYS
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
from zarr_core.sources.formats.files import path_of
from zarr_core.sources.recorded import RecordedSample, record
from zarr_core.storage import Storage, is_local
from zarr_core.storage.byte_ranges import CountingObjects, open_objects

# Samples and points per histogram: enough to show the shape of a distribution.
_HISTOGRAM_SAMPLES, _HISTOGRAM_POINTS, _HISTOGRAM_BINS = 8, 20_000, 48
# Upper limit on points in the picture; more only slow it down.
_PICTURE_POINTS = 40_000


def make_report(
    source: str,
    store: str,
    num_surface_points: int,
    num_volume_points: int,
    samples: int | None,
    repeats: int,
    dataset_kind: str | None,
    progress: bool,
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Take all numbers of the report. See :func:`zarr_core.benchmark.run_benchmark` for the arguments.

    Returns:
        The report, and the arguments of :func:`zarr_core.benchmark.page.sample_figure` (None if no sample has a
        scalar on its surface).

    Raises:
        ZarrCoreError: a number is not positive, no sample can be found in the source, or the store is a thin copy.
    """
    numbers = {
        "num_surface_points": num_surface_points,
        "num_volume_points": num_volume_points,
        "repeats": repeats,
        "samples": samples,
    }
    for name, value in numbers.items():
        if value is not None:
            whole_number(name, value, 1)
    reader = ZarrChunkReader(store)
    origin = reader.manifest.origin
    if "points" in origin:
        raise ZarrCoreError(
            f"{redact(store)} has {origin['points']} of the points of its samples: reading them is less "
            f"work than reading the source: measure the store that it is a copy of, {origin['store']}"
        )
    num_points = points_by_domain(reader.manifest.domains, num_surface_points, num_volume_points)
    chosen = reader.sample_ids[:samples]
    compared = ComparedSource.open(source, reader.manifest, dataset_kind)
    equivalence = verify_store(store, source=compared, sample_ids=chosen, progress=progress)
    located = []
    most: dict[str, int] = {}
    for sample_id in chosen:
        sample = locate_sample(reader, compared, sample_id)
        if sample is None:  # the equivalence check has reported that its files no longer exist
            continue
        located.append(sample)
        for domain, grid in reader.manifest.samples[sample_id].domains.items():
            most[domain] = max(most.get(domain, 0), grid.n_points)
    if not located:
        raise ZarrCoreError(
            f"none of the {len(chosen)} samples of {redact(store)} are in {compared.files.url}; "
            "the source must be the folder or URL that the store was made from"
        )
    num_points = {domain: min(n, most[domain]) for domain, n in num_points.items() if domain in most}
    bar = partial(tqdm, unit="sample", disable=not progress)
    ids = [sample.sample_id for sample in located]
    report = {
        "format": 1,
        "created": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": _command(store, source, numbers | {"dataset_kind": dataset_kind}),
        "environment": environment(),
        "local": is_local(source) and is_local(store),
        "equivalence": {
            "ok": equivalence.ok,
            "samples": equivalence.samples,
            "arrays": equivalence.arrays,
            "chunks": equivalence.chunks,
            "how": equivalence.how,
            "problems": list(map(str, equivalence.problems)),
        },
        "reads": count_reads(bar(located, desc="bytes"), store, num_points, repeats),
        "throughput": time_reads(located, reader, num_points, repeats, bar),
        "fields": field_distributions(reader, ids),
        "error_bounds": _error_bounds(reader, located[0]),
        "store": {"root": redact(store), **_store_facts(reader, located)},
    }
    picture = sample_picture(reader, ids, num_points)
    report["picture"] = picture and picture.pop("sample_id")
    return report, picture


def _command(store: str, source: str, options: Mapping[str, Any]) -> str:
    """The command line that measures again."""
    words = [redact(store), "--source", redact(source)]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shell("benchmark", *words)


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
    sums: Counter[str] = Counter()
    layouts = set()
    for entry in manifest.samples.values():
        sums["bytes_total"] += entry.bytes
        for domain, grid in entry.domains.items():
            low, high = points.get(domain, (grid.n_points, grid.n_points))
            points[domain] = [min(low, grid.n_points), max(high, grid.n_points)]
            chunk_points[domain] = max(chunk_points.get(domain, 0), grid.chunk_points)
    for sample in samples:
        entry = manifest.samples[sample.sample_id]
        sizes, inodes = footprint(storage, entry)
        layouts.add(entry.layout)
        sums["objects_stored"] += len(sizes)
        sums["inodes_stored"] += inodes
        # No bytes of the arrays are recorded of a sample of another program.
        sums["bytes_stored"] += entry.bytes or chunk_object_bytes(sizes, entry.relpath)
        sums["objects_source"] += len(sample.paths)
        local = sample.source.storage.is_local
        sums["inodes_source"] += count_inodes(sample.paths, sample.source.folder) if local else 0
        sums["bytes_source"] += sum(sample.fields.values())
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
        "layouts": sorted(layouts),
        **sums,
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

    With them its ``sample_id``; None if no sample has such a surface.
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
class MeasuredSample:
    """A sample to measure.

    Attributes:
        fields: bytes of the source file of each field, by canonical name; 0 for further fields of the same file.
        source: its source files.
        paths: its source files, below the root of the source.
    """

    sample_id: str
    fields: Mapping[str, int]
    source: RecordedSample
    paths: frozenset[str]

    def read(
        self, reader: ZarrChunkReader, way: str, num_points: Mapping[str, int], epoch: int = 0
    ) -> dict[str, np.ndarray]:
        """Read it from the store, whole or drawn."""
        return reader.read_sample(self.sample_id, num_points if way == "drawn" else {}, self.fields, epoch=epoch)


def locate_sample(reader: ZarrChunkReader, source: ComparedSource, sample_id: str) -> MeasuredSample | None:
    """The sample with its source files; None if they no longer exist."""
    recorded: Mapping[str, Any] = {}
    if reader.manifest.samples[sample_id].is_ours:
        recorded = reader.read_attributes(sample_id).get("source", {})
    elif sample_id in source.found:
        recorded = record(source.found[sample_id])
    sample = RecordedSample.find(source.files, sample_id, recorded)
    if sample is None:
        return None
    fields: dict[str, int] = {}
    paths: set[str] = set()
    seen: set[str] = set()
    for field in reader.manifest.fields_of(sample_id):
        if field not in sample.files:
            return None
        try:
            file = sample.file(field)
        except FileNotFoundError:
            return None
        fields[field] = 0 if file.name in seen else file.size
        paths.update(path_of(sample.folder, part.name) for part in file.stored)
        seen.add(file.name)
    return MeasuredSample(sample_id, fields, sample, frozenset(paths))


def count_reads(
    samples: Iterable[MeasuredSample], store: str, num_points: Mapping[str, int], repeats: int
) -> dict[str, Any]:
    """Mean bytes and requests per read of a sample, by field and in total, for each way.

    "total" is a read of a sample that the reader has read before, as in every epoch but the first. "first" is the
    first read of a sample, which includes its metadata.

    Raises:
        ZarrCoreError: there are no fields to measure.
    """
    count = CountingObjects(open_objects(store))
    readers = {way: ZarrChunkReader(store, objects_factory=lambda _: count) for way in ("full", "drawn")}
    # Sums of bytes and requests, by field and way.
    fields: dict[str, dict[str, np.ndarray]] = defaultdict(_zeros)
    first = _zeros()
    n_samples = 0
    for sample in samples:
        n_samples += 1
        for field, size in sample.fields.items():
            fields[field]["pt"] += (size, size > 0)
            first["pt"] += (size, size > 0)
        for way, reader in readers.items():
            count.reset()
            sample.read(reader, way, num_points)
            first[way] += (count.bytes, count.requests)
            for epoch in range(1, repeats + 1):
                count.reset()
                sample.read(reader, way, num_points, epoch)
                entry = reader.manifest.samples[sample.sample_id]
                columns = reader.manifest.fields
                paths = {f"{entry.relpath}/{columns[field].array_name}/c/": field for field in sample.fields}
                if entry.head:  # one request may hold several fields
                    paths = {entry.relpath: "all fields"}
                for key, (requests, size) in count.by_key.items():
                    field = next((field for path, field in paths.items() if key.startswith(path)), "metadata")
                    fields[field][way] += np.array([size, requests]) / repeats
    if not fields:
        raise ZarrCoreError(f"{redact(store)} has no fields to measure")
    total = _zeros()
    for ways in fields.values():
        for way, sums in ways.items():
            total[way] += sums
    return {
        "samples": n_samples,
        "num_points": dict(num_points),
        "fields": {field: _means(ways, n_samples) for field, ways in fields.items()},
        "total": _means(total, n_samples),
        "first": _means(first, n_samples),
    }


def _zeros() -> dict[str, np.ndarray]:
    return {way: np.zeros(2) for way in WAYS}


def _means(sums: Mapping[str, np.ndarray], n_samples: int) -> dict[str, dict[str, float]]:
    """Bytes and requests per sample by way."""
    means = {}
    for way, (size, requests) in sums.items():
        means[way] = {"bytes": size / n_samples, "requests": requests / n_samples}
    return means


def time_reads(
    samples: Sequence[MeasuredSample],
    reader: ZarrChunkReader,
    num_points: Mapping[str, int],
    repeats: int,
    bar: Callable[..., Iterable[int]],
) -> dict[str, Any]:
    """Samples per second and quantiles of the time per read, for each way.

    The ways take turns on the same sample. A first round, not timed, warms the caches.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    with _one_torch_thread():
        for epoch in bar(range(repeats + 1), desc="throughput", unit="round"):
            for sample in samples:
                for way in WAYS:
                    started = time.perf_counter()
                    if way == "pt":
                        _load_and_subsample(reader, sample, num_points, epoch)
                    else:
                        sample.read(reader, way, num_points, epoch)
                    if epoch:
                        seconds[way].append(time.perf_counter() - started)
    return {way: _rate_and_quantiles(times) for way, times in seconds.items()}


def _rate_and_quantiles(seconds: Sequence[float]) -> dict[str, Any]:
    p50, p99 = 1000 * np.percentile(seconds, (50, 99))
    rate = len(seconds) / sum(seconds)
    return {"samples_per_s": rate, "p50_ms": float(p50), "p99_ms": float(p99), "reads": len(seconds)}


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Limit torch to one thread, as in a DataLoader worker; with more threads, small copies wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _load_and_subsample(
    reader: ZarrChunkReader, sample: MeasuredSample, num_points: Mapping[str, int], epoch: int
) -> dict[str, Any]:
    """Load every ``.pt`` file of a sample and keep the same random rows of each, as a dataset of ``.pt`` files does."""
    generator = torch.Generator().manual_seed(epoch)
    fields = {}
    for domain, n_wanted in num_points.items():
        rows: torch.Tensor | None = None
        for name in reader.manifest.domains[domain].arrays:
            if name not in sample.fields:
                continue
            tensor = sample.source.load(name)
            if rows is None:
                rows = torch.randperm(len(tensor), generator=generator)[:n_wanted]
            fields[name] = tensor[rows]
    return fields
