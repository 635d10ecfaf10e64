"""What all formats have in common."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.matrices import FEATURES, SMALL, append
from tests.helpers.small_source import KIND, write_source
from zarr_core.matrix import WideMatrix
from zarr_core.shootout.candidates import ENTRIES, MATRIX_ENTRIES, OURS, Candidate
from zarr_core.shootout.formats import Arrays
from zarr_core.shootout.request import ShootoutRequest
from zarr_core.shootout.run import take_workload
from zarr_core.shootout.workload import Workload

THREADS = 4
SHARED = [entry for entry in (*ENTRIES, *MATRIX_ENTRIES) if not entry.make().without_threads]


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    root = tmp_path_factory.mktemp("points")
    write_source(root / "source", surface=200, volume=600)
    asked = ShootoutRequest(
        str(root / "source"), {"a": "b"}, dataset_kind=KIND, num_surface_points=32, num_volume_points=64
    )
    return take_workload(asked, root)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    root = tmp_path_factory.mktemp("cells")
    matrix = WideMatrix.create(root / "betas", FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "first", 6)
    return take_workload(ShootoutRequest(matrix.url, {"a": "b"}, num_features=20), root)


def test_formats_that_threads_cannot_share_say_why() -> None:
    reasons = {entry.name: entry.make().without_threads for entry in (*ENTRIES, *MATRIX_ENTRIES) if entry not in SHARED}
    assert reasons == {
        "WebDataset": "a stream has one reader",
        "LitData": "its reader keeps the place in the one file that it reads",
        "Parquet": "pyarrow crashes if threads share a file",
    }


@pytest.mark.slow
@pytest.mark.parametrize("entry", SHARED, ids=lambda entry: entry.factory.rpartition(".")[2])
def test_threads_share_a_format_and_read_the_same_batches(
    entry: Candidate, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if not entry.installed:
        pytest.skip(f"{entry.package} is not installed")
    unit = "features" if entry in MATRIX_ENTRIES else "points"
    workload: Workload = request.getfixturevalue("cells" if unit == "features" else "points")
    chosen = entry.with_settings("blosc-lz4", 50)
    chosen.make().prepare(workload.samples, tmp_path)
    for name, draws in workload.draws.items():
        if entry.reads and name not in entry.reads:
            continue
        batches = []
        for epoch in range(4):
            batches += [[(first, epoch), (second, epoch)] for first, second in itertools.pairwise(draws.ids)]
        opened = chosen.make()
        opened.open(tmp_path, draws)
        expected = list(map(opened.read_batch, batches))
        shared = chosen.make()
        shared.open(tmp_path, draws)
        with ThreadPoolExecutor(THREADS) as threads:
            for found, batch in zip(threads.map(shared.read_batch, batches), expected, strict=True):
                assert_equal(found, batch)


def assert_equal(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for field, arrays in expected.items():
        for one, other in zip(found[field], arrays, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_all_libraries_read_the_same_points_of_a_store(points: Workload, tmp_path: Path) -> None:
    """Whole samples, and draws of one and of two windows."""
    stores = [entry for entry in ENTRIES if entry.is_store and entry.installed]
    assert len(stores) > 2
    opened = {}
    for entry in stores:
        opened[entry.name] = entry.with_settings("zstd:3", points.chunk_sizes[0]).make()
    opened[OURS].prepare(points.samples, tmp_path)
    for draws in points.draws.values():
        expected: list[Arrays] = []
        for made in opened.values():
            made.open(tmp_path, draws)
            found = [made.read_batch([(sample, epoch) for sample in draws.ids]) for epoch in range(8)]
            for one, other in zip(found, expected or found, strict=True):
                assert_equal(one, other)
            expected = found
