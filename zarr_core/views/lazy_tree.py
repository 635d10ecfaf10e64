"""The nodes of the tree of a point store, which are made when they are first used. Needs xarray, so imported on use.

xarray attaches children one by one and compares each with all before it, so a tree of 25,000 samples would take
minutes, and a request per sample.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import xarray as xr

from zarr_core._util.lazy_arrays import LazyArray, lazy_variable
from zarr_core.errors import StoreError
from zarr_core.points.read.engines import FieldRead
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.read.sampling import Draw
from zarr_core.storage import Storage
from zarr_core.stores.sample_group import ArrayInfo, SampleGroup

# Bytes of a block of dask of a packed sample, whose chunks are small, at most.
_BLOCK_BYTES = 32 << 20


def samples_below(
    reader: ZarrChunkReader, chunked: bool, folder: str, sample_ids: Iterable[str]
) -> dict[str, Callable[[], xr.DataTree]]:
    """By name, makes the nodes of the samples whose ids begin with ``folder``, which is "" or ends with "/"."""
    parts: dict[str, list[str]] = {}
    for sample_id in sample_ids:
        parts.setdefault(sample_id[len(folder) :].partition("/")[0], []).append(sample_id)
    return {name: partial(_node, reader, chunked, folder + name, ids) for name, ids in parts.items()}


def _node(reader: ZarrChunkReader, chunked: bool, path: str, sample_ids: list[str]) -> xr.DataTree:
    """The node of the sample with the id ``path``, of samples whose ids begin with it, or of both."""
    nodes = samples_below(reader, chunked, f"{path}/", [deeper for deeper in sample_ids if deeper != path])
    attributes: dict[str, Any] = {}
    if path in sample_ids:
        attributes, domains = _sample(reader, chunked, path)
        for domain, dataset in domains.items():
            if domain in nodes:
                raise StoreError(f"{path!r} is a sample with a domain {domain!r}, and begins the id of another sample")
            nodes[domain] = partial(xr.DataTree, dataset, name=domain)
    return lazy_tree(xr.Dataset(attrs=attributes), path.rpartition("/")[2], nodes)


def _sample(reader: ZarrChunkReader, chunked: bool, sample_id: str) -> tuple[dict[str, Any], dict[str, xr.Dataset]]:
    """Parameters of a sample, and its fields by domain."""
    storage, manifest = Storage(reader.root), reader.manifest
    group = SampleGroup(storage, manifest, sample_id)
    arrays = group.arrays()
    # A reader of this sample alone, so that a task of dask does not carry the manifest of all samples.
    alone = copy.copy(reader)
    alone.manifest = replace(manifest, samples={sample_id: manifest.samples[sample_id]}, splits={}, quarantine={})
    domains: dict[str, dict[str, Any]] = {}
    for field, read in reader.field_reads(sample_id, fields=arrays).items():
        array = arrays[field]
        values = LazyArray(array.shape, array.dtype, partial(_read_points, alone, read, array))
        variable = lazy_variable(
            (f"{read.domain}_points", f"components_{array.shape[1]}"),
            values,
            {"units": array.units} if array.units else {},
            (_block_points(array, read.entry.head > 0), -1) if chunked else None,
        )
        domains.setdefault(read.domain, {})[read.column.array_name.partition("/")[2]] = variable
    return group.parameters, {domain: xr.Dataset(fields) for domain, fields in domains.items()}


def _block_points(array: ArrayInfo, is_packed: bool) -> int:
    """Points of a block of dask: those of a shard, or of as many chunks of a packed sample as have 32 MiB."""
    if not is_packed:
        return array.shard_points
    chunk_bytes = array.chunk_points * array.shape[1] * np.dtype(array.dtype).itemsize
    return array.chunk_points * max(_BLOCK_BYTES // chunk_bytes, 1)


def _read_points(reader: ZarrChunkReader, whole: FieldRead, array: ArrayInfo, key: tuple[Any, ...]) -> np.ndarray:
    """Values of a field of a sample at a pair of integers and slices; ``whole`` reads the whole field."""
    points, components = key
    inside: int | slice
    rows = range(array.shape[0])[points]
    if isinstance(rows, int):
        first, last, inside = rows, rows, 0
    elif not rows:
        return np.empty((0, array.shape[1]), array.dtype)[:, components]
    else:
        first, last = min(rows[0], rows[-1]), max(rows[0], rows[-1])
        inside = slice(None, None, rows.step)
    drawn = Draw(((first, last + 1),), whole.drawn.chunk_points)
    (values,) = reader.execute([whole._replace(drawn=drawn)])
    return np.asarray(values[inside, components])


class LazyTree(xr.DataTree):  # type: ignore[misc]
    """A node whose children are made on use; made by :func:`lazy_tree`."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown, hidden = self._shown()
        return repr(shown) + (f"\n... and {hidden:,} more nodes" if hidden else "")

    def _repr_html_(self) -> str:
        shown, hidden = self._shown()
        return str(shown._repr_html_()) + (f"<p>... and {hidden:,} more nodes</p>" if hidden else "")

    def _shown(self) -> tuple[xr.DataTree, int]:
        """The node with its first children only, and the number of the others: xarray would make all of them."""
        most = int(xr.get_options()["display_max_children"])
        first = dict(islice(self.children.items(), most))
        return xr.DataTree(self.to_dataset(), first, self.name), len(self.children) - len(first)


def lazy_tree(dataset: xr.Dataset, name: str | None, make: Mapping[str, Callable[[], xr.DataTree]]) -> LazyTree:
    """A node, or a root without a name, whose children ``make`` makes when they are first looked up."""
    tree = LazyTree(dataset, name=name)
    tree._children = _Nodes(tree, make)
    return tree


class _Nodes(UserDict[str, Any]):
    """The children of a node, or what makes them, in the place of xarray's dict of them."""

    def __init__(self, parent: xr.DataTree, make: Mapping[str, Callable[[], xr.DataTree]]) -> None:
        super().__init__(make)
        self._parent = parent

    def __getitem__(self, name: str) -> xr.DataTree:
        node = self.data[name]
        if not isinstance(node, xr.DataTree):
            node = node()
            node._parent = self._parent
            self.data[name] = node
        return node
