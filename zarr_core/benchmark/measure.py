"""Takes the numbers of a benchmark report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tqdm import tqdm

from zarr_core._util.commands import shell
from zarr_core._util.redaction import redact
from zarr_core.benchmark.contents import field_distributions, sample_picture
from zarr_core.benchmark.ways import MeasuredSample, count_reads, locate_sample, time_reads
from zarr_core.errors import ZarrCoreError
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.group import chunk_object_bytes
from zarr_core.points.verify.source import ComparedSource
from zarr_core.points.verify.store import verify_store
from zarr_core.reports.environment import environment
from zarr_core.storage import Storage, is_local


def measure(
    pt_root: str,
    zarr_root: str,
    *,
    num_surface_points: int,
    num_volume_points: int,
    n_samples: int | None,
    repeats: int,
    progress: bool,
    dataset_kind: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Take all numbers of the report; arguments as for :func:`zarr_core.benchmark.run_benchmark`.

    Returns:
        The report, and the arguments of :func:`zarr_core.benchmark.figures.sample_figure` (None if no sample has a
        scalar on its surface).

    Raises:
        ZarrCoreError: a number is not positive, or no sample can be found in the source.
    """
    if min(num_surface_points, num_volume_points, repeats, 1 if n_samples is None else n_samples) < 1:
        raise ZarrCoreError("numbers of points, samples and repeats must be positive")
    reader = ZarrChunkReader(zarr_root)
    num_points = {
        domain: num_surface_points if domain.startswith("surface") else num_volume_points
        for domain in reader.manifest.domains
    }
    chosen = reader.sample_ids[:n_samples]
    source = ComparedSource.open(pt_root, reader.manifest, dataset_kind)
    equivalence = verify_store(zarr_root, source=source, sample_ids=chosen, progress=progress)
    located = (locate_sample(reader, source, i) for i in chosen)
    samples = [sample for sample in located if sample is not None]
    if not samples:
        raise ZarrCoreError(
            f"none of the {len(chosen)} samples of {redact(zarr_root)} are in {source.files.url}; "
            "the source must be the folder or URL that the store was made from"
        )
    bar = partial(tqdm, unit="sample", disable=not progress)
    ids = [sample.sample_id for sample in samples]
    report = {
        "format": 1,
        "created": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": _command(
            pt_root, zarr_root, num_surface_points, num_volume_points, n_samples, repeats, dataset_kind
        ),
        "environment": environment(),
        "local": is_local(pt_root) and is_local(zarr_root),
        "equivalence": {
            "ok": equivalence.ok,
            "samples": equivalence.samples,
            "arrays": equivalence.arrays,
            "chunks": equivalence.chunks,
            "how": equivalence.how,
            "problems": [str(problem) for problem in equivalence.problems],
        },
        "reads": count_reads(bar(samples, desc="bytes"), zarr_root, num_points, repeats),
        "throughput": time_reads(samples, reader, num_points, repeats, bar),
        "fields": field_distributions(reader, ids, zarr_root),
        "store": _store_facts(reader, samples, redact(zarr_root)),
    }
    picture = sample_picture(reader, ids, num_points)
    report["picture"] = picture and picture.pop("sample_id")
    return report, picture


def _store_facts(reader: ZarrChunkReader, samples: Sequence[MeasuredSample], url: str) -> dict[str, Any]:
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
        "bytes_stored": sum(_stored_bytes(reader, sample.sample_id) for sample in samples),
        "bytes_source": sum(size for sample in samples for size in sample.sizes.values()),
    }


def _stored_bytes(reader: ZarrChunkReader, sample_id: str) -> int:
    """Bytes of the arrays of a sample. Another program records none, so its objects are listed."""
    entry = reader.manifest.samples[sample_id]
    sizes = {} if entry.bytes else Storage(reader.root).list(entry.relpath)
    return entry.bytes or chunk_object_bytes(sizes, entry.relpath)


def _command(
    pt_root: str, zarr_root: str, surface: int, volume: int, n_samples: int | None, repeats: int, kind: str | None
) -> str:
    options = {"--source": redact(pt_root), "--num-surface-points": surface, "--num-volume-points": volume}
    options |= {"--repeats": repeats} | ({"--limit": n_samples} if n_samples else {})
    options |= {"--dataset-kind": kind} if kind else {}
    words = (str(word) for option in options.items() for word in option)
    return shell("benchmark", redact(zarr_root), *words)
