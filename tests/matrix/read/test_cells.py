"""Reads from the column-major copy."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.matrices import FEATURES, append
from zarr_core.matrix import WideMatrix
from zarr_core.storage.byte_ranges import CountingObjects, open_objects


@pytest.mark.slow
def test_few_features_of_many_samples_are_read_from_the_column_major_copy(
    any_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"chunk_features": 4_000, "shard_rows": 64, "column_chunk": (4, 32), "codec": "none"}
    names = [f"cg{number:05d}" for number in range(16_000)]
    writer = WideMatrix.create(any_root, names, {"beta": "float32"}, **options)
    rows = append(writer, "a", 30)["beta"] | append(writer, "b", 30, seed=3)["beta"]
    assert writer.derive_columns() == ["a", "b"]
    rows |= append(writer, "c", 20, seed=4)["beta"]
    opened: list[CountingObjects] = []

    def counting(url: str) -> CountingObjects:
        opened.append(CountingObjects(open_objects(url)))
        return opened[-1]

    matrix = WideMatrix.open(any_root, objects_factory=counting)
    picked = list(range(37, 16_000, 800))
    with caplog.at_level(logging.DEBUG, "zarr_core.matrix"):
        got = matrix.read(matrix.sample_ids, [names[i] for i in picked])
    np.testing.assert_array_equal(got, np.stack([rows[i][picked] for i in matrix.sample_ids]))
    used = {key.split("/")[0] for key in opened[0].by_key}
    assert used == {"beta_columns.zarr", "beta.zarr"}  # the column-major copy lacks the last batch
    logged = [record.getMessage() for record in caplog.records if "samples x" in record.getMessage()]
    assert len(logged) == 2
    assert "60 samples x 20 features from columns" in logged[0]
    assert "20 samples x 20 features from rows" in logged[1]
    assert sum(int(re.findall(r": (\d+) requests", words)[0]) for words in logged) == opened[0].requests

    assert writer.derive_columns() == ["c"]
    assert writer.derive_columns() == []
    matrix.refresh()
    opened[0].reset()
    np.testing.assert_array_equal(matrix.read(matrix.sample_ids, [names[i] for i in picked]), got)
    assert {key.split("/")[0] for key in opened[0].by_key} == {"beta_columns.zarr"}
    by_columns = opened[0].bytes
    from_rows = WideMatrix.open(any_root, generation=3, objects_factory=counting)
    from_rows.read(from_rows.sample_ids, [names[i] for i in picked])
    assert by_columns < opened[1].bytes / 4
    # Whole rows come from the row copy, and so do many features of one sample.
    opened[0].reset()
    matrix.read(matrix.sample_ids[:2])
    matrix.read(["a_s0"], names[1::2])
    assert {key.split("/")[0] for key in opened[0].by_key} == {"beta.zarr"}


def test_chunks_of_a_single_cell_are_decoded_into_the_output(tmp_path: Path) -> None:
    """NumPy returns a copy, not a view, for a pair of integers."""
    writer = WideMatrix.create(
        tmp_path, FEATURES, {"beta": "float32"}, chunk_features=50, shard_rows=1, column_chunk=(1, 1)
    )
    rows = append(writer, "a", 3)["beta"]
    writer.derive_columns()
    matrix = WideMatrix.open(tmp_path)
    found = matrix.read(list(rows), [FEATURES[3]], out=np.full((3, 1), -1, np.float32))
    np.testing.assert_array_equal(found[:, 0], [cells[3] for cells in rows.values()])
