"""Writes a sample from arrays in memory, for programs that produce no files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from zarr_core._util.arguments import check_mapping
from zarr_core.errors import SampleError, SourceError, StoreError
from zarr_core.points.convert.conversion import run_conversion
from zarr_core.points.convert.request import ConversionRequest
from zarr_core.points.convert.sample import ConversionResult
from zarr_core.points.store.head import load_if_any
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.in_memory import ArraySource
from zarr_core.sources.resolve import describe_filemap, resolve_kind, shipped_kinds
from zarr_core.storage import Storage

# Kind of a store that is created without one.
_KIND = "arrays"


def write_sample(
    store_root: str | os.PathLike[str],
    sample_id: str,
    arrays: Mapping[str, Any],
    *,
    split: str | None = None,
    kind: str | SourceDescription | None = None,
    parameters: Mapping[str, Any] | None = None,
    dataset_name: str | None = None,
    **settings: Any,
) -> ConversionResult:
    """Write one sample from arrays and commit it. The store is created if there is none.

    The sample is converted as :func:`zarr_core.convert.convert` converts the files of one: with the settings of the
    store, shuffled, its moments and its rounding errors recorded. Arrays with the content of the stored sample write
    nothing. Many programs may write to the same store.

    Each call commits a generation. For thousands of samples, pass an object with ``sample_ids``, ``filemap`` and
    ``_load`` to :func:`~zarr_core.convert.convert`, which commits once a minute.

    Args:
        store_root: the store, a local path or fsspec URL.
        sample_id: id of the sample. A sample of this id is replaced.
        arrays: by field, ``<domain>_<name>`` ("surface_pressure"), (points,) or (points, components) of any real dtype;
            NumPy arrays, torch tensors, or anything that NumPy makes an array of. Each domain needs its position,
            (points, 3).
        split: the split that the sample is added to, and removed from all others; None leaves the splits as they are.
        kind: the fields that a sample must have, as for :func:`~zarr_core.convert.convert`. None: the kind of the
            store, if it comes with the library, else the fields of the store's other samples.
        parameters: scalars, and arrays of one axis with at most 1,000 numbers, of the whole sample.
        dataset_name: name of the store; the kind's name if None and the store is new.
        **settings: as for :func:`~zarr_core.convert.convert`; only those of the store for one that exists.

    Returns:
        The result, "converted" or "up to date".

    Raises:
        SampleError: the sample is refused: a field is missing, unknown, misaligned, of another width than in the store,
            not finite, or would lose too much by rounding. A store that exists records the reason, unless a field is
            missing or unknown.
        SourceError: an id, a field name or a setting is invalid.
        StoreError: the store cannot be used, is another dataset's, or has other settings.

    Examples:
        >>> import numpy as np
        >>> arrays = {"surface_position": np.zeros((200, 3)), "surface_pressure": np.arange(200.0)}
        >>> write_sample("store", "case_9", arrays, split="train", parameters={"speed": 20.0}).status
        'converted'
    """
    check_mapping("arrays", arrays, "{'surface_position': positions, 'surface_pressure': pressure}")
    manifest = load_if_any(Storage(store_root))
    if kind is None and manifest is not None and manifest.dataset_kind in shipped_kinds():
        kind = manifest.dataset_kind
    described = None if kind is None else resolve_kind(kind)
    name = described.name if described else _KIND if manifest is None else manifest.dataset_kind
    description = describe_filemap(name, {str(field): str(field) for field in arrays})
    if len(description.fields) != len(arrays):
        raise SourceError("design_parameters is not a point field: pass it as parameters")
    others = [] if manifest is None else [set(manifest.fields_of(i)) for i in manifest.samples if i != sample_id]
    given = set(description.fields)
    if described is not None:
        _check_fields(sample_id, given, set(described.required_fields), set(described.fields))
    elif others:
        _check_fields(sample_id, given, set.intersection(*others), set.union(*others))
    source = ArraySource(sample_id, arrays, description, split, parameters)
    request = ConversionRequest(source, store_root, dataset_name=dataset_name, settings=settings)
    (result,) = run_conversion(request).results
    if result.quarantine is not None:
        raise SampleError(sample_id, result.quarantine.field, result.quarantine.reason)
    if result.status == "failed":
        raise StoreError(f"{sample_id}: {result.reason}")
    return result


def _check_fields(sample_id: str, given: set[str], required: set[str], known: set[str]) -> None:
    """Raise SampleError if a sample has other fields than it must have."""
    for name in sorted(given - known):
        reason = f"is not a field of this store's samples, which have {', '.join(sorted(known))}"
        raise SampleError(sample_id, name, reason, "check the name, or pass a kind that has it as an optional field")
    for name in sorted(required - given):
        reason = "is missing; the samples of this store have it"
        raise SampleError(sample_id, name, reason, "add it, or pass a kind that has it as an optional field")
