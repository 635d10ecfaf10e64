"""Measures the ways to get a training sample: bytes and requests; samples per second, median time and its p99."""

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
from zarr_core.sources.formats.files import path_of
from zarr_core.sources.recorded import RecordedSample, record
from zarr_core.storage.byte_ranges import CountingObjects, open_objects


@dataclass(frozen=True)
class MeasuredSample:
    """A sample to measure.

    Attributes:
        sample_id: its id.
        fields: canonical names of its fields.
        source: its source files.
        sizes: bytes of each field's source file; 0 for further fields of the same file.
        paths: its source files, below the root of the source.
    """

    sample_id: str
    fields: tuple[str, ...]
    source: RecordedSample
    sizes: Mapping[str, int]
    paths: frozenset[str]

    def read(
        self, reader: ZarrChunkReader, way: str, num_points: Mapping[str, int], epoch: int = 0
    ) -> dict[str, np.ndarray]:
        """Read it from the store, whole or drawn."""
        points = self.points(reader, num_points) if way == "drawn" else {}
        return reader.read_sample(self.sample_id, points, self.fields, epoch=epoch)

    def points(self, reader: ZarrChunkReader, num_points: Mapping[str, int]) -> dict[str, int]:
        """Points to draw of the domains that it has."""
        domains = reader.manifest.samples[self.sample_id].domains
        return {domain: n for domain, n in num_points.items() if domain in domains}


def locate_sample(reader: ZarrChunkReader, source: ComparedSource, sample_id: str) -> MeasuredSample | None:
    """The sample with its source files; None if they no longer exist."""
    fields = tuple(reader.manifest.fields_of(sample_id))
    recorded: Mapping[str, Any] = {}
    if reader.manifest.samples[sample_id].is_ours:
        recorded = reader.read_attributes(sample_id).get("source", {})
    elif sample_id in source.found:
        recorded = record(source.found[sample_id])
    sample = source.files.sample(sample_id, recorded)
    if sample is None:
        return None
    sizes: dict[str, int] = {}
    paths: set[str] = set()
    seen: set[str] = set()
    for field in fields:
        if field not in sample.files:
            return None
        try:
            file = sample.file(field)
        except FileNotFoundError:
            return None
        sizes[field] = 0 if file.name in seen else file.size
        paths.update(path_of(sample.folder, part.name) for part in file.stored)
        seen.add(file.name)
    return MeasuredSample(sample_id, fields, sample, sizes, frozenset(paths))


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
        for field, size in sample.sizes.items():
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
    import torch

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
    import torch

    generator = torch.Generator().manual_seed(epoch)
    fields = {}
    for domain, n_wanted in sample.points(reader, num_points).items():
        rows: torch.Tensor | None = None
        for name in reader.manifest.domains[domain].arrays:
            if name not in sample.fields:
                continue
            tensor = sample.source.load(name)
            if rows is None:
                rows = torch.randperm(len(tensor), generator=generator)[:n_wanted]
            fields[name] = tensor[rows]
    return fields
