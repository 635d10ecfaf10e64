"""Validates a source tensor and casts it to blocks of stored values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from zarr_core.errors import SampleError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.names import FieldName

if TYPE_CHECKING:
    import torch

# Points that are cast, summed and encoded at a time: a few MB.
_BLOCK_POINTS = 131_072
# Bytes that are gathered at a time. A worker needs this memory in addition to the tensor and the permutation.
_SLAB_BYTES = 32 * 2**20
_SOURCE_DTYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")


def as_points(sample_id: str, name: FieldName, values: torch.Tensor) -> torch.Tensor:
    """The tensor as (n_points, dim).

    Raises:
        SampleError: the dtype is not real, the shape is invalid, or the tensor is empty.
    """
    reason = ""
    if str(values.dtype).removeprefix("torch.") not in _SOURCE_DTYPES:
        reason = f"has dtype {values.dtype}, expected real numbers"
    elif values.ndim not in (1, 2):
        reason = f"has shape {tuple(values.shape)}, expected (points,) or (points, components)"
    elif values.numel() == 0:
        reason = "holds no points"
    elif name.dim is not None and values.numel() != name.dim * len(values):
        reason = f"has {values.numel() // len(values)} components per point, {name.name} has {name.dim}"
    if reason:
        raise SampleError(sample_id, name.canonical, reason)
    return values[:, None] if values.ndim == 1 else values


def stored_blocks(values: torch.Tensor, rows: np.ndarray, layout: ArrayLayout) -> Iterator[np.ndarray]:
    """The given rows in order, in the stored dtype, in blocks of whole chunks.

    Each block may overwrite the previous one. Rows are gathered one slab at a time, because a gather reads its source
    at random and needs the whole cache. They are cast block by block, so that the next steps find them in the cache.

    Args:
        values: (n_points, dim), as :func:`as_points` returns them.
        rows: numbers of the rows, int64.
        layout: of the array.
    """
    import torch

    slab = max(_SLAB_BYTES // (layout.dim * values.element_size()), 1)
    block = min(max(_BLOCK_POINTS // layout.chunk_points, 1) * layout.chunk_points, len(rows))
    slab = max(slab // block, 1) * block
    dtype = getattr(torch, layout.dtype)
    stored = torch.empty((block, layout.dim), dtype=dtype)
    for start in range(0, len(rows), slab):
        gathered = values.index_select(0, torch.from_numpy(rows[start : start + slab]))
        for first in range(0, len(gathered), block):
            source = gathered[first : first + block]
            if source.dtype is dtype:
                yield source.numpy()
                continue
            points = stored[: len(source)].numpy()
            if source.dtype is torch.float64:
                # torch casts float64 to float16 by way of float32. Rounding twice is not rounding to nearest.
                with np.errstate(over="ignore"):
                    np.copyto(points, source.numpy(), casting="same_kind")
            else:
                stored[: len(source)].copy_(source)
            yield points


def not_finite(sample_id: str, name: FieldName, layout: ArrayLayout, values: torch.Tensor) -> SampleError:
    """The error for stored values that are not finite: either the source's are not, or the stored dtype overflowed."""
    bad = int((~values.isfinite()).sum())
    if bad:
        reason = f"{bad} of {values.numel()} values are NaN or infinite"
        return SampleError(sample_id, name.canonical, reason, "repair the source, or leave the sample out")
    largest = float(values.abs().max())
    reason = f"largest value {largest:.6g} does not fit {layout.dtype} (maximum {np.finfo(layout.dtype).max:.6g})"
    return SampleError(sample_id, name.canonical, reason, f"use --field-dtype {name.canonical}=float32 --reconvert")
