"""``open_store``: any store as an ``xarray.DataTree``."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util.extras import extra
from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.store.state import HEAD as MATRIX
from zarr_core.points.read.engines import FieldRead
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.read.sampling import Draw
from zarr_core.storage import Storage
from zarr_core.stores.info import ArrayInfo, SampleGroup
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
        chunked: make dask arrays: a block per shard of a point store, the blocks of :meth:`WideMatrix.to_dask`.

    Raises:
        StoreError: there is no store or no such generation. On the first use of a sample: its metadata is damaged.
        ManifestError: its state cannot be read.
        UnknownFieldError: it has no such split or sample.
        ZarrCoreError: xarray is not installed, or ``split`` or ``sample_ids`` are given for a matrix.
    """
    with extra("views", "open_store needs xarray"):
        import xarray as xr
    from zarr_core.views.lazy_tree import lazy_tree

    if find_head(Storage(url)) is MATRIX:
        if split is not None or sample_ids is not None:
            raise ZarrCoreError("split and sample_ids are for point stores: select samples of a matrix with .sel()")
        return xr.DataTree(WideMatrix.open(url, generation).to_xarray(chunked=chunked))
    reader = ZarrChunkReader(url, generation=generation)
    manifest = reader.manifest
    about = {"store": Storage(url).url, "dataset": manifest.dataset_name, "generation": manifest.generation}
    nodes = _samples_below(reader, chunked, "", manifest.select(split, sample_ids))
    return lazy_tree(xr.Dataset(attrs=about), None, nodes)


def _samples_below(
    reader: ZarrChunkReader, chunked: bool, folder: str, sample_ids: Iterable[str]
) -> dict[str, Callable[[], xarray.DataTree]]:
    """By name, makes the nodes of the samples whose ids begin with ``folder``, which is "" or ends with "/"."""
    parts: dict[str, list[str]] = {}
    for sample_id in sample_ids:
        parts.setdefault(sample_id[len(folder) :].partition("/")[0], []).append(sample_id)
    return {name: partial(_node, reader, chunked, folder + name, ids) for name, ids in parts.items()}


def _node(reader: ZarrChunkReader, chunked: bool, path: str, sample_ids: list[str]) -> xarray.DataTree:
    """The node of the sample with the id ``path``, of samples whose ids begin with it, or of both."""
    import xarray as xr

    from zarr_core.views.lazy_tree import lazy_tree

    nodes = _samples_below(reader, chunked, f"{path}/", [deeper for deeper in sample_ids if deeper != path])
    attributes: dict[str, Any] = {}
    if path in sample_ids:
        attributes, domains = _sample(reader, chunked, path)
        for domain, dataset in domains.items():
            if domain in nodes:
                raise StoreError(f"{path!r} is a sample with a domain {domain!r}, and begins the id of another sample")
            nodes[domain] = partial(xr.DataTree, dataset, name=domain)
    return lazy_tree(xr.Dataset(attrs=attributes), path.rpartition("/")[2], nodes)


def _sample(reader: ZarrChunkReader, chunked: bool, sample_id: str) -> tuple[dict[str, Any], dict[str, xarray.Dataset]]:
    """Parameters of a sample, and its fields by domain."""
    import xarray as xr

    from zarr_core._util.lazy_arrays import LazyArray, lazy_variable

    storage, manifest = Storage(reader.root), reader.manifest
    group = SampleGroup.read(storage, manifest, sample_id)
    arrays = group.arrays()
    # A reader of this sample alone, so that a task of dask does not carry the manifest of all samples.
    alone = copy.copy(reader)
    alone.manifest = replace(manifest, samples={sample_id: manifest.samples[sample_id]}, splits={}, quarantine={})
    domains: dict[str, dict[str, Any]] = {}
    for field, read in reader.field_reads(sample_id, fields=arrays).items():
        array = arrays[field]
        values = LazyArray(array.shape, array.dtype, _Points(alone, read, array))
        variable = lazy_variable(
            (f"{read.domain}_points", f"components_{array.shape[1]}"),
            values,
            {"units": array.units} if array.units else {},
            (array.shard_points, -1) if chunked else None,
        )
        domains.setdefault(read.domain, {})[read.array_name.partition("/")[2]] = variable
    return group.parameters, {domain: xr.Dataset(fields) for domain, fields in domains.items()}


@dataclass(frozen=True)
class _Points:
    """Reads points of one field of one sample.

    Attributes:
        reader: of the store; its manifest need not hold other samples.
        whole: the read of the whole field.
        array: the stored array.
    """

    reader: ZarrChunkReader
    whole: FieldRead
    array: ArrayInfo

    def __call__(self, key: tuple[Any, ...]) -> np.ndarray:
        """Values at a pair of integers and slices."""
        points, components = key
        inside: int | slice
        rows = range(self.array.shape[0])[points]
        if isinstance(rows, int):
            first, last, inside = rows, rows, 0
        elif not rows:
            return np.empty((0, self.array.shape[1]), self.array.dtype)[:, components]
        else:
            first, last = min(rows[0], rows[-1]), max(rows[0], rows[-1])
            inside = slice(None, None, rows.step)
        drawn = Draw(((first, last + 1),), self.whole.drawn.chunk_points)
        (values,) = self.reader.execute([self.whole._replace(drawn=drawn)])
        return np.asarray(values[inside, components])
