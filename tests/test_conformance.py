"""Other implementations of Zarr v3 read every array of our stores bit for bit."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.helpers.matrices import FEATURES, append
from zarr_core import WideMatrix, ZarrChunkReader, write_sample
from zarr_core.format.codecs import CODECS

GOLDEN = Path(__file__).parent / "golden"


def by_zarr_python(path: Path) -> np.ndarray:
    return np.asarray(zarr.open_array(path, mode="r", zarr_format=3)[:])


def by_zarrs(path: Path) -> np.ndarray:
    """zarr-python with the codec pipeline of the Rust crate zarrs."""
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return by_zarr_python(path)


def by_tensorstore(path: Path) -> np.ndarray:
    import tensorstore

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())


def by_xarray(path: Path) -> np.ndarray:
    import xarray

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # of metadata that are not consolidated
        variable = xarray.open_zarr(path.parents[1], group=path.parent.name)[path.name]
    assert len(set(variable.dims)) == 2
    return np.asarray(variable.compute(scheduler="synchronous").values)


def by_dask(path: Path) -> np.ndarray:
    import dask.array

    array = dask.array.from_zarr(str(path))
    chunk = zarr.open_array(path, mode="r").chunks
    assert array.chunksize == tuple(map(min, chunk, array.shape))  # a task holds a chunk, not a shard
    return np.asarray(array.compute(scheduler="synchronous"))


READERS: dict[str, Callable[[Path], np.ndarray]] = {
    "zarr": by_zarr_python,
    "zarrs": by_zarrs,
    "tensorstore": by_tensorstore,
    "xarray": by_xarray,
    "dask.array": by_dask,
}


# TensorStore has no pcodec.
READ = [(library, codec) for library in READERS for codec in CODECS if (library, codec) != ("tensorstore", "pcodec")]


@pytest.fixture(params=READERS)
def read(request: pytest.FixtureRequest) -> Callable[[Path], np.ndarray]:
    library: str = request.param
    pytest.importorskip(library, reason=f"{library.partition('.')[0]} is not installed")
    importlib.import_module(library)
    return READERS[library]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each codec a point store with several chunks and shards per array, and a matrix with both of its copies."""
    root = tmp_path_factory.mktemp("conformance")
    rng = np.random.default_rng(0)
    points = {"surface_position": rng.random((41, 3)), "surface_pressure": rng.random(41)}
    for codec in CODECS:
        settings = {
            "codec": codec,
            "chunk_points": 8,
            "shard_points": 16,
            "field_dtypes": {"surface_pressure": "float64"},
        }
        write_sample(root / codec, "a", points, **settings)
        layout: Any = {"chunk_features": 16, "shard_rows": 4, "column_chunk": (4, 8), "codec": codec}
        matrix = WideMatrix.create(
            root / f"{codec}-matrix", FEATURES, {"beta": "float32", "depth": "float64"}, **layout
        )
        append(matrix, "a", 5)
        matrix.derive_columns()
    return root


@pytest.mark.parametrize(("read", "codec"), READ, indirect=["read"])
def test_point_stores(stores: Path, read: Callable[[Path], np.ndarray], codec: str) -> None:
    roots = (
        [stores / codec] if read is by_xarray else [stores / codec, GOLDEN / codec]
    )  # golden arrays name no dimensions
    for root in roots:
        reader = ZarrChunkReader(root)
        for name, values in reader.read_sample("a").items():
            same(read(root / reader.manifest.samples["a"].relpath / reader.manifest.fields[name].array_name), values)


@pytest.mark.parametrize(("read", "codec"), [pair for pair in READ if pair[0] != "xarray"], indirect=["read"])
def test_matrices(stores: Path, read: Callable[[Path], np.ndarray], codec: str) -> None:
    """Not with xarray, which opens groups: a matrix is none, and has ``to_xarray``."""
    root = stores / f"{codec}-matrix"
    matrix = WideMatrix.open(root)
    for value in matrix.values:
        cells = matrix.read(matrix.sample_ids, value=value)
        for path in arrays(root, value):
            found = read(path)
            same(found if found.shape == cells.shape else found.T, cells)


def arrays(root: Path, value: str) -> Iterator[Path]:
    for copy in (f"{value}.zarr", f"{value}_columns.zarr"):
        assert json.loads((root / copy / "zarr.json").read_bytes())["dimension_names"]
        yield root / copy


def same(found: np.ndarray, values: np.ndarray) -> None:
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)
