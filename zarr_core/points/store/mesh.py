"""Meshes that a sample keeps beside its fields: points and cells of a domain, whole, in the order of the solver.

They are plain Zarr arrays below ``_mesh/`` in the sample's group, and not in the group's consolidated metadata, so
readers of fields and draws never see them. The group's attribute ``meshes`` records them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from zipfile import BadZipFile

import numpy as np
from pydantic import StrictInt, TypeAdapter

from zarr_core._util.documents import check_model, parse_json, to_json
from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import EMPTY_GROUP, ArrayLayout
from zarr_core.format.codecs import Codec
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.format.shards import encode_shard, passes_checksum
from zarr_core.sources.formats.contents import Mesh

#: Folder of the meshes in a sample's group. No domain has this name, because those begin with a letter.
MESH = "_mesh"
_ARRAYS = {"points": 3, "connectivity": 1, "offsets": 1, "types": 1}
_CHUNK_ROWS = 1 << 20
_CODEC = Codec.parse("zstd:3")
# Codecs raise RuntimeError for damaged bytes.
_DAMAGE = (OSError, ValueError, RuntimeError, BadZipFile)

Write = Callable[[str, Iterable[bytes]], int]


@dataclass(frozen=True)
class _Record:
    at: str
    bytes: StrictInt


_RECORDS = TypeAdapter(dict[str, _Record])


def write_mesh(write: Write, relpath: str, domain: str, mesh: Mesh) -> dict[str, Any]:
    """Write the mesh of a domain; returns its record: "at", and the stored bytes of all its arrays."""
    size = 0
    write(f"{relpath}/{MESH}/{ZARR_JSON}", [to_json(EMPTY_GROUP)])
    for name in _ARRAYS:
        values = np.ascontiguousarray(getattr(mesh, name)).reshape(-1, _ARRAYS[name])
        path = f"{relpath}/{MESH}/{domain}_{name}"
        rows = max(min(_CHUNK_ROWS, len(values)), 1)
        layout = ArrayLayout(*values.shape, rows, rows, values.dtype.name, _CODEC, sharded=False)
        write(f"{path}/{ZARR_JSON}", [to_json(_metadata(layout))])
        for chunk, start in enumerate(range(0, len(values), rows)):
            size += write(f"{path}/{layout.shard_key(chunk)}", encode_shard(layout, [values[start : start + rows]]))
    return {"at": mesh.at, "bytes": size}


def mesh_bytes(recorded: dict[str, Any]) -> dict[str, int]:
    """Recorded bytes of the meshes of a sample by domain; raises DocumentError."""
    return {domain: record.bytes for domain, record in _of(recorded).items()}


def mesh_names(recorded: dict[str, Any]) -> tuple[str, ...]:
    """Beginnings of the names of the objects of a sample's meshes, below its group; raises DocumentError."""
    names = [f"{MESH}/{domain}_{array}/" for domain in _of(recorded) for array in _ARRAYS]
    return (f"{MESH}/{ZARR_JSON}", *names) if names else ()


def check_mesh_object(name: str, data: bytes) -> bytes:
    """The bytes of an object of a mesh; raises CorruptChunkError if they are damaged. Metadata has no checksum."""
    if name.endswith(ZARR_JSON):
        try:
            parse_json(data)
        except ValueError as error:
            raise CorruptChunkError(f"{name} cannot be read: {error}") from error
    elif not passes_checksum(data):
        raise CorruptChunkError(f"{name}: checksum mismatch")
    return data


def read_meshes(root: str, relpath: str, recorded: dict[str, Any]) -> Iterator[tuple[str, Mesh]]:
    """The meshes of a sample by domain, without fields; raises DocumentError or CorruptChunkError for damaged ones."""
    import zarr

    from zarr_core.storage.zarr_stores import group_place, make_store

    place, group = group_place(root, relpath)
    for domain, record in _of(recorded).items():
        arrays = {}
        for name, width in _ARRAYS.items():
            path = f"{group}/{MESH}/{domain}_{name}".lstrip("/")
            try:
                values = np.asarray(zarr.open_array(make_store(place), path=path, mode="r")[...])
            except _DAMAGE as error:
                raise CorruptChunkError(f"{relpath}/{MESH}/{domain}_{name}: {error}") from error
            arrays[name] = values if width > 1 else values.ravel()
        points, connectivity, offsets, types = (arrays[name] for name in _ARRAYS)
        yield domain, Mesh(points, connectivity, offsets, types, record.at)


def _of(recorded: dict[str, Any]) -> dict[str, _Record]:
    return check_model(_RECORDS, recorded.get("meshes", {}), "meshes")


def _metadata(layout: ArrayLayout) -> dict[str, Any]:
    metadata = layout.to_zarr_json() | {"fill_value": 0}
    del metadata["storage_transformers"]
    if np.dtype(layout.dtype).itemsize == 1:  # single bytes have no order
        metadata["codecs"][0] = {"name": "bytes"}
    return metadata
