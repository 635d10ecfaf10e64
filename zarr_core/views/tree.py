"""``open_store``: any store as an ``xarray.DataTree``."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from zarr_core._util.extras import extra
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.store.head import HEAD as MATRIX
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head

if TYPE_CHECKING:
    import xarray


def open_store(
    url: str | os.PathLike[str],
    *,
    generation: int | str | None = None,
    split: str | None = None,
    sample_ids: Collection[str] | None = None,
    chunked: bool = False,
) -> xarray.DataTree:
    """Open a store as a tree that reads values when they are used.

    Opening reads the manifest only. A sample is a node by its id (``tree["run_1"]``; an id with "/" is a path), its
    attributes are the parameters of the sample, and its children are its domains. A domain is a dataset of the fields
    by name (``tree["run_1/surface/pressure"]``), each (points, components) of the stored dtype, in stored order, with
    its units. The first use of a sample costs one request, for the metadata of its group; a slice of points costs
    the chunks that hold them, and a list of points all chunks from its first to its last.

    A wide matrix is the root's dataset, as :meth:`WideMatrix.to_xarray` returns it.

    Args:
        url: path or URL of a point store or a wide matrix.
        generation: number or tag; the latest if None.
        split: only the samples of this split of a point store.
        sample_ids: only these samples of a point store.
        chunked: make dask arrays: a block per shard of a point store, or per 32 MiB of a packed sample; of a matrix,
            the blocks of :meth:`WideMatrix.to_dask`.

    Raises:
        StoreError: there is no store or no such generation. On the first use of a sample: its metadata is damaged.
        ManifestError: its state cannot be read.
        UnknownFieldError: it has no such split or sample.
        ZarrCoreError: xarray is not installed, or ``split`` or ``sample_ids`` are given for a matrix.

    Examples:
        >>> tree = open_store("store")
        >>> tree["case_0/surface/pressure"].sizes["surface_points"]
        200
    """
    with extra("views", "open_store needs xarray"):
        import xarray as xr
    from zarr_core.views.lazy_tree import lazy_tree, samples_below

    if find_head(Storage(url)) is MATRIX:
        if split is not None or sample_ids is not None:
            raise ZarrCoreError("split and sample_ids are for point stores: select samples of a matrix with .sel()")
        return xr.DataTree(WideMatrix.open(url, generation).to_xarray(chunked=chunked))
    reader = ZarrChunkReader(url, generation=generation)
    manifest = reader.manifest
    about = {"store": Storage(url).url, "dataset": manifest.dataset_name, "generation": manifest.generation}
    nodes = samples_below(reader, chunked, "", manifest.select(split, sample_ids))
    return lazy_tree(xr.Dataset(attrs=about), None, nodes)
