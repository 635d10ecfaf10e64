"""Distributions of a store's fields, and the picture of one sample."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zarr_core.format.names import POSITION
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.statistics import calculate_store_statistics
from zarr_core.points.store.group import recorded_rounding

# Samples and points per histogram: enough to show the shape of a distribution.
_HISTOGRAM_SAMPLES, _HISTOGRAM_POINTS, _HISTOGRAM_BINS = 8, 20_000, 48
# Upper limit on points in the picture; more only slow it down.
_PICTURE_POINTS = 40_000


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
    """Arguments of :func:`zarr_core.benchmark.figures.sample_figure` for the first sample with a scalar on its surface.

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
