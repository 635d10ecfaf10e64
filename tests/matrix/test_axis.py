"""The feature axis."""

from __future__ import annotations

import numpy as np


def test_features_are_found_in_any_order() -> None:
    from zarr_core.matrix.axis import FeatureAxis

    for ids in (["b", "ab", "a", "zürich"], [5, -3, 2**40]):
        axis = FeatureAxis(ids)
        assert list(axis) == ids
        assert np.asarray(axis).tolist() == ids
        assert axis[1] == ids[1]
        assert axis[[2, 0]].tolist() == [ids[2], ids[0]]
        assert axis.positions([ids[2], ids[0], ids[2]]).tolist() == [2, 0, 2]
        assert axis.positions(np.asarray(axis)).tolist() == list(range(len(ids)))
        assert len(axis.positions([])) == 0
