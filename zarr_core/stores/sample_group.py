"""What the metadata of the group of a sample says, without reading an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zarr_core._util.documents import expect
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.points.store.group import explained, read_group, read_metadata, recorded_attributes, recorded_rounding
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.storage import Storage


@dataclass(frozen=True)
class ArrayInfo:
    """One array of a sample of a point store.

    Attributes:
        rms_error: RMS error that storing made, relative to the standard deviation; of a vector, that of the component
            where it is largest. None if it is not recorded.
        max_error: largest error, relative to the same.
        zeroed: share of the non-zero values that became 0.
    """

    dtype: str
    shape: tuple[int, int]
    chunk_points: int
    shard_points: int
    units: str = ""
    rms_error: float | None = None
    max_error: float | None = None
    zeroed: float | None = None


class SampleGroup:
    """The metadata of the group of a sample, its ``zarr.json``; costs one request. Raises StoreError without it.

    Attributes:
        parameters: of the sample, by name.
        source: the files that it was made from; empty if it was made from arrays, None if that is not recorded.
    """

    def __init__(self, storage: Storage, state: StoreManifest, sample_id: str) -> None:
        self._storage, self._entry, self._columns = storage, state.samples[sample_id], state.fields_of(sample_id)
        group = read_group(storage, self._entry)
        self._inline = _mapping(_mapping(group.get("consolidated_metadata")).get("metadata"))
        with explained(storage, f"{self._entry.relpath}/{ZARR_JSON}"):
            recorded = recorded_attributes(group) or {}
            self._rounding = recorded_rounding(recorded)
            self.parameters: dict[str, Any] = expect(dict, recorded.get("parameters", {}), "parameters")
            self.source: Any = recorded.get("source")

    def arrays(self) -> dict[str, ArrayInfo]:
        """Arrays by canonical field name, as the metadata describes them.

        If another program wrote the group without the metadata of its arrays, each array costs one request.
        """
        found = {}
        for name, column in self._columns.items():
            path = column.array_name
            if self._inline and path not in self._inline:
                continue
            metadata = self._inline.get(path)
            if metadata is None:
                metadata = read_metadata(self._storage, f"{self._entry.relpath}/{path}/{ZARR_JSON}")
            grid = self._entry.domains[path.partition("/")[0]]
            found[name] = ArrayInfo(
                str(_mapping(metadata).get("data_type", column.dtype)),
                (grid.n_points, column.dim),
                grid.chunk_points,
                grid.shard_points,
                str(_mapping(_mapping(metadata).get("attributes")).get("units", "")),
                *(self._rounding[name].largest if name in self._rounding else ()),
            )
        return found


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
