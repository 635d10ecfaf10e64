"""Compares what a conversion makes of a sample with the group that is already in the sample's folder.

The name of a group is a digest of the names, sizes and versions of its source files. Files whose content was replaced
under the same size and time give the same name, so the name alone does not tell what a group holds. Its bytes do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from zarr_core._util.documents import expect, parse_json
from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.object_names import ATTRIBUTES_KEY, CONVENTIONS_KEY, ZARR_JSON
from zarr_core.format.shards import chunk_ranges, passes_checksum
from zarr_core.points.store.group import recorded_attributes, recorded_moments
from zarr_core.points.store.packing import Packing
from zarr_core.points.store.settings import digest
from zarr_core.storage import Storage

# What a group records of the content of its arrays and of its sample.
_CONTENT = ("parameters", "moments", "stored_bytes", "chunk_bytes", "meshes")


class ComparedGroup(Packing):
    """The objects of a new group, each compared with the stored object of the same name. Nothing is written to a store.

    Attributes:
        differs: by the name of an object in the group, whether the stored one is missing or has other bytes.
        layouts: of the arrays by name; :meth:`write` finds the chunks of a shard by them.
    """

    def __init__(self, storage: Storage, relpath: str) -> None:
        super().__init__(relpath)
        self.differs: dict[str, bool] = {}
        self.layouts: dict[str, ArrayLayout] = {}
        self._storage = storage
        self._contradicted = False
        self._digests: dict[str, str] = {}

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Take an object, as :meth:`Packing.write`, and compare it."""
        data = b"".join(pieces)
        try:
            stored: bytes | None = self._storage.read(name)
        except (OSError, CorruptChunkError):  # missing, on a damaged disk, or in a damaged archive
            stored = None
        own_name = name.removeprefix(f"{self.relpath}/")
        self.differs[own_name] = stored != data
        if "/c/" in own_name:
            self._digests[own_name] = hashlib.sha256(data).hexdigest()
            self._contradicted |= stored is not None and self._has_other_chunks(own_name, stored, data)
        return super().write(name, [data])

    def content(self, group: Mapping[str, Any]) -> str:
        """Digest of the content of the new group: of its arrays, its meshes and the parameters of its sample."""
        recorded = recorded_attributes(group) or {}
        return digest([sorted(self._digests.items()), recorded.get("parameters")])

    def is_same(self, group: Mapping[str, Any]) -> bool:
        """Whether the stored group has the content of the new one, apart from damage.

        A damaged chunk is of the same content if the group's record says so. Call it after the last object, with the
        new group's ``zarr.json``.
        """
        if self._contradicted:
            return False
        arrays_differ = any(self.differs[name] for name in self._digests)
        try:
            stored = recorded_attributes(parse_json(self._storage.read(f"{self.relpath}/{ZARR_JSON}"))) or {}
        except FileNotFoundError:
            return True  # the group was never finished, and no manifest names it
        except (OSError, ValueError, CorruptChunkError):
            return not arrays_differ
        recorded = recorded_attributes(group) or {}
        keys = _CONTENT if arrays_differ else ("parameters",)
        return all(stored.get(key) == recorded.get(key) for key in keys)

    def _has_other_chunks(self, name: str, stored: bytes, data: bytes) -> bool:
        """Whether a stored chunk that passes its checksum has other bytes than the new one."""
        array_name, _, key = name.partition("/c/")
        layout = self.layouts.get(array_name)
        if layout is None:  # of a mesh, whose objects are chunks
            return stored != data and passes_checksum(stored)
        end = len(stored) - layout.index_bytes
        try:
            chunks = chunk_ranges(layout, int(key.partition("/")[0]), stored[max(end, 0) :], end)
        except CorruptChunkError:
            return False
        for chunk in chunks:
            before = stored[chunk.start : chunk.stop]
            if before != data[chunk.start : chunk.stop] and passes_checksum(before):
                return True
        return False


def stored_forms(storage: Storage, relpath: str, group: dict[str, Any]) -> list[dict[str, Any]]:
    """What the ``zarr.json`` of a stored group may contain if its content is that of a new one.

    Groups of earlier versions declare no conventions, and are repaired as they were written. Moments that differ in
    their last digits, as those of another processor, stay as they are: ``group`` gets them. If the stored ``zarr.json``
    cannot be read, both forms are possible.
    """
    attributes = {key: value for key, value in group["attributes"].items() if key != CONVENTIONS_KEY}
    undeclared = {**group, "attributes": attributes}
    try:
        stored = expect(dict, parse_json(storage.read(f"{relpath}/{ZARR_JSON}")), "the document")
        declares = CONVENTIONS_KEY in expect(dict, stored.get("attributes", {}), "attributes")
        _keep_moments(attributes[ATTRIBUTES_KEY], recorded_attributes(stored) or {})
    except (OSError, ValueError, CorruptChunkError):
        return [group, undeclared]
    return [group if declares else undeclared]


def _keep_moments(made: dict[str, Any], stored: dict[str, Any]) -> None:
    """Give what a new group records the stored moments of each field whose values have the same, up to rounding.

    Raises:
        DocumentError: the stored group records no moments that can be read.
    """
    then = recorded_moments(stored)
    for field, now in recorded_moments(made).items():
        if field in then and not now.differing(then[field]):
            made["moments"][field] = stored["moments"][field]
