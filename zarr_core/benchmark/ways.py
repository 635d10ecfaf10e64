"""Counts and times of the three ways to get a training sample: ``.pt`` files, the whole sample, a draw."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from zarr_core._util.redaction import redact
from zarr_core.benchmark.wording import WAYS
from zarr_core.errors import ZarrCoreError
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.verify.source import ComparedSource
from zarr_core.sources.recorded import RecordedSample
from zarr_core.storage.byte_ranges import CountingObjects, open_objects

PointCounts = dict[str, int]


@dataclass(frozen=True)
class MeasuredSample:
    """A sample to measure.

    Attributes:
        sample_id: its id.
        fields: canonical names of its fields.
        source: its source files.
        sizes: bytes of each field's source file; 0 for further fields of the same file.
    """

    sample_id: str
    fields: tuple[str, ...]
    source: RecordedSample
    sizes: Mapping[str, int]


def locate_sample(reader: ZarrChunkReader, source: ComparedSource, sample_id: str) -> MeasuredSample | None:
    """The sample with its source files; None if they no longer exist, which the equivalence check has reported."""
    fields = tuple(reader.manifest.fields_of(sample_id))
    recorded = source.of(sample_id, reader.manifest.samples[sample_id])
    if recorded is None:
        recorded = reader.read_attributes(sample_id).get("source", {})
    sample = source.files.sample(sample_id, recorded)
    if sample is None or any(field not in sample.files for field in fields):
        return None
    first = {sample.files[field]["name"]: field for field in reversed(fields)}
    try:
        sizes = {field: sample.file(field).size for field in fields}
    except FileNotFoundError:
        return None
    sizes = {field: size if first[sample.files[field]["name"]] == field else 0 for field, size in sizes.items()}
    return MeasuredSample(sample_id, fields, sample, sizes)


def _points_of(reader: ZarrChunkReader, sample: MeasuredSample, num_points: PointCounts) -> PointCounts:
    return {
        domain: n for domain, n in num_points.items() if domain in reader.manifest.samples[sample.sample_id].domains
    }


def count_reads(
    samples: Iterable[MeasuredSample],
    zarr_root: str,
    num_points: PointCounts,
    repeats: int,
) -> dict[str, Any]:
    """Mean bytes and requests per read of a sample, by field and in total, for each way.

    "total" is a read of a sample that the reader has read before, as in every epoch but the first. "first" is the
    first read of a sample, which includes its metadata.

    Raises:
        ZarrCoreError: there are no fields to measure.
    """
    counts: list[CountingObjects] = []

    def counting(root: str) -> CountingObjects:
        counts.append(CountingObjects(open_objects(root)))
        return counts[-1]

    sums: dict[str, dict[str, np.ndarray]] = defaultdict(lambda: {way: np.zeros(2) for way in WAYS})
    first = {way: np.zeros(2) for way in WAYS}
    n_samples = 0
    readers = {way: ZarrChunkReader(zarr_root, objects_factory=counting) for way in ("full", "drawn")}
    for sample in samples:
        n_samples += 1
        for field, size in sample.sizes.items():
            sums[field]["pt"] += (size, size > 0)
            first["pt"] += (size, size > 0)
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
        raise ZarrCoreError(f"{redact(zarr_root)} has no fields to measure")

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


def _array_paths(reader: ZarrChunkReader, sample: MeasuredSample) -> dict[str, str]:
    relpath = reader.manifest.samples[sample.sample_id].relpath
    return {f"{relpath}/{reader.manifest.fields[field].array_name}/c/": field for field in sample.fields}


def _field_of(key: str, arrays: Mapping[str, str]) -> str:
    return next((field for path, field in arrays.items() if key.startswith(path)), "metadata")


def _reset(counts: Iterable[CountingObjects]) -> None:
    for count in counts:
        count.reset()


def _by_key(counts: Iterable[CountingObjects]) -> dict[str, list[int]]:
    return {key: value for count in counts for key, value in count.by_key.items()}


def time_reads(
    samples: Sequence[MeasuredSample],
    reader: ZarrChunkReader,
    num_points: PointCounts,
    repeats: int,
    bar: Callable[..., Iterable[int]],
) -> dict[str, Any]:
    """Samples per second and quantiles of the time per read, for each way.

    The ways take turns on the same sample. A first round, not timed, warms the caches.
    """

    def from_pt(sample: MeasuredSample, epoch: int) -> None:
        _load_and_subsample(reader, sample, num_points, epoch)

    def full(sample: MeasuredSample, epoch: int) -> None:
        reader.read_sample(sample.sample_id, {}, sample.fields, epoch=epoch)

    def drawn(sample: MeasuredSample, epoch: int) -> None:
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
    """Limit torch to one thread, as in a DataLoader worker; with more threads, small copies wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _load_and_subsample(
    reader: ZarrChunkReader, sample: MeasuredSample, num_points: PointCounts, epoch: int
) -> dict[str, Any]:
    """Load every ``.pt`` file of a sample and keep the same random rows of each, as a dataset of ``.pt`` files does."""
    import torch

    generator = torch.Generator().manual_seed(epoch)
    fields = {}
    for domain, n_wanted in _points_of(reader, sample, num_points).items():
        rows: torch.Tensor | None = None
        for name in (name for name in reader.manifest.domains[domain].arrays if name in sample.fields):
            tensor = sample.source.load(name)
            if rows is None:
                rows = torch.randperm(len(tensor), generator=generator)[:n_wanted]
            fields[name] = tensor[rows]
    return fields
