"""What error bounds would save on a dataset: bytes per point of the fields of one sample, encoded and thrown away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core.format.names import FieldName
from zarr_core.format.shards import encode_chunk
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.convert.stored_values import as_points, bounded, stored_blocks
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.tree import SampleTree

if TYPE_CHECKING:
    import torch

#: The bounds that are tried.
TRIED = ("1e-3std", "1e-4std")
# Points of a field that are encoded. Any run of shuffled points is as the others.
_POINTS = 1 << 17


def savings_of_source(kind: str | SourceDescription, source: str) -> dict[str, Any]:
    """:func:`savings` for the first sample of a source; raises SourceError too, if it has none or cannot be used."""
    tree = SampleTree(kind, source)
    sample_id, sample = next(iter(tree.discover().items()))
    names = [file.field for canonical, file in tree.description.fields.items() if canonical in sample.files]
    return savings(sample_id, names, lambda canonical: tree.load(sample, canonical), ConversionSettings())


def savings(
    sample_id: str,
    names: Iterable[FieldName],
    load: Callable[[str], torch.Tensor],
    settings: ConversionSettings,
) -> dict[str, Any]:
    """Encode the fields of a sample with settings, and with each bound of :data:`TRIED`.

    Returns:
        A JSON document: "sample"; "bounds", None for the settings alone; in their order "fields", the bytes per point
        of each field, and "bytes", those of all fields of the sample.

    Raises:
        SampleError: a field cannot be stored.
        StoreError: a package is missing.
    """
    fields: dict[str, list[float]] = {}
    total = np.zeros(1 + len(TRIED))
    for name in names:
        values = as_points(sample_id, name, load(name.canonical))
        rows = shuffle_permutation(0, sample_id, name.domain, len(values))[:_POINTS]
        sizes = [_bytes_per_point(values, rows, name, settings)]
        own_dtypes = {field: dtype for field, dtype in settings.field_dtypes.items() if field != name.canonical}
        for bound in TRIED:
            tried = replace(settings, field_dtypes=own_dtypes, max_errors={name.canonical: bound})
            sizes.append(_bytes_per_point(values, rows, name, tried))
        total += np.multiply(sizes, len(values))
        fields[name.canonical] = np.round(sizes, 2).tolist()
    return {"sample": sample_id, "bounds": [None, *TRIED], "fields": fields, "bytes": np.rint(total).tolist()}


def _bytes_per_point(values: torch.Tensor, rows: np.ndarray, name: FieldName, settings: ConversionSettings) -> float:
    """Bytes of the chunks of some rows, divided by their number; without codec those of the values."""
    dim = values.shape[1]
    layout = settings.array_layout(name, len(rows), dim)
    if layout.codec.name == "none":
        return dim * np.dtype(layout.dtype).itemsize
    bound = settings.bound_of(name)
    if bound is not None:
        layout = bounded(layout, bound, values)
    size = 0
    for block in stored_blocks(values, rows, layout):
        for start in range(0, len(block), layout.chunk_points):
            size += len(encode_chunk(layout, block[start : start + layout.chunk_points]))
    return size / len(rows)
