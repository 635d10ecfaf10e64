"""Records of a group: only documents of the right types are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zarr_core._util.documents import DocumentError
from zarr_core.format.moments import FieldMoments
from zarr_core.points.store.group import group_of, recorded_attributes, recorded_moments, stored_bytes

MOMENTS = FieldMoments.of(np.ones((5, 3), "float32")).to_json()


def test_objects_of_a_group() -> None:
    group = f"samples/a/b/{'0' * 16}"
    for name in ("zarr.json", "quarantine.json", "surface/zarr.json", "surface/p/zarr.json", "surface/p/c/0/0"):
        assert group_of(f"{group}/{name}") == group
    for name in ("notes.txt", "surface/p/c/0", "surface/p/c/x/0"):
        assert group_of(f"{group}/{name}") is None


def test_records_are_returned_as_written() -> None:
    assert recorded_attributes({"node_type": "group", "attributes": {"zarr_core": {"x": 1}}}) == {"x": 1}
    assert recorded_attributes({"node_type": "group"}) is None
    assert stored_bytes({"stored_bytes": {"surface_pressure": 7}}) == {"surface_pressure": 7}
    assert recorded_moments({"moments": {"surface_normals": MOMENTS}})["surface_normals"].to_json() == MOMENTS


@pytest.mark.parametrize(
    "group",
    [None, [], {}, {"node_type": "array"}, {"node_type": "group", "attributes": []}]
    + [{"node_type": "group", "attributes": {"zarr_core": value}} for value in (5, [], "x")],
)
def test_metadata_that_is_not_that_of_a_group_is_refused(group: Any) -> None:
    with pytest.raises(DocumentError):
        recorded_attributes(group)


@pytest.mark.parametrize("value", [None, 5, [], {"surface_pressure": True}, {"surface_pressure": "7"}])
def test_sizes_that_are_not_integers_are_refused(value: Any) -> None:
    with pytest.raises(DocumentError, match="stored_bytes"):
        stored_bytes({"stored_bytes": value})


@pytest.mark.parametrize(
    "change",
    [
        {"mean": None},
        {"mean": ["1"]},
        {"m2": [1.0]},
        {"count": 0},
        {"count": True},
        {"min": {}},
        {"max": [10**400] * 3},
    ],
)
def test_moments_of_other_types_or_shapes_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DocumentError, match="moments: surface_normals"):
        recorded_moments({"moments": {"surface_normals": MOMENTS | change}})
