"""Pickled samples load as arrays, and as nothing else."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from zarr_core.shootout.formats.files import _PlainArrays


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("made by a pickle",)


def test_arrays_of_every_stored_dtype_load() -> None:
    arrays = {dtype: np.arange(6, dtype=dtype).reshape(3, 2) for dtype in ("float16", "float32", "float64")}
    arrays["view"] = np.arange(8.0)[::2]
    for protocol in (4, pickle.HIGHEST_PROTOCOL):
        loaded = _PlainArrays(io.BytesIO(pickle.dumps(arrays, protocol))).load()
        for name, array in arrays.items():
            np.testing.assert_array_equal(loaded[name], array)


def test_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"a": Hostile()}))
    with open("x.pkl", "rb") as file, pytest.raises(pickle.UnpicklingError, match="mkdir is not part of an array"):
        _PlainArrays(file).load()
    assert [path.name for path in tmp_path.iterdir()] == ["x.pkl"]
