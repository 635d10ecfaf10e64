"""The feature axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarr_core.errors import MatrixError
from zarr_core.matrix.store import axis as feature_axis
from zarr_core.matrix.store.axis import FeatureAxis, words


def test_features_are_found_in_any_order() -> None:
    for ids in (["b", "ab", "a", "zürich"], [5, -3, 2**40]):
        axis = FeatureAxis(ids)
        assert list(axis) == ids
        assert np.asarray(axis).tolist() == ids
        assert axis[1] == ids[1]
        assert axis[[2, 0]].tolist() == [ids[2], ids[0]]
        assert axis.positions([ids[2], ids[0], ids[2]]).tolist() == [2, 0, 2]
        assert axis.positions(np.asarray(axis)).tolist() == list(range(len(ids)))
        assert len(axis.positions([])) == 0
        assert axis.positions(pd.Series([ids[2], ids[0]], [7, 8])).tolist() == [2, 0]


@pytest.mark.parametrize(
    "names",
    [
        pa.array(["b", "zürich", "a"]),
        pa.chunked_array([["b", "zürich"], ["a"]], pa.large_string()).slice(0),
        pa.array(["x", "b", "zürich", "a", "y"]).slice(1, 3),
        pa.array(["b", "zürich", "a"]).dictionary_encode(),
        pa.array(["b", "zürich", "a"], pa.string_view()),
        np.array(["b", "zürich", "a"], object),
        np.array(["b", "zürich", "a"]),
    ],
    ids=["string", "chunked", "slice", "dictionary", "view", "object", "U"],
)
def test_names_of_any_kind_of_array(names: Any) -> None:
    assert list(FeatureAxis(names)) == ["b", "zürich", "a"]
    assert FeatureAxis(names).ids.dtype == "S7"


@pytest.mark.parametrize("block", [1, 2, 65_536])
def test_duplicates_are_found_in_any_block(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(feature_axis, "_BLOCK", block)
    assert FeatureAxis(["c", "b", "a"]).positions(["a", "c"]).tolist() == [2, 0]
    for ids in (["b", "a", "a"], ["b", "b", "a"], ["c", "b", "a", "c"]):
        with pytest.raises(MatrixError, match="appears twice"):
            FeatureAxis(ids)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (pa.array(["a", None]), "no name"),
        (pa.array([1.5]), "strings or integers"),
        (pa.array([b"a"]), "strings or integers"),
        (pa.array(["a", ""]), "empty name"),
        (pa.array(["a", "b\0"]), "zero character"),
        (pa.array(["a", "a"]), "appears twice"),
        (np.array([b"a", b"\xff"]), "not UTF-8"),
        (np.ma.array([1, 2], mask=[False, True]), "is a masked array, and its mask is not stored"),
        (np.array(["a", np.nan], np.dtypes.StringDType(na_object=np.nan)), "strings or integers"),
        (np.zeros(2, [("name", "S3")]), "strings or integers"),
    ],
)
def test_names_that_are_refused(names: Any, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        FeatureAxis(names)


@given(st.text("ab \n\tü", max_size=50))
def test_words_are_those_of_python(text: str) -> None:
    assert [word.decode() for word in words(text.encode()).tolist()] == text.split()
