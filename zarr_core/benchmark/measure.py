"""Taking the numbers of a benchmark report; nothing here draws or words them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from zarr_core._util.redaction import redact_url
from zarr_core.benchmark.wording import WAYS
from zarr_core.errors import ZarrCoreError
from zarr_core.format.names import POSITION
from zarr_core.points.reader import ZarrChunkReader
from zarr_core.points.statistics import calculate_store_statistics
from zarr_core.points.verify.store import verify_store
from zarr_core.sources.recorded import RecordedSource
from zarr_core.storage import is_local
from zarr_core.storage.byte_ranges import CountingObjects, Objects, open_objects

# A distribution shows its shape with this many points of this many samples.
_HISTOGRAM_SAMPLES, _HISTOGRAM_POINTS, _HISTOGRAM_BINS = 8, 20_000, 48
# More dots than this only make a picture slow.
_PICTURE_POINTS = 40_000

PointCounts = dict[str, int]


@dataclass(frozen=True)
class _Sample:
    """A sample to measure: its id, its fields, and the source file of each (path, size)."""

    sample_id: str
    fields: tuple[str, ...]
    files: Mapping[str, tuple[str, int]]


def measure(
    pt_root: str,
    zarr_root: str,
    *,
    num_surface_points: int,
    num_volume_points: int,
    n_samples: int | None,
    repeats: int,
    progress: bool,
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Take every number of the report.

    Returns:
        The report, and the arguments of :func:`zarr_core.benchmark.figures.sample_figure` (None where no sample has a
        surface with a scalar on it).
    """
    if min(num_surface_points, num_volume_points, repeats, 1 if n_samples is None else n_samples) < 1:
        raise ZarrCoreError("numbers of points, samples and repeats must be positive")
    counts: list[CountingObjects] = []

    def counting(root: str) -> Objects:
        counts.append(CountingObjects(open_objects(root)))
        return counts[-1]

    reader = ZarrChunkReader(zarr_root)
    num_points = {
        domain: num_surface_points if domain.startswith("surface") else num_volume_points
        for domain in reader.manifest.domains
    }
    chosen = reader.sample_ids[:n_samples]
    equivalence = verify_store(zarr_root, source=pt_root, sample_ids=chosen, progress=progress)
    source = RecordedSource(pt_root)
    samples = [sample for sample in (_located(reader, source, sample_id) for sample_id in chosen) if sample is not None]
    if not samples:
        raise ZarrCoreError(
            f"none of the {len(chosen)} samples of {redact_url(zarr_root)} can be found again in {source.url}; "
            "--source must be the folder that the store was made from"
        )
    bar = partial(tqdm, unit="sample", disable=not progress)
    ids = [sample.sample_id for sample in samples]
    report = {
        "format": 1,
        "created": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": _command(pt_root, zarr_root, num_surface_points, num_volume_points, n_samples, repeats),
        "environment": _environment(),
        "local": is_local(pt_root) and is_local(zarr_root),
        "equivalence": {
            "ok": equivalence.ok,
            "samples": equivalence.samples,
            "arrays": equivalence.arrays,
            "chunks": equivalence.chunks,
            "problems": [str(problem) for problem in equivalence.problems],
        },
        "reads": _reads(
            bar(samples, desc="bytes"),
            lambda: ZarrChunkReader(zarr_root, objects_factory=counting),
            counts,
            num_points,
            repeats,
        ),
        "throughput": _throughput(samples, reader, source, num_points, repeats, bar),
        "fields": _fields(reader, ids, zarr_root),
        "store": _store_facts(reader, samples, redact_url(zarr_root)),
    }
    picture = sample_picture(reader, ids, num_points)
    report["picture"] = picture and picture.pop("sample_id")
    return report, picture


def _located(reader: ZarrChunkReader, source: RecordedSource, sample_id: str) -> _Sample | None:
    """The sample with its source files; None where they are gone, which the equivalence check has then reported."""
    domains = reader.manifest.samples[sample_id].domains
    fields = tuple(name for domain in domains for name in reader.manifest.domains[domain].arrays)
    recorded = reader.read_attributes(sample_id).get("source", {})
    folder = source.folder(sample_id, recorded)
    if folder is None or any(field not in recorded.get("files", {}) for field in fields):
        return None
    paths = {field: f"{folder}/{recorded['files'][field]['name']}" for field in fields}
    try:
        files = {field: (path, source.file(path).size) for field, path in paths.items()}
    except FileNotFoundError:
        return None
    return _Sample(sample_id, fields, files)


def _points_of(reader: ZarrChunkReader, sample: _Sample, num_points: PointCounts) -> PointCounts:
    return {
        domain: n for domain, n in num_points.items() if domain in reader.manifest.samples[sample.sample_id].domains
    }


def _reads(
    samples: Iterable[_Sample],
    open_reader: Callable[[], ZarrChunkReader],
    counts: list[CountingObjects],
    num_points: PointCounts,
    repeats: int,
) -> dict[str, Any]:
    """Mean bytes and requests of one read of a sample, by field and in all, for each of the three ways.

    "total" is a read of a sample that the reader has met before, as in every epoch but the first; "first" is the first
    read of a sample, with what has to be learned about it.
    """
    sums: dict[str, dict[str, np.ndarray]] = defaultdict(lambda: {way: np.zeros(2) for way in WAYS})
    first = {way: np.zeros(2) for way in WAYS}
    n_samples = 0
    readers = {way: open_reader() for way in ("full", "drawn")}
    for sample in samples:
        n_samples += 1
        for field, (_, size) in sample.files.items():
            sums[field]["pt"] += (size, 1)
            first["pt"] += (size, 1)
        for way, reader in readers.items():
            points = _points_of(reader, sample, num_points) if way == "drawn" else {}
            arrays = _array_paths(reader, sample)
            _reset(counts)
            reader.read_sample(sample.sample_id, points, sample.fields)
            first[way] += (sum(c.bytes for c in counts), sum(c.requests for c in counts))
            for epoch in range(1, repeats + 1):
                _reset(counts)
                reader.read_sample(sample.sample_id, points, sample.fields, epoch=epoch)
                for key, (requests, size) in _by_key(counts).items():
                    sums[_field_of(key, arrays)][way] += np.array([size, requests]) / repeats
    if not sums:
        raise ZarrCoreError("there is nothing to measure")

    def mean(both: np.ndarray) -> dict[str, float]:
        return {"bytes": both[0] / n_samples, "requests": both[1] / n_samples}

    fields = {field: {way: mean(ways[way]) for way in WAYS} for field, ways in sums.items()}
    total = {way: mean(np.sum([ways[way] for ways in sums.values()], axis=0)) for way in WAYS}
    return {
        "samples": n_samples,
        "num_points": num_points,
        "fields": fields,
        "total": total,
        "first": {way: mean(first[way]) for way in WAYS},
    }


def _array_paths(reader: ZarrChunkReader, sample: _Sample) -> dict[str, str]:
    relpath = reader.manifest.samples[sample.sample_id].relpath
    return {f"{relpath}/{reader.manifest.fields[field].array_name}/c/": field for field in sample.fields}


def _field_of(key: str, arrays: Mapping[str, str]) -> str:
    return next((field for path, field in arrays.items() if key.startswith(path)), "metadata")


def _reset(counts: Iterable[CountingObjects]) -> None:
    for count in counts:
        count.reset()


def _by_key(counts: Iterable[CountingObjects]) -> dict[str, list[int]]:
    return {key: value for count in counts for key, value in count.by_key.items()}


def _throughput(
    samples: Sequence[_Sample],
    reader: ZarrChunkReader,
    source: RecordedSource,
    num_points: PointCounts,
    repeats: int,
    bar: Callable[..., Iterable[int]],
) -> dict[str, Any]:
    """Seconds of one read, the three ways in turns on the same sample; a first round that is not timed warms caches."""

    def from_pt(sample: _Sample, epoch: int) -> None:
        _load_and_subsample(reader, source, sample, num_points, epoch)

    def full(sample: _Sample, epoch: int) -> None:
        reader.read_sample(sample.sample_id, {}, sample.fields, epoch=epoch)

    def drawn(sample: _Sample, epoch: int) -> None:
        reader.read_sample(sample.sample_id, _points_of(reader, sample, num_points), sample.fields, epoch=epoch)

    ways = dict(zip(WAYS, (from_pt, full, drawn), strict=True))
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with _one_torch_thread():
        for epoch in bar(range(repeats + 1), desc="throughput", unit="round"):
            for sample in samples:
                for way, read in ways.items():
                    started = time.perf_counter()
                    read(sample, epoch)
                    if epoch:
                        seconds[way].append(time.perf_counter() - started)
    return {
        way: {
            "samples_per_s": len(times) / sum(times),
            "p50_ms": 1000 * float(np.percentile(times, 50)),
            "p99_ms": 1000 * float(np.percentile(times, 99)),
            "reads": len(times),
        }
        for way, times in seconds.items()
    }


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Torch as it runs in a DataLoader's worker; with more threads, its small copies wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _load_and_subsample(
    reader: ZarrChunkReader, source: RecordedSource, sample: _Sample, num_points: PointCounts, epoch: int
) -> dict[str, Any]:
    """What a dataset of ``.pt`` files does for a training step: load every file, keep the same random rows of each."""
    import torch

    generator = torch.Generator().manual_seed(epoch)
    fields = {}
    for domain, n_wanted in _points_of(reader, sample, num_points).items():
        rows: torch.Tensor | None = None
        for name in reader.manifest.domains[domain].arrays:
            tensor = source.load(*sample.files[name])
            if rows is None:
                rows = torch.randperm(len(tensor), generator=generator)[:n_wanted]
            fields[name] = tensor[rows]
    return fields


def _fields(reader: ZarrChunkReader, ids: Sequence[str], zarr_root: str) -> dict[str, Any]:
    """Moments of every point of these samples, and histograms of a uniform subset of some of them."""
    statistics = calculate_store_statistics(zarr_root, sample_ids=ids)
    values: dict[str, list[np.ndarray]] = defaultdict(list)
    for sample_id in ids[:_HISTOGRAM_SAMPLES]:
        domains = reader.manifest.samples[sample_id].domains
        names = [name for domain in domains for name in reader.manifest.domains[domain].arrays]
        points = dict.fromkeys(domains, _HISTOGRAM_POINTS)
        for name, rows in reader.read_sample(sample_id, points, names).items():
            values[name].append(rows.astype(np.float64))
    return {
        name: {
            "dtype": column.dtype,
            "histogram": _histogram(np.concatenate(values[name])),
            **{key: statistics[f"{name}_{key}"] for key in ("mean", "std", "min", "max")},
        }
        for name, column in reader.manifest.fields.items()
        if name in values
    }


def _histogram(rows: np.ndarray) -> dict[str, Any]:
    """Counts by component between the 0.1 and 99.9 percentiles; long tails would flatten everything else."""
    low, high = np.percentile(rows, (0.1, 99.9))
    edges = np.linspace(low, high if high > low else low + 1.0, _HISTOGRAM_BINS + 1)
    names = ["value"] if rows.shape[1] == 1 else ["x", "y", "z"] if rows.shape[1] == 3 else range(rows.shape[1])
    counts = {str(name): np.histogram(rows[:, at], edges)[0].tolist() for at, name in enumerate(names)}
    return {"edges": edges.tolist(), "counts": counts}


def _store_facts(reader: ZarrChunkReader, samples: Sequence[_Sample], url: str) -> dict[str, Any]:
    manifest = reader.manifest
    grids: dict[str, list[Any]] = defaultdict(list)
    for entry in manifest.samples.values():
        for domain, grid in entry.domains.items():
            grids[domain].append(grid)
    return {
        "root": url,
        "dataset_name": manifest.dataset_name,
        "dataset_kind": manifest.dataset_kind,
        "generation": manifest.generation,
        "samples": len(manifest.samples),
        "quarantined": len(manifest.quarantine),
        "codec": manifest.compressor,
        "shuffle_seed": manifest.shuffle_seed,
        "chunk_points": {domain: max(grid.chunk_points for grid in found) for domain, found in grids.items()},
        "points": {
            domain: [min(grid.n_points for grid in found), max(grid.n_points for grid in found)]
            for domain, found in grids.items()
        },
        "bytes_total": sum(entry.bytes for entry in manifest.samples.values()),
        "bytes_stored": sum(manifest.samples[sample.sample_id].bytes for sample in samples),
        "bytes_source": sum(size for sample in samples for _, size in sample.files.values()),
    }


def sample_picture(
    reader: ZarrChunkReader, sample_ids: Sequence[str], num_points: Mapping[str, int]
) -> dict[str, Any] | None:
    """What :func:`zarr_core.benchmark.figures.sample_figure` draws, of the first sample whose surface has a scalar.

    Args:
        reader: of the store.
        sample_ids: samples to choose from.
        num_points: points of a draw by domain.

    Returns:
        The figure's arguments, and ``sample_id``; None where no sample has such a surface.
    """
    for sample_id in sample_ids:
        for domain, grid in reader.manifest.samples[sample_id].domains.items():
            columns = reader.manifest.domains[domain].arrays
            scalars = [name for name, column in columns.items() if column.dim == 1]
            if not domain.startswith("surface") or not scalars:
                continue
            scalar = next((name for name in scalars if name.endswith("pressure")), scalars[0])
            fields = (f"{domain}_{POSITION}", scalar)
            shown = reader.read_sample(sample_id, {domain: _PICTURE_POINTS}, fields)
            drawn = reader.read_sample(sample_id, {domain: num_points[domain]}, fields, epoch=1)
            whole, draw = ((read[fields[0]], read[scalar][:, 0].astype(np.float32)) for read in (shown, drawn))
            return {"sample_id": sample_id, "whole": whole, "drawn": draw, "n_points": grid.n_points, "label": scalar}
    return None


def _environment() -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in ("zarr-core", "zarr", "torch", "numpy", "numcodecs")}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "CPU": _cpu_model(),
        "cores": str(cores),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
        **versions,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _command(pt_root: str, zarr_root: str, surface: int, volume: int, n_samples: int | None, repeats: int) -> str:
    words = ["zarr-core", "benchmark", redact_url(zarr_root), "--source", redact_url(pt_root)]
    words += ["--num-surface-points", str(surface), "--num-volume-points", str(volume), "--repeats", str(repeats)]
    return shlex.join([*words, *(["--limit", str(n_samples)] if n_samples else [])])
