"""The samples that every format holds, and what to read of them; taken from a point store or a matrix."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core._util.redaction import redact
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.store.head import HEAD
from zarr_core.points.convert.conversion import convert_samples
from zarr_core.points.convert.job import ConversionJob, Task
from zarr_core.points.convert.publish import Pending, commit_results
from zarr_core.points.convert.request import ConversionRequest
from zarr_core.points.convert.writer import Repair
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.read.sampling import draw
from zarr_core.points.store.head import load_if_any
from zarr_core.reports import describe_points, describe_ranges, points_by_domain
from zarr_core.shootout.candidates import ENTRIES, MATRIX_ENTRIES, Candidate, chunk_sizes
from zarr_core.shootout.formats import Draws, Runs, Samples
from zarr_core.shootout.formats.matrices import Cells
from zarr_core.shootout.request import ShootoutRequest
from zarr_core.sources.resolve import short_name
from zarr_core.storage import Storage, is_local
from zarr_core.versioning.generations import load

# Upper limit on the bytes of the samples: they are written once per format and tier.
_MAX_BYTES = 1 << 30
_EPOCHS = 8
_SAMPLES = 16
# Bytes of the samples, if their number is not given; they are written once per format and tier.
_BYTES = 128 << 20
# Single features that an epoch reads.
_SINGLE_FEATURES = 256


@dataclass(frozen=True)
class Workload:
    """Samples on local disk, and what to read of them.

    Attributes:
        samples: input of the formats: :class:`~zarr_core.shootout.formats.Samples`, or a matrix.
        draws: by name, what to read; ``ids`` are the items. The recommendation is for the first one.
        entries: the formats that hold such samples.
        chunk_sizes: to compare, in units per chunk; the current one first.
        facts: for the report. "reads" describes an item of each of the draws, "described" has lines for the page.
    """

    samples: Any
    draws: Mapping[str, Any]
    entries: Sequence[Candidate]
    chunk_sizes: Sequence[int]
    facts: dict[str, Any]


def take_points(request: ShootoutRequest, folder: Path, end: float = math.inf) -> Workload:
    """Write samples of a store or of source files below a local folder.

    Args:
        request: of the shootout; by default 16 samples are taken. Of more than 1 GiB fewer are, but at least one.
        folder: local.
        end: time of ``time.monotonic`` after which no further sample is taken.

    Raises:
        ZarrCoreError: there is nothing to measure, or files were given without their kind.
        SourceError, StoreError: the location cannot be read.
    """
    store, source = request.source, redact(request.source)
    found = load_if_any(Storage(store))
    total = 0 if found is None else len(found.samples)
    if found is None:
        store = str(folder / "converted")
        total = _convert_some(request, store, end)
    reader = ZarrChunkReader(store)
    manifest = reader.manifest
    if not manifest.samples:
        raise ZarrCoreError(f"{source} holds no samples")
    fields = list(manifest.fields_of(reader.sample_ids[0]))
    domains = {field: manifest.fields[field].array_name.partition("/")[0] for field in fields}
    chosen: dict[str, dict[str, int]] = {}  # numbers of points by domain
    size = others = chunk_points = 0
    for sample_id in reader.sample_ids:
        if len(chosen) == (request.samples or _SAMPLES):
            break
        if set(manifest.fields_of(sample_id)) != set(fields):
            others += 1
            continue
        grids = manifest.samples[sample_id].domains
        n_bytes = 0
        for field, column in manifest.fields_of(sample_id).items():
            n_bytes += grids[domains[field]].n_points * column.dim * np.dtype(column.dtype).itemsize
        if chosen and (size + n_bytes > _MAX_BYTES or time.monotonic() >= end):
            break
        name = f"s{len(chosen):05d}"
        (folder / "samples" / name).mkdir(parents=True)
        for field, array in reader.read_sample(sample_id, {}, fields).items():
            np.save(folder / "samples" / name / f"{field}.npy", array)
            size += array.nbytes
        chosen[name] = {}
        for domain in domains.values():
            chosen[name][domain] = grids[domain].n_points
            chunk_points = max(chunk_points, grids[domain].chunk_points)
    num_points = points_by_domain(domains.values(), request.num_surface_points, request.num_volume_points)
    drawn: dict[str, list[dict[str, Runs]]] = {}
    whole: dict[str, list[dict[str, Runs]]] = {}
    for name, sizes in chosen.items():
        drawn[name] = []
        for epoch in range(_EPOCHS):
            runs: dict[str, Runs] = {}
            for domain, wanted in num_points.items():
                runs[domain] = draw(
                    sizes[domain], chunk_points, wanted, epoch=epoch, sample_id=name, stream=domain
                ).runs
            drawn[name].append(runs)
        whole[name] = [{domain: [(0, n)] for domain, n in sizes.items()}]
    ranges = {}
    for domain in num_points:  # all samples have the same domains
        numbers = [sizes[domain] for sizes in chosen.values()]
        ranges[domain] = [min(numbers), max(numbers)]
    draws = {
        "draws": Draws(drawn, num_points, chunk_points, domains),
        "samples": Draws(whole, {}, chunk_points, domains),
    }
    facts = {
        "source": source,
        "is_store": found is not None,
        "dataset_kind": request.dataset_kind or short_name(manifest.dataset_kind),
        "dataset_name": manifest.dataset_name,
        "samples": len(chosen),
        "other_fields": others,
        "samples_total": total,
        "fields": {field: manifest.fields[field].dtype for field in fields},
        "points": ranges,
        "num_points": num_points,
        "bytes_raw": size,
        "codec": manifest.compressor,
        "layout": "packed" if any(entry.head for entry in manifest.samples.values()) else "directory",
        "chunk_points": chunk_points,
        "unit": "points",
        "reads": {"draws": "draws", "samples": "whole samples"},
        "described": {
            "points per sample": describe_ranges(ranges),
            "points per draw": describe_points(num_points),
        },
    }
    most = max(num_points.values())
    largest = max(chain(*ranges.values()))
    chunks = chunk_sizes(largest, chunk_points, most, 4 * most, most // 4)
    return Workload(Samples(folder / "samples"), draws, ENTRIES, chunks, facts)


def _convert_some(request: ShootoutRequest, store: str, end: float) -> int:
    """Convert the first samples of a source, and return the number of all.

    Samples are chosen by the sizes of their files, and converted until ``end``; at least one is.
    """
    source = redact(request.source)
    if request.dataset_kind is None:
        raise ZarrCoreError(f"{source} is not a store; if it holds files to convert, pass --dataset-kind")
    root, source_url = (request.source, None) if is_local(request.source) else (None, request.source)
    job = ConversionJob.open(ConversionRequest(request.dataset_kind, store, root=root, source_url=source_url))
    tasks: list[Task] = []
    size = 0
    for sample in job.selection.samples.values():
        files = {file.name: file.size for file in sample.files.values()}
        size += sum(files.values())
        if len(tasks) == (request.samples or _SAMPLES) or (tasks and size > _MAX_BYTES):
            break
        tasks.append((sample, Repair()))
    pending, reason = Pending(), ""
    with closing(convert_samples(job, tasks)) as results:
        for result in results:
            if result.written is not None:
                pending.written[result.sample_id] = result.written
                if time.monotonic() >= end:
                    break
            reason = reason or result.reason
    if not pending.written:
        way_out = "convert a few samples so, and run the shootout on their store"
        raise ZarrCoreError(f"no sample of {source} could be converted: {reason}; {way_out}")
    commit_results(job, pending)
    return len(job.selection.samples)


def take_matrix(request: ShootoutRequest, folder: Path, end: float = math.inf) -> Workload:
    """Copy samples of a matrix, with its first value table, to a matrix below a local folder.

    Args:
        request: of the shootout; by default 128 MiB are taken, but at least a batch.
        folder: local.
        end: time of ``time.monotonic`` after which no further batch of samples is read.

    Raises:
        ZarrCoreError: the matrix is empty.
        StoreError, CorruptChunkError: the matrix cannot be read.
    """
    storage, batch_size, num_features = Storage(request.source), request.batch_size, request.num_features
    state = load(storage, HEAD)
    matrix = WideMatrix(storage, state)
    value, dtype = next(iter(state.values.items()))
    row_bytes = np.dtype(dtype).itemsize * state.axis.length
    ids = matrix.sample_ids[: request.samples or max(batch_size, _BYTES // row_bytes)]
    if not ids:
        raise ZarrCoreError(f"{redact(request.source)} holds no samples")
    blocks: list[np.ndarray] = []
    for start in range(0, len(ids), batch_size):
        if blocks and time.monotonic() >= end:
            ids = ids[:start]
            break
        blocks.append(matrix.read(ids[start : start + batch_size], value=value))
    copy = WideMatrix.create(
        folder / "samples",
        matrix.feature_ids,
        {value: dtype},
        codec=state.codec,
        chunk_features=state.chunk_features,
        column_chunk=state.column_chunk,
    )
    copy.append("shootout", ids, {value: np.concatenate(blocks)})
    n, rng = state.axis.length, np.random.default_rng(0)
    draws = {"samples": Cells(range(len(ids)))}
    reads = {"samples": "whole samples"}
    if num_features < n:
        draws["selected"] = Cells(range(len(ids)), np.sort(rng.choice(n, num_features, replace=False)))
        reads["selected"] = f"samples of {num_features:,} features"
    draws["features"] = Cells(rng.choice(n, min(n, _SINGLE_FEATURES), replace=False).tolist(), by_feature=True)
    reads["features"] = f"features of {len(ids):,} samples"
    facts = {
        "source": redact(request.source),
        "is_store": True,
        "dataset_name": storage.url.rstrip("/").rpartition("/")[2],
        "samples": len(ids),
        "other_fields": 0,
        "samples_total": len(state.rows),
        "fields": {value: dtype},
        "features": n,
        "num_features": num_features,
        "bytes_raw": row_bytes * len(ids),
        "codec": state.codec,
        "chunk_features": state.chunk_features,
        "unit": "features",
        "reads": reads,
        "described": {"value table": f"{value} ({dtype})", "features per sample": f"{n:,}"},
    }
    current = state.chunk_features
    sizes = chunk_sizes(n, current, n, current // 4, current // 16)
    return Workload(copy, draws, MATRIX_ENTRIES, sizes, facts)
