"""Derive the column-major copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.matrices import FEATURES, SMALL, append, count_writes
from zarr_core.matrix import WideMatrix


def test_deriving_writes_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 5)
    append(matrix, "b", 3)
    append(matrix, "c", 2)
    matrix.derive_columns()
    append(matrix, "d", 17)
    names = count_writes(monkeypatch)
    matrix.derive_columns()
    written = {name.split()[1] for name in names if "_columns.zarr/c/" in name}
    # 17 samples in shards of 8, behind the two of the first call: "a" and "b" fill one, "c" has the other.
    expected = {f"beta_columns.zarr/c/{shard}/{along}" for shard in range(7) for along in (2, 3, 4)}
    assert written == expected
    assert sorted(name for name in names if name.startswith("replace")) == [
        "replace HEAD.json",
        "replace beta_columns.zarr/zarr.json",
    ]


def test_two_writers_derive_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zarr_core.matrix.ingest import derive

    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    rows = append(matrix, "a", 5)["beta"]
    original, other = derive.write_block, WideMatrix.open(tmp_path)
    rows |= append(matrix, "b", 2)["beta"]

    def overtaken(*arguments: Any) -> Any:
        """Another writer that has not seen the second batch."""
        written = original(*arguments)
        monkeypatch.setattr(derive, "write_block", original)
        plans = iter([[("a",)], []])
        with monkeypatch.context() as patched:
            patched.setattr(derive, "plan_blocks", lambda _: next(plans))
            assert other.derive_columns() == ["a"]
        return written

    monkeypatch.setattr(derive, "write_block", overtaken)
    assert matrix.derive_columns() == ["b"]
    assert matrix.generation == other.generation + 1 == 5
    got = matrix.read(list(rows), FEATURES[:2])
    np.testing.assert_array_equal(got, np.stack(list(rows.values()))[:, :2])
