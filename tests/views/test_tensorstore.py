"""Arrays of stores in TensorStore."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.matrices import FEATURES, SMALL, append
from zarr_core import WideMatrix, ZarrChunkReader, as_tensorstore, write_sample
from zarr_core.errors import StoreError, UnknownFieldError, ZarrCoreError

ts = pytest.importorskip("tensorstore", reason="needs the extra tensorstore")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    arrays = {"surface_position": rng.random((40, 3)), "surface_pressure": rng.random(40)}
    write_sample(tmp_path / "store", "run_1", arrays, chunk_points=8, shard_points=16)
    return tmp_path / "store"


def test_a_field_of_a_sample(store: Path) -> None:
    context = ts.Context({"cache_pool": {"total_bytes_limit": 10**6}})
    expected = ZarrChunkReader(store).read_sample("run_1")
    for name, values in expected.items():
        array = as_tensorstore(store, name, "run_1", context=context)
        assert array.domain.labels == ("surface_points", f"components_{values.shape[1]}")
        np.testing.assert_array_equal(array.read().result(), values)
        view = array[ts.d["surface_points"][3:30]]
        np.testing.assert_array_equal(np.array(view[:, 0]), values[3:30, 0])


def test_a_matrix_in_the_order_of_its_samples(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 5)
    append(matrix, "b", 3, seed=1)
    matrix.retire(["a_s1"])
    array = as_tensorstore(tmp_path, "beta")
    assert array.domain.labels == ("sample", "feature")
    np.testing.assert_array_equal(array.read().result(), matrix.read(matrix.sample_ids))
    assert as_tensorstore(tmp_path, "beta", generation=2).shape == (5, 100)
    with pytest.raises(UnknownFieldError, match="no value table 'gamma'"):
        as_tensorstore(tmp_path, "gamma")
    with pytest.raises(ZarrCoreError, match="sample_id is for point stores"):
        as_tensorstore(tmp_path, "beta", "a_s0")


def test_what_is_not_there(store: Path) -> None:
    for arguments in (("surface_pressure", "run_9"), ("volume_pressure", "run_1")):
        with pytest.raises(UnknownFieldError):
            as_tensorstore(store, *arguments)
    with pytest.raises(ZarrCoreError, match="sample_id is for point stores"):
        as_tensorstore(store, "surface_pressure")
    with pytest.raises(StoreError, match="no generation"):
        as_tensorstore(store, "surface_pressure", "run_1", generation=9)
    shard = next((store / "samples").rglob("pressure/c/0/0"))
    shard.unlink()
    with pytest.raises(ValueError, match="missing"):  # of TensorStore, not zeros
        as_tensorstore(store, "surface_pressure", "run_1")[:4].read().result()
