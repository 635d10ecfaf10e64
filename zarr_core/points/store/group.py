"""A sample's group: the names of its objects, and what its ``zarr.json`` records about the conversion."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import AfterValidator, StrictInt, TypeAdapter

from zarr_core._util.documents import DocumentError, check_model, expect, parse_json
from zarr_core.errors import StoreError
from zarr_core.format.array_metadata import group_arrays
from zarr_core.format.moments import FieldMoments, equally_long
from zarr_core.format.names import FieldName
from zarr_core.format.object_names import ATTRIBUTES_KEY, ZARR_JSON
from zarr_core.format.packed import PackedGroup, head_size, parse_head
from zarr_core.format.rounding import RoundingError
from zarr_core.points.store.manifest import ArrayColumn, DomainGrid, SampleEntry
from zarr_core.points.store.mesh import mesh_bytes
from zarr_core.storage import Storage
from zarr_core.storage.archives import is_archive
from zarr_core.storage.temporary import strip_temp_suffix

GROUP_FORMAT = 1
#: Reads of groups in flight. On an object store, each is a round trip.
METADATA_READS = 16
#: In the attributes of a copy with the first points of a sample only: how many points its domains have in the source.
SOURCE_POINTS = "source_points"

_SIZES = TypeAdapter(dict[str, StrictInt])
_MOMENTS = TypeAdapter(dict[str, Annotated[FieldMoments, AfterValidator(equally_long)]])
_ROUNDING = TypeAdapter(dict[str, Annotated[RoundingError, AfterValidator(equally_long)]])
# What a group records of each of its fields.
_OF_FIELDS = ("moments", "stored_bytes", "rounding")

# Objects that a conversion writes. A sample id may contain slashes, so the longest possible prefix is the group.
_GROUP = re.compile(
    r"(samples/.+/[0-9a-f]{16}(?=/)|samples/.+/[0-9a-f]{16}\.zip)"
    r"(?:/(?:zarr\.json|quarantine\.json|\w+/zarr\.json|\w+/\w+/zarr\.json|\w+/\w+/c/\d+/\d+))?"
)


def group_of(name: str) -> str | None:
    """The group that an object belongs to; None for an object that no conversion writes."""
    found = _GROUP.fullmatch(name)
    return found[1] if found else None


def read_metadata(storage: Storage, name: str) -> dict[str, Any]:
    """The content of a ``zarr.json``; raises StoreError if it is missing or damaged."""
    with explained(storage, name):
        return expect(dict, parse_json(storage.read(name)), "the document")


def read_group(storage: Storage, entry: SampleEntry) -> dict[str, Any]:
    """The content of the ``zarr.json`` of a sample's group, by one request; errors as of :func:`read_metadata`."""
    if not entry.head:
        return read_metadata(storage, f"{entry.relpath}/{ZARR_JSON}")
    with explained(storage, entry.relpath):
        return dict(parse_head(storage.read(entry.relpath, 0, entry.head)).document)


@contextmanager
def explained(storage: Storage, name: str) -> Iterator[None]:
    """Turns the errors of reading a document into StoreError, which names it."""
    try:
        yield
    except FileNotFoundError:
        raise StoreError(f"{storage.url}: {name} is missing") from None
    except ValueError as error:
        raise StoreError(f"{storage.url}: {name} cannot be read: {error}") from error


def recorded_attributes(group: Any) -> dict[str, Any] | None:
    """What this library recorded in a group's ``zarr.json``; None if another program wrote it. Raises DocumentError."""
    if not isinstance(group, dict) or group.get("node_type") != "group":
        raise DocumentError("not the metadata of a Zarr group")
    recorded = expect(dict, group.get("attributes", {}), "attributes").get(ATTRIBUTES_KEY)
    return None if recorded is None else expect(dict, recorded, f"attribute {ATTRIBUTES_KEY!r}")


def stored_bytes(recorded: dict[str, Any]) -> dict[str, int]:
    """Recorded bytes of each array by canonical field name; raises DocumentError."""
    return check_model(_SIZES, recorded.get("stored_bytes"), "stored_bytes")


def source_points(recorded: dict[str, Any]) -> dict[str, int]:
    """Points that domains of a sample have in its source, of those with fewer points here; raises DocumentError."""
    return check_model(_SIZES, recorded.get(SOURCE_POINTS, {}), SOURCE_POINTS)


def recorded_moments(recorded: dict[str, Any]) -> dict[str, FieldMoments]:
    """Recorded moments by canonical field name; raises DocumentError."""
    return check_model(_MOMENTS, recorded.get("moments"), "moments")


def recorded_rounding(recorded: dict[str, Any]) -> dict[str, RoundingError]:
    """Recorded rounding errors by canonical field name; empty in a group of an older version. Raises DocumentError."""
    return check_model(_ROUNDING, recorded.get("rounding", {}), "rounding")


def recorded_numbers(parameter: Any) -> list[float] | None:
    """The components of a recorded parameter; None if it is neither a number nor a list of numbers."""
    components = parameter if isinstance(parameter, list) else [parameter]
    are_numbers = all(isinstance(component, int | float) for component in components)
    return components if components and are_numbers else None


def only_fields(recorded: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """What a group records, but of some of its fields only; raises DocumentError."""
    reduced = dict(recorded)
    for key in _OF_FIELDS:
        if key in recorded:
            of_all = expect(dict, recorded[key], key)
            reduced[key] = {field: value for field, value in of_all.items() if field in fields}
    return reduced


def chunk_object_bytes(sizes: Mapping[str, int], relpath: str) -> int:
    """Bytes of the objects of a group that hold chunks, without temporary files that a killed writer left."""
    total = 0
    for name, size in sizes.items():
        if "/c/" in name[len(relpath) :] and not strip_temp_suffix(name)[1]:
            total += size
    return total


def is_complete(storage: Storage, relpath: str, group: Any = None, sizes: Mapping[str, int] | None = None) -> bool:
    """Whether a finished group still has all bytes of its arrays.

    A writer writes ``zarr.json`` last. After a power cut it may be there although an earlier shard is lost. Without
    ``group``, the content of ``zarr.json``, it is read; without ``sizes``, the bytes of the objects by name, they are
    listed.
    """
    try:
        recorded = recorded_attributes(parse_json(storage.read(f"{relpath}/{ZARR_JSON}")) if group is None else group)
        if recorded is None:  # another program wrote this group and recorded no sizes
            return True
        expected = sum(stored_bytes(recorded).values()) + sum(mesh_bytes(recorded).values())
    except (FileNotFoundError, ValueError):
        return False
    return expected == chunk_object_bytes(storage.list(relpath) if sizes is None else sizes, relpath)


def head_of(sizes: Mapping[str, int], relpath: str) -> int:
    """Bytes of the head of a packed group, from the sizes of its entries by name; 0 for a folder."""
    return head_size(sizes[f"{relpath}/{ZARR_JSON}"]) if is_archive(relpath) else 0


def entry_of(relpath: str, group: Any, head: int = 0) -> SampleEntry:
    """The manifest entry of a finished group, from its ``zarr.json`` and the bytes of the head of a packed one.

    Raises DocumentError if it has no records of a conversion, and StoreError if the metadata of an array is damaged.
    """
    recorded = recorded_attributes(group) or {}
    fingerprint = expect(str, recorded.get("fingerprint"), "fingerprint")
    settings = expect(str, recorded.get("settings"), "settings")
    content = expect(str, recorded.get("content", ""), "content")
    grids: dict[str, DomainGrid] = {}
    fields: dict[str, ArrayColumn] = {}
    for array_name, layout in group_arrays(group).items():
        domain, _, name = array_name.partition("/")
        canonical = FieldName(domain, name).canonical
        grids[domain] = DomainGrid(layout.n_points, layout.chunk_points, layout.shard_points, layout.n_chunks)
        fields[canonical] = ArrayColumn(array_name, canonical, layout.dtype, layout.dim)
    of_arrays = sum(stored_bytes(recorded).values())
    size = PackedGroup(group, head).size if head else 0
    return SampleEntry(relpath, grids, fingerprint, settings, of_arrays, fields, content, head, size)
