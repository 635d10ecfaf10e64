"""Quality of what a wide matrix holds: what is missing, how values are distributed, which samples stand out.

``zarr-core quality STORE --output FOLDER`` writes ``quality.json`` and ``quality.html``. Figures are
kept batch by batch, and no batch ever changes: a report that is made again reads only the batches that are new.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.errors import UnknownFieldError
from zarr_core.matrix.wide import WideMatrix
from zarr_core.reports import report_imports

Report = dict[str, Any]

#: Parts of the range 0 to 1 whose values are counted.
HISTOGRAM_BINS = 50
#: Parts of the feature axis whose missing cells are counted.
AXIS_PARTS = 64
#: Edges of the coverage that is counted; what lies beyond the last is counted in the last.
COVERAGE_EDGES = (0, 1, 2, 5, 10, 20, 30, 50, 100, 200, 500, 1000)

# Another number, and figures that were kept are made anew.
_VERSION = 1
_BLOCK_BYTES = 64 << 20
# A batch's median profile, and the distances from it, are taken at so many features all along the axis.
_PROBES = 10_000
_LEAST_SAMPLES = 4  # of a batch in which one can stand out
_FAR = 5.0  # robust standard deviations
_LEAST_MISSING = 0.05  # a share more than usual that is worth a word
_LEAST_DISTANCE = 0.01


def quality_report(
    matrix: WideMatrix, output_dir: str | Path, *, value: str = "beta", coverage: str | None = "coverage"
) -> Report:
    """Measure a matrix and write ``quality.json`` and ``quality.html``.

    Args:
        matrix: as it is at its generation.
        output_dir: local folder, made if it is missing. What an earlier report there says of a batch is taken over.
        value: table of shares between 0 and 1.
        coverage: table of how often each cell was measured; left out where the matrix has no such table.

    Returns:
        What ``quality.json`` holds.

    Raises:
        ZarrCoreError: matplotlib is missing, the matrix has no such value, or cannot be read.
    """
    render_page = _page_renderer()
    folder = Path(output_dir)
    report = measure_quality(matrix, value=value, coverage=coverage, known=_read_report(folder / "quality.json"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "quality.html").write_text(render_page(report))
    (folder / "quality.json").write_text(json.dumps(report, indent=1) + "\n")
    return report


def measure_quality(
    matrix: WideMatrix,
    *,
    value: str = "beta",
    coverage: str | None = "coverage",
    known: Mapping[str, Any] | None = None,
) -> Report:
    """The figures of every batch, and the samples that stand out in theirs.

    Args:
        matrix: as it is at its generation.
        value, coverage: as for :func:`quality_report`.
        known: an earlier report on the same matrix, whose batches are not read again.
    """
    if value not in matrix.values:
        raise UnknownFieldError(f"{matrix.url} has no value table {value!r}; it has {', '.join(matrix.values)}")
    coverage = coverage if coverage in matrix.values else None
    about = {
        "version": _VERSION,
        "matrix_id": matrix.matrix_id,
        "value": value,
        "coverage": coverage,
        "features": matrix.shape[1],
    }
    kept = known["batches"] if known and {name: known.get(name) for name in about} == about else {}
    batches = {
        batch_id: kept[batch_id] if batch_id in kept else measure_batch(matrix, sample_ids, value, coverage)
        for batch_id, sample_ids in matrix.batches.items()
    }
    return {
        **about,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "url": matrix.url,
        "generation": matrix.generation,
        "samples": matrix.shape[0],
        "measured_batches": sorted(batches.keys() - kept.keys()),
        "batches": batches,
        "outliers": [found for batch_id, batch in batches.items() for found in stand_out(batch_id, batch)],
    }


def measure_batch(matrix: WideMatrix, sample_ids: Sequence[str], value: str, coverage: str | None) -> dict[str, Any]:
    """Figures of one batch; some rows are in memory at a time.

    Returns:
        ``cells`` and how many are ``missing``; ``features`` that every, some or no sample has a value of;
        ``missing_along_axis``, shares; ``histogram`` of the values, with how many lie ``below`` 0 and ``above`` 1;
        ``coverage``; and ``samples`` with the figures of each.
    """
    n_features = matrix.shape[1]
    probes = np.unique(np.linspace(0, n_features - 1, min(n_features, _PROBES)).astype(np.int64))
    profile = np.empty((len(sample_ids), len(probes)), np.float32)
    observed = np.zeros(n_features, np.int32)
    histogram = np.zeros(HISTOGRAM_BINS, np.int64)
    below = above = 0
    samples: dict[str, dict[str, Any]] = {}
    for number, sample_id, row in _rows(matrix, sample_ids, value):
        there = ~np.isnan(row)
        values = row[there]
        observed += there
        profile[number] = row[probes]
        histogram += np.histogram(np.clip(values, 0, 1), HISTOGRAM_BINS, (0, 1))[0]
        below += int(np.count_nonzero(values < 0))
        above += int(np.count_nonzero(values > 1))
        samples[sample_id] = {"values": len(values), **_summary(values)}
    measured = int(np.count_nonzero(observed))
    for sample, distance in zip(samples.values(), _distances(profile), strict=True):
        # Of what the batch's platform measures: what it does not is no fault of the sample.
        sample["missing"] = round(1 - sample["values"] / measured, 6) if measured else 1.0
        sample["distance"] = distance
    cells = len(sample_ids) * n_features
    return {
        "cells": cells,
        "missing": cells - sum(sample["values"] for sample in samples.values()),
        "features": {
            "in every sample": int(np.count_nonzero(observed == len(sample_ids))),
            "in some samples": int(np.count_nonzero((observed > 0) & (observed < len(sample_ids)))),
            "in no sample": n_features - measured,
        },
        "missing_along_axis": [
            round(1 - float(part.mean()) / len(sample_ids), 4)
            for part in np.array_split(observed, min(AXIS_PARTS, n_features))
        ],
        "histogram": histogram.tolist(),
        "below": below,
        "above": above,
        "coverage": None if coverage is None else _coverage(matrix, coverage, samples),
        "samples": samples,
    }


def stand_out(batch_id: str, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Samples far from the rest of their batch, and in which respect; none in a batch of a few.

    Far is more than five robust standard deviations (1.4826 times the median absolute deviation) above the median of
    the batch, and by an amount that matters.
    """
    samples: Mapping[str, Mapping[str, Any]] = batch["samples"]
    if len(samples) < _LEAST_SAMPLES:
        return []
    found = []
    for name, least, words in (
        ("missing", _LEAST_MISSING, "lacks values"),
        ("distance", _LEAST_DISTANCE, "differs from its batch"),
    ):
        numbers = np.array([np.nan if s[name] is None else s[name] for s in samples.values()], float)
        usual = float(np.nanmedian(numbers)) if not np.isnan(numbers).all() else 0.0
        spread = 1.4826 * float(np.nanmedian(np.abs(numbers - usual))) if not np.isnan(numbers).all() else 0.0
        for sample_id, number in zip(samples, numbers.tolist(), strict=True):
            if number - usual > max(_FAR * spread, least):
                found.append({"batch": batch_id, "sample": sample_id, "reason": words, "found": number, "usual": usual})
    return found


def _rows(matrix: WideMatrix, sample_ids: Sequence[str], value: str) -> Any:
    """(number, sample id, row), read in blocks."""
    many = max(1, _BLOCK_BYTES // (8 * matrix.shape[1]))
    for start in range(0, len(sample_ids), many):
        some = sample_ids[start : start + many]
        for number, (sample_id, row) in enumerate(zip(some, matrix.read(some, value=value), strict=True), start):
            yield number, sample_id, row.astype(np.float32, copy=False)


def _summary(values: np.ndarray) -> dict[str, float | None]:
    names = ("mean", "q05", "q25", "median", "q75", "q95")
    if not len(values):
        return dict.fromkeys(names)
    numbers = [values.mean(dtype=np.float64), *np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95))]
    return {name: round(float(number), 6) for name, number in zip(names, numbers, strict=True)}


def _distances(profile: np.ndarray) -> list[float | None]:
    """Mean absolute difference of each sample from the batch's median, over the features that it has."""
    anyone = ~np.isnan(profile).all(axis=0)
    if not anyone.any():
        return [None] * len(profile)
    from_median = np.abs(profile[:, anyone] - np.nanmedian(profile[:, anyone], axis=0))
    return [None if np.isnan(row).all() else round(float(np.nanmean(row)), 6) for row in from_median]


def _coverage(matrix: WideMatrix, coverage: str, samples: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Of the cells that have one; None where none has."""
    histogram = np.zeros(len(COVERAGE_EDGES), np.int64)
    total, cells = 0.0, 0
    for _, sample_id, row in _rows(matrix, list(samples), coverage):
        there = row[~np.isnan(row)]
        histogram += np.histogram(there, (*COVERAGE_EDGES, np.inf))[0]
        total, cells = total + float(there.sum(dtype=np.float64)), cells + len(there)
        samples[sample_id]["coverage"] = round(float(there.mean(dtype=np.float64)), 3) if len(there) else None
    return {"cells": cells, "mean": round(total / cells, 3), "histogram": histogram.tolist()} if cells else None


def _read_report(file: Path) -> dict[str, Any] | None:
    """An earlier report; None where there is none that can be read, as it is made anew then."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("batches"), dict) else None


def _page_renderer() -> Callable[[Report], str]:
    with report_imports():
        from zarr_core.matrix.quality.page import render_page
    return render_page
