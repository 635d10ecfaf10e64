"""Formats of a matrix: all of them read the same cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.matrices import FEATURES, SMALL, append
from zarr_core.matrix import WideMatrix
from zarr_core.shootout.candidates import MATRIX_ENTRIES, Candidate
from zarr_core.shootout.formats.matrices import Cells


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> WideMatrix:
    made = WideMatrix.create(tmp_path_factory.mktemp("matrix") / "matrix", FEATURES, {"beta": "float32"}, **SMALL)
    append(made, "a", 5)
    append(made, "b", 3, seed=9)
    return made


@pytest.mark.parametrize("entry", MATRIX_ENTRIES, ids=lambda entry: entry.name)
def test_every_format_reads_the_same_cells(
    entry: Candidate, matrix: WideMatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zarr_core.datasets.memory_map._BLOCK_BYTES", 3 * 100 * 4)  # several row groups
    chosen = entry.with_settings("zstd:1", 32)
    if not chosen.installed:
        pytest.skip(f"needs {chosen.package}, of the extra exports")
    chosen.make().prepare(matrix, tmp_path)
    cells = matrix.read(matrix.sample_ids)
    features = np.array([3, 50, 97])
    for draws, numbers, expected in (
        (Cells(range(8)), [7, 0, 4], cells[[7, 0, 4]]),
        (Cells(range(8), features), [2, 6], cells[[2, 6]][:, features]),
        (Cells([90, 4], by_feature=True), [90, 4], cells[:, [90, 4]]),
    ):
        opened = chosen.make()
        opened.open(tmp_path, draws)
        found = opened.read_batch([(number, 0) for number in numbers])
        np.testing.assert_array_equal(found["cells"], expected, strict=True)
