"""Validates a source tensor, casts it to blocks of stored values, and writes them as the array of a field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zarr_core._util.plain_arrays import plain_tensor
from zarr_core.errors import SampleError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.bounds import ErrorBound, integers_for, scale_for, to_multiples
from zarr_core.format.moments import FieldMoments, MomentsAccumulator
from zarr_core.format.names import FieldName
from zarr_core.format.rounding import MAX_RMS, MAX_ZEROED, RoundingAccumulator, RoundingError
from zarr_core.format.shards import encode_shard
from zarr_core.points.store.mesh import Write
from zarr_core.sources.left_out import note

if TYPE_CHECKING:
    import torch

# Points that are cast, summed and encoded at a time: a few MB.
_BLOCK_POINTS = 131_072
# Points whose error is measured at a time: fewer, so that the differences stay in the cache between the steps.
_DIFFERENCE_POINTS = 32_768
# Bytes that are gathered at a time. A worker needs this memory in addition to the tensor and the permutation.
_SLAB_BYTES = 32 * 2**20
_SOURCE_DTYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")


class WrittenArray(NamedTuple):
    """What was written of a field: the bytes of its array, those of each encoded chunk, and what was measured."""

    size: int
    lengths: list[int]
    moments: FieldMoments
    rounding: RoundingError


def write_array(
    sample_id: str,
    name: FieldName,
    layout: ArrayLayout,
    values: torch.Tensor,
    permutation: np.ndarray,
    path: str,
    write: Write,
) -> WrittenArray:
    """Write the array of a field: gathered, cast, encoded, and measured on the way.

    ``values`` are (n_points, dim) in the order of the source. The shards of the array are written, or its chunks if it
    has no shards. Raises SampleError if the values are not finite, or if rounding changes them too much.
    """
    lengths: list[int] = []
    sums = MomentsAccumulator()
    exact = layout.codec.scale is None and _is_lossless(values, layout.dtype)
    rounding = None if exact else RoundingAccumulator(layout.dim)

    def chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
        for points in stored_blocks(values, rows, layout, rounding):
            sums.add(points)
            for start in range(0, len(points), layout.chunk_points):
                yield points[start : start + layout.chunk_points]

    size = 0
    if layout.sharded:
        for shard in range(layout.n_shards):
            rows = permutation[shard * layout.shard_points : (shard + 1) * layout.shard_points]
            size += write(f"{path}/{layout.shard_key(shard)}", encode_shard(layout, chunks(rows), lengths))
    else:
        for number, points in enumerate(chunks(permutation)):
            size += write(f"{path}/{layout.shard_key(number)}", encode_shard(layout, [points], lengths))
    moments = sums.result()
    if not np.isfinite([moments.min, moments.max]).all():
        raise _not_finite(sample_id, name, layout, values)
    if not moments.is_finite:
        largest = max(moments.max.max(), -moments.min.min())
        reason = f"largest value {largest:.6g} is so large that its square is infinite"
        raise SampleError(sample_id, name.canonical, reason, "repair the source, or leave the sample out")
    error = RoundingError.none(layout.dim)
    if rounding is not None:
        error = checked_rounding(sample_id, name, layout, values, rounding, moments)
    return WrittenArray(size, lengths, moments, error)


def as_points(sample_id: str, name: FieldName, values: torch.Tensor) -> torch.Tensor:
    """The tensor as (n_points, dim); raises SampleError for another kind of tensor, dtype or shape, or an empty one."""
    try:
        values = plain_tensor(values)
    except ValueError as error:
        raise SampleError(sample_id, name.canonical, str(error)) from error
    reason = ""
    if str(values.dtype).removeprefix("torch.") not in _SOURCE_DTYPES:
        reason = f"has dtype {values.dtype}, expected real numbers of one of {', '.join(_SOURCE_DTYPES)}"
    elif values.ndim not in (1, 2):
        reason = f"has shape {tuple(values.shape)}, expected (points,) or (points, components)"
    elif values.numel() == 0:
        reason = "holds no points"
    elif name.dim is not None and values.numel() != name.dim * len(values):
        reason = f"has {values.numel() // len(values)} components per point, {name.name} has {name.dim}"
    if reason:
        raise SampleError(sample_id, name.canonical, reason)
    return values[:, None] if values.ndim == 1 else values


def _is_lossless(values: torch.Tensor, dtype: str) -> bool:
    """Whether a stored dtype holds every value of the source's dtype."""
    source = str(values.dtype).removeprefix("torch.")
    # NumPy has no bfloat16. Its exponents are those of float32.
    if source == "bfloat16":
        return dtype != "float16"
    return source != "int64" and np.can_cast(source, dtype)  # NumPy takes every int64 for a float64


def bounded(layout: ArrayLayout, bound: ErrorBound, values: torch.Tensor) -> ArrayLayout:
    """The layout of an array whose values keep an error bound; values that are not finite are refused later."""
    max_error = bound.of(values)
    largest = max(float(values.max()), -float(values.min()))
    scale = scale_for(max_error, largest)
    codec = replace(layout.codec, scale=scale, integers=integers_for(scale, largest))
    return replace(layout, codec=codec, max_error=max_error)


def stored_blocks(
    values: torch.Tensor, rows: np.ndarray, layout: ArrayLayout, rounding: RoundingAccumulator | None = None
) -> Iterator[np.ndarray]:
    """The given rows in order, in the stored dtype, in blocks of whole chunks.

    Each block may overwrite the previous one. Rows are gathered one slab at a time, because a gather reads its source
    at random and needs the whole cache. They are cast block by block, so that the next steps find them in the cache.

    ``values`` are (n_points, dim), as :func:`as_points` returns them. ``rounding`` gets the error of each block.
    """
    import torch

    slab = max(_SLAB_BYTES // (layout.dim * values.element_size()), 1)
    block = min(max(_BLOCK_POINTS // layout.chunk_points, 1) * layout.chunk_points, len(rows))
    slab = max(slab // block, 1) * block
    dtype, scale = getattr(torch, layout.dtype), layout.codec.scale
    stored = torch.empty((block, layout.dim), dtype=dtype)
    # The difference of a float32 and its rounding to float16 is a float32 number; integers need more digits.
    precise = torch.float32 if values.dtype in (torch.float32, torch.bfloat16) else torch.float64
    difference = torch.empty((min(block, _DIFFERENCE_POINTS), layout.dim), dtype=precise)
    for gathered in _gathered(values, rows, slab):
        for first in range(0, len(gathered), block):
            source = gathered[first : first + block]
            if source.dtype is dtype and scale is None:
                yield source.numpy()
                continue
            cast = stored[: len(source)]
            _cast(source, cast)
            if scale is not None:
                to_multiples(cast.numpy(), scale)
            if rounding is not None:
                _measure(source, cast, difference, rounding)
            yield cast.numpy()


def _gathered(values: torch.Tensor, rows: np.ndarray, slab: int) -> Iterator[torch.Tensor]:
    """The rows in order, ``slab`` of them at a time, in one buffer."""
    import torch

    buffer = torch.empty((min(slab, len(rows)), *values.shape[1:]), dtype=values.dtype)
    source = _bits(values.detach().contiguous())
    for start in range(0, len(rows), slab):
        gathered = buffer[: len(rows) - start]
        # NumPy gathers rows of 1 and 2 components three times as fast as torch; "clip" because it need not buffer.
        np.take(source, rows[start : start + slab], axis=0, out=_bits(gathered), mode="clip")
        yield gathered


def _cast(source: torch.Tensor, stored: torch.Tensor) -> None:
    """Round values to the nearest of the stored dtype."""
    import torch

    if source.dtype is torch.float64:
        # torch casts float64 to float16 by way of float32. Rounding twice is not rounding to nearest.
        with np.errstate(over="ignore"):
            np.copyto(stored.numpy(), source.numpy(), casting="same_kind")
    else:
        stored.copy_(source)


def _measure(
    source: torch.Tensor, stored: torch.Tensor, difference: torch.Tensor, rounding: RoundingAccumulator
) -> None:
    """Add the error of stored values to the sums; ``difference`` is a buffer."""
    import torch

    for at in range(0, len(source), _DIFFERENCE_POINTS):
        part = slice(at, at + _DIFFERENCE_POINTS)
        error = difference[: len(source[part])]
        if stored.dtype is torch.float64:  # of int64, whose difference to the nearest float64 is a whole number
            error.copy_(source[part] - stored[part].long())
        else:
            # Cast first: an operation on two dtypes takes twice as long.
            torch.sub(source[part], error.copy_(stored[part]), out=error)
        rounding.add(stored[part].numpy(), error.numpy())


def _bits(values: torch.Tensor) -> np.ndarray:
    """The tensor's memory as an array. NumPy has no bfloat16, so that is given as int16."""
    import torch

    return (values.view(torch.int16) if values.dtype is torch.bfloat16 else values).numpy()


def _not_finite(sample_id: str, name: FieldName, layout: ArrayLayout, values: torch.Tensor) -> SampleError:
    """The error for stored values that are not finite: either the source's are not, or the stored dtype overflowed."""
    bad = int((~values.isfinite()).sum())
    if bad:
        reason = f"{bad} of {values.numel()} values are NaN or infinite"
        return SampleError(sample_id, name.canonical, reason, "repair the source, or leave the sample out")
    largest = float(values.abs().max())
    reason = f"largest value {largest:.6g} does not fit {layout.dtype} (maximum {np.finfo(layout.dtype).max:.6g})"
    return SampleError(sample_id, name.canonical, reason, _way_out(name, layout.dtype))


def checked_rounding(
    sample_id: str,
    name: FieldName,
    layout: ArrayLayout,
    values: torch.Tensor,
    rounding: RoundingAccumulator,
    moments: FieldMoments,
) -> RoundingError:
    """The error of the stored values. Components whose source is constant count as exact.

    Where an error bound keeps less of a component than any dtype may, or a constant becomes 0, that is noted.

    Raises:
        SampleError: the error exceeds the bound of the field; without one, the error of another component exceeds a
            limit of :mod:`zarr_core.format.rounding`.
    """
    if layout.max_error is not None:
        if not rounding.largest <= layout.max_error:
            reason = f"its error bound is {layout.max_error:.6g}, float32 changes a value by {rounding.largest:.6g}"
            way_out = f"use a larger --max-error, or none and --field-dtype {name.canonical}=float64"
            raise SampleError(sample_id, name.canonical, reason, way_out)
        error = _error_within_a_bound(values, rounding, moments)
        if (error.rms > MAX_RMS).any():
            reason = "an error bound is coarse for a component; give the field a smaller one, or one in its own units"
            note(reason, f"{name.canonical}: {error.describe()}")
        return error
    error = rounding.result(moments.std)
    if error.lossy.any():
        constant = _constant(values)
        if (error.zeroed > MAX_ZEROED)[constant].any():
            reason = f"a constant component is too small for {layout.dtype} and stored as 0"
            note(reason, f"{name.canonical}; {_way_out(name, layout.dtype)}")
        error = error.without(constant)
    if rounding.largest > 0 and not values.is_floating_point():
        note("whole numbers were rounded, so that different ones may be equal", f"{name.canonical} as {layout.dtype}")
    if error.lossy.any():
        reason = f"{layout.dtype} would change its values: {error.describe()}"
        raise SampleError(sample_id, name.canonical, reason, _way_out(name, layout.dtype))
    return error


def _error_within_a_bound(values: torch.Tensor, rounding: RoundingAccumulator, moments: FieldMoments) -> RoundingError:
    """The error relative to the stored values' standard deviation, or the source's where all stored ones are equal."""
    std, constant = moments.std, _constant(values)
    for component in np.flatnonzero((moments.min == moments.max) & ~constant):
        std[component] = values[:, component].double().numpy().std(ddof=1)
    return rounding.result(std).without(constant)


def _constant(values: torch.Tensor) -> np.ndarray:
    """Which components have the same value at all points."""
    constant: np.ndarray = (values.amax(dim=0) == values.amin(dim=0)).numpy()
    return constant


def _way_out(name: FieldName, dtype: str) -> str:
    if dtype == "float64":  # of whole numbers
        return "float64 holds those up to 2**53: write smaller ones, such as differences, or leave the field out"
    wider = "float32" if dtype == "float16" else "float64"
    of_python = f"field_dtypes={{{name.canonical!r}: {wider!r}}}, reconvert=True in Python"
    all_fields = f"or --values-dtype {wider} for all fields"
    return f"use --field-dtype {name.canonical}={wider} --reconvert, {all_fields}; {of_python}"
