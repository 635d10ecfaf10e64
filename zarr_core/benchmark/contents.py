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


def field_distributions(reader: ZarrChunkReader, ids: Sequence[str], zarr_root: str) -> dict[str, Any]:
    """Moments over every point of the samples, and histograms of a uniform subset of some of them."""
    statistics = calculate_store_statistics(zarr_root, sample_ids=ids)
    values: dict[str, list[np.ndarray]] = defaultdict(list)
    for sample_id in ids[:_HISTOGRAM_SAMPLES]:
        points = dict.fromkeys(reader.manifest.samples[sample_id].domains, _HISTOGRAM_POINTS)
        for name, rows in reader.read_sample(sample_id, points).items():
            values[name].append(rows.astype(np.float64))
    errors = [recorded_rounding(reader.read_attributes(sample_id)) for sample_id in ids]
    return {
        name: {
            "dtype": column.dtype,
            # The largest of the samples and components; None if a sample was written by an older version.
            "rms_error": max(e[name].largest[0] for e in errors) if all(name in e for e in errors) else None,
            "histogram": _histogram(np.concatenate(values[name])),
            **{key: statistics[f"{name}_{key}"] for key in ("mean", "std", "min", "max")},
        }
        for name, column in reader.manifest.fields.items()
        if name in values
    }


def _histogram(rows: np.ndarray) -> dict[str, Any]:
    """Counts by component between the 0.1 and 99.9 percentiles, so that long tails do not flatten the histogram."""
    low, high = np.percentile(rows, (0.1, 99.9))
    edges = np.linspace(low, high if high > low else low + 1.0, _HISTOGRAM_BINS + 1)
    names = ["value"] if rows.shape[1] == 1 else ["x", "y", "z"] if rows.shape[1] == 3 else range(rows.shape[1])
    counts = {str(name): np.histogram(rows[:, at], edges)[0].tolist() for at, name in enumerate(names)}
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
            scalar = next((name for name in scalars if name.endswith("pressure")), scalars[0])
            fields = (f"{domain}_{POSITION}", scalar)
            shown = reader.read_sample(sample_id, {domain: _PICTURE_POINTS}, fields)
            drawn = reader.read_sample(sample_id, {domain: num_points[domain]}, fields, epoch=1)
            whole, draw = ((read[fields[0]], read[scalar][:, 0].astype(np.float32)) for read in (shown, drawn))
            return {"sample_id": sample_id, "whole": whole, "drawn": draw, "n_points": grid.n_points, "label": scalar}
    return None
