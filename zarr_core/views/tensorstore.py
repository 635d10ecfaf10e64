"""Arrays of a store as ``tensorstore.TensorStore``: reads are futures, indexing is lazy, a context shares a cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util.extras import extra
from zarr_core.errors import StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.matrix.store.head import HEAD as MATRIX
from zarr_core.points.read.engines.tensorstore import below, kvstore
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.generations import load

if TYPE_CHECKING:
    import tensorstore


def as_tensorstore(
    url: str | os.PathLike[str],
    name: str,
    sample_id: str | None = None,
    *,
    generation: int | str | None = None,
    context: tensorstore.Context | None = None,
) -> tensorstore.TensorStore:
    """Open an array of a store with TensorStore. Nothing but its metadata is read.

    TensorStore ends the process if it cannot allocate what damaged metadata claims, and hangs in a process that was
    forked after its use: for stores that others can write to, and for training, use ``ZarrChunkReader``.
    Cells of a matrix whose shards are lost or were collected are NaN without an error, because chunks of missing cells
    are not stored: tag the generation before garbage is collected, or use :meth:`WideMatrix.read`, which raises.

    Args:
        url: a local path or ``s3://`` URL of a point store or a wide matrix.
        name: canonical name of a field ("surface_pressure"), or the name of a value table ("beta").
        sample_id: the sample of a point store; None for a matrix.
        generation: number or tag; the latest if None.
        context: shared by several arrays, such as ``Context({"cache_pool": {"total_bytes_limit": 10**9}})``.

    Returns:
        Read-only (points, components) of a sample in stored order, or (samples, features) of a matrix in the order of
        ``WideMatrix.sample_ids``. New arrays have the labels of their dimensions.

    Raises:
        StoreError: there is no store or generation, TensorStore is not installed or does not support the location, or
            the array cannot be opened.
        UnknownFieldError: there is no such sample, field or value table.
        ZarrCoreError: ``sample_id`` is missing, or given for a matrix.

    Examples:
        >>> as_tensorstore("store", "surface_pressure", "case_0").shape
        (200, 1)
    """
    with extra("tensorstore", "as_tensorstore needs the extra", StoreError):
        import tensorstore as ts
    storage = Storage(url)
    head = find_head(storage)
    state: Any = load(storage, head, generation)
    if (head is MATRIX) != (sample_id is None):
        raise ZarrCoreError(f"{storage.url}: sample_id is for point stores, which need it")
    if sample_id is None:
        if name not in state.values:
            raise UnknownFieldError(f"the matrix has no value table {name!r}; it has {', '.join(state.values)}")
        path = state.row_copy.path(name)
        lacks_chunks = True  # of missing cells
    else:
        entry = state.entry(sample_id, storage.url)
        fields = state.fields_of(sample_id)
        if name not in fields:
            raise UnknownFieldError(f"{sample_id} has no field {name!r}; it has {', '.join(fields)}")
        path = f"{entry.relpath}/{fields[name].array_name}"
        lacks_chunks = not entry.is_ours  # this library writes all
    where = below(kvstore(storage.root, storage), path)
    spec = {"driver": "zarr3", "kvstore": where, "fill_missing_data_reads": lacks_chunks}
    try:
        array = ts.open(spec, read=True, open=True, context=context).result()
    except ValueError as error:
        raise StoreError(f"{storage.url}: {path} cannot be opened: {error}") from error
    if sample_id is not None:
        return array
    rows = array[np.fromiter(state.rows.values(), np.int64)]
    return rows[ts.d[:].label[array.domain.labels]]  # an index array drops the label of its dimension
