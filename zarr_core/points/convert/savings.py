"""What error bounds would save on a dataset: bytes per point of the fields of one sample, encoded and thrown away."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zarr_core.format.bounds import ErrorBound
from zarr_core.format.shards import encode_chunk
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.convert.stored_values import as_points, bounded, stored_blocks
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.tree import SampleTree

#: The bounds that are tried.
TRIED = ("1e-3std", "1e-4std")
# Points of a field that are encoded. Any run of shuffled points is as the others.
_POINTS = 1 << 17


def bytes_per_point(kind: str | SourceDescription, source: str) -> tuple[str, Mapping[str, list[float]]]:
    """Encode the fields of the first sample of a source.

    Args:
        kind, source: of the dataset, as for :func:`~zarr_core.convert.convert`.

    Returns:
        Id of the sample, and by field the bytes per point: with the default settings, and with each bound of
        :data:`TRIED`.

    Raises:
        SourceError: the source cannot be used, or has no samples.
        SampleError: a field cannot be stored.
    """
    tree = SampleTree(kind, source)
    sample_id, sample = next(iter(tree.discover().items()))
    sizes: dict[str, list[float]] = {}
    for canonical, file in tree.description.fields.items():
        if canonical not in sample.files:
            continue
        values = as_points(sample_id, file.field, tree.load(sample, canonical))
        rows = shuffle_permutation(0, sample_id, file.domain, len(values))[:_POINTS]
        dim = values.shape[1]
        sizes[canonical] = [dim * np.dtype(ConversionSettings().dtype_of(file.field)).itemsize]
        for bound in TRIED:
            layout = ConversionSettings(max_errors={canonical: bound}).array_layout(file.field, len(rows), dim)
            layout = bounded(layout, ErrorBound.parse(bound), values)
            size = 0
            for block in stored_blocks(values, rows, layout):
                for start in range(0, len(block), layout.chunk_points):
                    size += len(encode_chunk(layout, block[start : start + layout.chunk_points]))
            sizes[canonical].append(round(size / len(rows), 2))
    return sample_id, sizes
