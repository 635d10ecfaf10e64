"""Report the quality of a wide matrix: missing cells, distributions of values, samples that stand out.

Figures are kept per batch, with the digest of its samples and values. A later report measures only batches with another
digest: new ones, those that lost samples, and those that were retired and loaded again.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from zarr_core.matrix.wide import WideMatrix

Report = dict[str, Any]

#: Bins of the histogram of values between 0 and 1.
HISTOGRAM_BINS = 50
#: Parts of the feature axis for which missing cells are counted.
AXIS_PARTS = 64
#: Lower edges of the bins of the coverage histogram; the last bin has no upper edge.
COVERAGE_EDGES = (0, 1, 2, 5, 10, 20, 30, 50, 100, 200, 500, 1000)

# Increase to have all batches measured again.
_VERSION = 1
_BLOCK_BYTES = 64 << 20
# Number of features, spread evenly along the axis, for a batch's median profile and the distances from it.
_PROBES = 10_000
_LEAST_SAMPLES = 4  # smallest batch in which a sample can stand out
_FAR = 5.0  # robust standard deviations
_LEAST_MISSING = 0.05  # smallest excess over the median share that is reported
_LEAST_DISTANCE = 0.01


def measure_quality(
    matrix: WideMatrix,
    value: str = "beta",
    coverage: str | None = "coverage",
    known: Report | None = None,
    progress: bool = False,
) -> Report:
    """Measure every batch and find the samples that stand out in it, as for ``quality_report``.

    Batches that have the same digest in ``known``, an earlier report on the same matrix, are not read again.
    """
    matrix.table_name(value)
    coverage = coverage if coverage in matrix.values else None
    about = {
        "version": _VERSION,
        "matrix_id": matrix.matrix_id,
        "value": value,
        "coverage": coverage,
        "features": matrix.shape[1],
    }
    earlier = known["batches"] if known and about.items() <= known.items() else {}
    batches, measured, outliers, digests = {}, [], [], matrix.batch_digests
    for batch_id, sample_ids in tqdm(matrix.batches.items(), unit="batch", desc="quality", disable=not progress):
        batch = earlier.get(batch_id)
        if batch is None or batch.get("digest") != digests[batch_id]:  # also loaded again with other values
            batch = measure_batch(matrix, sample_ids, value, coverage) | {"digest": digests[batch_id]}
            measured.append(batch_id)
        batches[batch_id] = batch
        outliers += find_outliers(batch_id, batch)
    return {
        **about,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "url": matrix.url,
        "generation": matrix.generation,
        "samples": matrix.shape[0],
        "measured_batches": sorted(measured),
        "batches": batches,
        "outliers": outliers,
    }


def missing_share(report: Report) -> float:
    """Share of missing cells in all cells."""
    missing = cells = 0
    for batch in report["batches"].values():
        missing += batch["missing"]
        cells += batch["cells"]
    return missing / max(1, cells)


def measure_batch(matrix: WideMatrix, sample_ids: Sequence[str], value: str, coverage: str | None) -> dict[str, Any]:
    """Measure one batch, in blocks of rows.

    Returns:
        ``cells`` and ``missing``, numbers of cells; ``features``, numbers of features with a value in every, some or no
        sample; ``missing_along_axis``, shares; ``histogram`` of the values, and the numbers of values ``below`` 0 and
        ``above`` 1; ``coverage``; ``samples``, the figures of each sample.
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
    everywhere = int(np.count_nonzero(observed == len(sample_ids)))
    for sample, distance in zip(samples.values(), _distances(profile), strict=True):
        # Relative to the features that the batch measures at all.
        sample["missing"] = round(1 - sample["values"] / measured, 6) if measured else 1.0
        sample["distance"] = distance
    missing_along_axis = []
    for part in np.array_split(observed, min(AXIS_PARTS, n_features)):
        missing_along_axis.append(round(1 - float(part.mean()) / len(sample_ids), 4))
    cells = len(sample_ids) * n_features
    return {
        "cells": cells,
        "missing": cells - int(observed.sum()),
        "features": {
            "in every sample": everywhere,
            "in some samples": measured - everywhere,
            "in no sample": n_features - measured,
        },
        "missing_along_axis": missing_along_axis,
        "histogram": histogram.tolist(),
        "below": below,
        "above": above,
        "coverage": None if coverage is None else _coverage(matrix, coverage, samples),
        "samples": samples,
    }


def find_outliers(batch_id: str, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Samples that stand out from their batch, with the reason; none in a batch of fewer than four samples.

    A sample stands out if it lies more than five robust standard deviations (1.4826 times the median absolute
    deviation) above the median of the batch, and by more than a minimum.
    """
    samples: Mapping[str, Mapping[str, Any]] = batch["samples"]
    if len(samples) < _LEAST_SAMPLES:
        return []
    found = []
    for name, least, words in (
        ("missing", _LEAST_MISSING, "lacks values"),
        ("distance", _LEAST_DISTANCE, "differs from its batch"),
    ):
        numbers = np.array([sample[name] for sample in samples.values()], float)  # None becomes NaN
        if np.isnan(numbers).all():
            continue
        usual = float(np.nanmedian(numbers))
        spread = 1.4826 * float(np.nanmedian(np.abs(numbers - usual)))
        for sample_id, number in zip(samples, numbers.tolist(), strict=True):
            if number - usual > max(_FAR * spread, least):
                found.append({"batch": batch_id, "sample": sample_id, "reason": words, "found": number, "usual": usual})
    return found


def _rows(matrix: WideMatrix, sample_ids: Sequence[str], value: str) -> Iterator[tuple[int, str, np.ndarray]]:
    """(number, sample id, row) of each sample, read in blocks."""
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
    """Mean absolute difference of each sample from the batch's median profile, over the sample's features."""
    anyone = ~np.isnan(profile).all(axis=0)
    if not anyone.any():
        return [None] * len(profile)
    from_median = np.abs(profile[:, anyone] - np.nanmedian(profile[:, anyone], axis=0))
    return [None if np.isnan(row).all() else round(float(np.nanmean(row)), 6) for row in from_median]


def _coverage(matrix: WideMatrix, coverage: str, samples: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Mean and histogram of the coverage, over cells that have one; None if no cell has."""
    histogram = np.zeros(len(COVERAGE_EDGES), np.int64)
    total, cells = 0.0, 0
    for _, sample_id, row in _rows(matrix, list(samples), coverage):
        there = row[~np.isnan(row)]
        histogram += np.histogram(there, (*COVERAGE_EDGES, np.inf))[0]
        total += float(there.sum(dtype=np.float64))
        cells += len(there)
        samples[sample_id]["coverage"] = round(float(there.mean(dtype=np.float64)), 3) if len(there) else None
    return {"cells": cells, "mean": round(total / cells, 3), "histogram": histogram.tolist()} if cells else None
