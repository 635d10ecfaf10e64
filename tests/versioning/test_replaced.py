"""Stores that are deleted, or made again at the same place, while handles of the earlier ones are open."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.helpers.long_tables import BATCHES, write_long
from tests.helpers.matrices import FEATURES, SMALL, append, block
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import write_source
from zarr_core import ZarrChunkReader, load_manifest
from zarr_core.convert import convert
from zarr_core.datasets import MatrixDataset
from zarr_core.errors import StoreError
from zarr_core.matrix import WideMatrix, stage
from zarr_core.matrix.ingest import reindex
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.matrix.store.head import HEAD
from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import CountingObjects, Objects, open_objects
from zarr_core.versioning import generations
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.tags import make_tag
from zarr_core.warehouses import DuckDBWarehouse

REPLACED = "was replaced by another one; open it again"
DELETED = "was deleted"


def delete(root: str) -> None:
    storage = Storage(root)
    storage.delete(list(storage.list()))


def make(root: str, seed: int = 0, features: list[str] = FEATURES) -> WideMatrix:
    """A matrix of two batches. Without a codec, chunks of equal matrices lie at equal bytes."""
    matrix = WideMatrix.create(root, features, **SMALL)
    for number, batch_id in enumerate(("b1", "b2")):
        append(matrix, batch_id, 5, seed=seed + number)
    return matrix


@pytest.fixture(params=["disk", "memory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "store")
    return str(request.getfixturevalue(f"{request.param}_root"))


@pytest.mark.slow
def test_a_matrix_that_was_made_again(root: str) -> None:
    matrix = make(root)
    cold, expected = WideMatrix.open(root), matrix.read(matrix.sample_ids)
    carried, lazy, dataset = pickle.dumps(matrix), matrix.to_dask(), MatrixDataset(matrix)
    delete(root)
    make(root, seed=10, features=FEATURES[::-1])
    again = WideMatrix.open(root)
    uses: list[Callable[[], Any]] = [
        lambda: matrix.read(matrix.sample_ids),
        lambda: cold.read(matrix.sample_ids[:1]),
        lambda: pickle.loads(carried).read(matrix.sample_ids),
        lambda: copy.copy(matrix).read(matrix.sample_ids),
        lambda: lazy.compute(scheduler="sync"),
        lambda: dataset[3],
        matrix.refresh,
        lambda: matrix.append("b3", ["s"], {value: block(1) for value in matrix.values}),
        lambda: matrix.retire(["b1_s0"]),
        lambda: matrix.reinstate(["b1_s0"]),
        matrix.derive_columns,
        matrix.forget_retired,
    ]
    for use in uses:
        with pytest.raises(StoreError, match=REPLACED):
            use()
    assert again.refresh().batches.keys() == {"b1", "b2"}
    assert not np.array_equal(again.read(matrix.sample_ids), expected, equal_nan=True)


@pytest.mark.slow
def test_a_matrix_that_was_deleted(root: str) -> None:
    matrix = make(root)
    delete(root)
    for use in (matrix.refresh, lambda: WideMatrix.read(matrix, ["b1_s0"]), matrix.derive_columns):
        with pytest.raises(StoreError, match=DELETED):
            use()


def test_files_that_were_copied_over_those_of_an_open_matrix(tmp_path: Path) -> None:
    """They keep their inodes, so that open handles read the new bytes."""
    matrix = make(str(tmp_path / "one"))
    matrix.read(matrix.sample_ids)
    make(str(tmp_path / "other"), seed=10)
    for path in (tmp_path / "other").rglob("*"):
        if path.is_file():
            there = tmp_path / "one" / path.relative_to(tmp_path / "other")
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(path.read_bytes())
    with pytest.raises(StoreError, match=REPLACED):
        matrix.read(matrix.sample_ids)


@pytest.mark.slow
def test_a_matrix_that_others_change_is_the_same(root: str) -> None:
    matrix = make(root)
    early, other = WideMatrix.open(root, 2), WideMatrix.open(root)
    expected = matrix.read(matrix.sample_ids)
    append(other, "b3", 3)
    other.derive_columns()
    make_tag(Storage(root), HEAD, "kept")
    collect_garbage(Storage(root), HEAD, 0)
    other.retire(["b1_s0"])
    for _ in range(2):
        np.testing.assert_array_equal(matrix.read(matrix.sample_ids), expected)
    np.testing.assert_array_equal(early.read(["b1_s1"]), expected[1:2])
    assert matrix.refresh().generation == other.generation
    append(matrix, "b4", 2)


def test_a_copy_of_a_matrix_that_was_replaced_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = make(str(tmp_path / "one"))
    matrix.derive_columns()

    check = generations.load_same

    def replaced() -> None:
        delete(str(tmp_path / "one"))
        make(str(tmp_path / "one"), seed=10)

    copies: dict[ModuleType, Callable[[], Any]] = {
        stage: lambda: stage.stage_matrix(tmp_path / "one", tmp_path / "staged"),
        reindex: lambda: WideMatrix.open(tmp_path / "one").reindex(tmp_path / "copy", FEATURES[:50]),
    }
    for module, copy_it in copies.items():
        with monkeypatch.context() as patch:
            patch.setattr(module, "load_same", lambda *given: (replaced(), check(*given))[1])
            with pytest.raises(StoreError, match=REPLACED):
                copy_it()
    assert not Storage(tmp_path / "staged").exists(HEAD.name)
    assert not Storage(tmp_path / "copy").exists(HEAD.name)


def test_a_loader_whose_matrix_was_made_again(tmp_path: Path) -> None:
    from tests.helpers import long_tables

    warehouse = DuckDBWarehouse(write_long(tmp_path / "long"))
    matrix = WideMatrix.create(tmp_path / "matrix", long_tables.FEATURES, **SMALL)
    loader = MatrixLoader(warehouse, matrix)
    first, second = BATCHES
    loader.ingest([first])
    delete(str(tmp_path / "matrix"))
    again = WideMatrix.create(tmp_path / "matrix", long_tables.FEATURES[::-1], **SMALL)
    for use in (lambda: loader.load(BATCHES[first]), lambda: loader.ingest([second]), lambda: loader.load(["s2"])):
        with pytest.raises(StoreError, match=REPLACED):
            use()
    assert again.refresh().batches == {}


@pytest.mark.slow
def test_warm_reads_of_a_bucket_cost_no_further_request(s3_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(s3_root)
    matrix = WideMatrix.open(s3_root)
    looks: list[str] = []
    info = Storage.info
    monkeypatch.setattr(Storage, "info", lambda self, name: (looks.append(name), info(self, name))[1])
    matrix.read(matrix.sample_ids)
    assert looks == [HEAD.name]
    matrix.read(matrix.sample_ids)
    assert looks == [HEAD.name]


def _counted(root: str) -> Objects:
    return CountingObjects(open_objects(root))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["direct", "zarr", "counted"])
def test_a_store_of_another_program_that_was_made_again(tmp_path: Path, engine: str) -> None:
    root = tmp_path / "store"
    write_published_store(root, make_samples(3), dataset_name="one")
    options: dict[str, Any] = {"objects_factory": _counted} if engine == "counted" else {"engine": engine}
    warm, cold = ZarrChunkReader(root, **options), ZarrChunkReader(root, **options)
    expected = warm.read_sample("run_1")
    added = make_samples(4)
    shutil.rmtree(root)
    write_published_store(root, added, dataset_name="one")  # the same samples, and one more
    for reader in (warm, cold):
        np.testing.assert_equal(reader.read_sample("run_1"), expected)
    shutil.rmtree(root)
    write_published_store(root, make_samples(3, surface=51, seed=1), dataset_name="one")
    for reader in (warm, cold):
        for use in (reader.read_sample, reader.read_coords):
            with pytest.raises(StoreError, match=REPLACED):
                use("run_1")
    shutil.rmtree(root)
    with pytest.raises(StoreError, match=DELETED):
        cold.read_sample("run_1")


@pytest.mark.slow
def test_a_store_of_another_program_in_a_bucket_that_was_made_again(s3_root: str, tmp_path: Path) -> None:
    """With the same shapes: the ranges and sizes of the first store's chunks fit those of the second one."""
    import s3fs

    def put(name: str, seed: int) -> None:
        write_published_store(tmp_path / name, make_samples(2, seed=seed), dataset_name=name)
        s3fs.S3FileSystem().put(f"{tmp_path / name}/", f"{s3_root}/", recursive=True)

    put("one", 0)
    reader = ZarrChunkReader(s3_root)
    reader.read_sample("run_1")
    put("other", 1)
    with pytest.raises(StoreError, match=REPLACED):
        reader.read_sample("run_1")


def test_a_point_store_that_was_made_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_source(tmp_path / "one", ("run_1",))
    write_source(tmp_path / "other", ("run_1",), seed=1)
    convert("ahmedml", root, root=tmp_path / "one", chunk_points=32)
    reader = ZarrChunkReader(root)
    shutil.rmtree(root)
    convert("ahmedml", root, root=tmp_path / "other", chunk_points=32)
    with pytest.raises(StoreError, match=REPLACED):
        reader.read_sample("run_1")
    shutil.rmtree(root)
    with pytest.raises(StoreError, match=DELETED):
        reader.read_attributes("run_1")


def test_a_conversion_whose_store_was_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    write_source(tmp_path / "one", ("run_1", "run_2"))
    write_source(tmp_path / "other", ("run_3",), seed=1)
    convert("ahmedml", root, root=tmp_path / "one", sample_ids=["run_1"], chunk_points=32)
    from zarr_core.points.convert import conversion as module

    def replaced(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        shutil.rmtree(root)
        convert("ahmedml", root, root=tmp_path / "other", chunk_points=32)
        return module.commit_results(*arguments, **options)

    monkeypatch.setattr(module, "commit_results", replaced)
    with pytest.raises(StoreError, match=REPLACED):
        convert("ahmedml", root, root=tmp_path / "one")
    assert list(load_manifest(root).samples) == ["run_3"]


def test_a_head_from_a_backup_is_of_the_same_store(tmp_path: Path) -> None:
    matrix = make(str(tmp_path))
    before = (tmp_path / HEAD.name).read_bytes()
    append(matrix, "b3", 2)
    (tmp_path / HEAD.name).write_bytes(before)
    assert matrix.refresh().generation == 3
