"""Places given relative to a working directory: what was opened in one stays there, in every process."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.fork_server import context
from tests.helpers.matrices import FEATURES, SMALL, append
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import write_source
from tests.helpers.stores import objects
from zarr_core import ZarrChunkReader, stage_store, verify_store
from zarr_core.convert import convert
from zarr_core.datasets import AhmedMLDataset, MatrixDataset, ZarrPointDataset, build_dataset
from zarr_core.errors import StoreError
from zarr_core.exports.stream import ShardItems
from zarr_core.exports.webdataset import export_webdataset
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.stage import stage_matrix
from zarr_core.matrix.verify import verify_matrix
from zarr_core.storage import Storage, absolute
from zarr_core.warehouses import DuckDBWarehouse, IcebergWarehouse

IDS = ("run_1", "run_2")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders, ``here`` and ``there``, with the same names and other values."""
    root = tmp_path_factory.mktemp("places")
    for seed, folder in enumerate((root / "here", root / "there")):
        write_source(folder / "source", IDS, seed=seed)
        write_published_store(folder / "published", make_samples(2, seed=seed), splits={"train": [*IDS]})
        convert("ahmedml", folder / "store", root=folder / "source", chunk_points=32)
        append(WideMatrix.create(folder / "matrix", FEATURES, **SMALL), "b1", 5, seed=10 * seed)
    return root


@pytest.fixture
def here(template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(template / "here")
    return template / "here"


OPENED: dict[str, Callable[[], Any]] = {
    "published store": lambda: ZarrChunkReader("published"),
    "published store, zarr": lambda: ZarrChunkReader("published", engine="zarr"),
    "published store, file URL": lambda: ZarrChunkReader("file://published"),
    "matrix": lambda: WideMatrix.open("matrix"),
    "dataset of a matrix": lambda: MatrixDataset("matrix"),
    "dataset of points": lambda: build_dataset({"kind": "point", "root": "published", "split": "train"}),
    ".pt files": lambda: AhmedMLDataset("source", "train"),
}


def content(opened: Any) -> dict[str, np.ndarray]:
    """Some values that a reader, matrix or dataset reads now."""
    if isinstance(opened, ZarrChunkReader):
        return opened.read_sample("run_2")
    if isinstance(opened, WideMatrix):
        return {"beta": opened.read(opened.sample_ids)}
    if isinstance(opened, ZarrPointDataset):
        opened.set_epoch(0)  # equal draws
    return {name: np.asarray(values) for name, values in opened[0].items()}


@pytest.mark.parametrize("kind", OPENED)
def test_what_was_opened_stays_in_its_folder(here: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    open_it = OPENED[kind]
    expected = content(open_it())
    opened, carried = open_it(), pickle.dumps(open_it())  # which have read no value yet
    monkeypatch.chdir(here.with_name("there"))
    for stayed in (opened, pickle.loads(carried)):
        np.testing.assert_equal(content(stayed), expected)
    np.testing.assert_raises(AssertionError, np.testing.assert_equal, content(open_it()), expected)


def test_a_retirement_rewrites_the_rows_of_the_matrix_that_was_opened(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        shutil.copytree(template / name / "matrix", tmp_path / name / "matrix")
    before = objects(tmp_path / "there" / "matrix")
    monkeypatch.chdir(tmp_path / "here")
    matrix = WideMatrix.open("matrix")
    kept = matrix.sample_ids[1:]
    expected = WideMatrix.open(matrix.url).read(kept)
    monkeypatch.chdir(tmp_path / "there")
    matrix.retire(matrix.sample_ids[:1])
    np.testing.assert_array_equal(WideMatrix.open(tmp_path / "here" / "matrix").read(kept), expected)
    assert objects(tmp_path / "there" / "matrix") == before
    copy = matrix.reindex("copy")
    monkeypatch.chdir(tmp_path)
    np.testing.assert_array_equal(copy.read(kept), expected)
    assert verify_matrix(tmp_path / "there" / "copy").ok


def test_records_of_a_run_name_absolute_places(here: Path) -> None:
    dataset = build_dataset({"kind": "point", "root": "published", "split": "train", "cache_dir": "cache"})
    assert dataset.lineage["zarr_core.store"] == str(here / "published")
    assert dataset.config.root == str(here / "published")
    assert dataset.config.cache_dir == str(here / "cache")
    assert MatrixDataset("matrix").lineage["zarr_core.store"] == str(here / "matrix")
    assert ShardItems(_exported(Path("shards"))).index.store == f"file://{here / 'store'}"


def _exported(out: Path) -> Path:
    export_webdataset("store", out, shards=1)
    return out


@pytest.fixture
def elsewhere(here: Path) -> Iterator[Executor]:
    """Workers in another working directory."""
    with ProcessPoolExecutor(1, context(), os.chdir, (here.with_name("there"),)) as executor:
        yield executor


def test_workers_elsewhere_write_to_the_places_of_the_caller(
    here: Path, elsewhere: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = here.with_name("there")
    before = set(there.iterdir())
    report = convert("ahmedml", "made", root="source", chunk_points=32, executor=elsewhere)
    assert [result.reason for result in report.having("failed")] == []
    expected = {name: data for name, data in objects("store").items() if name.startswith("samples/")}
    assert {name: data for name, data in objects("made").items() if name.startswith("samples/")} == expected
    assert stage_store("made", "staged", executor=elsewhere).failed == []
    for store in ("made", "staged"):
        assert verify_store(store, source="source", executor=elsewhere).problems == []
        assert verify_store(store, source="source").problems == []
    export_webdataset("made", "made_shards", shards=1, executor=elsewhere)
    assert len(ShardItems("made_shards")) == len(IDS)
    # What the workers find at their own place of that name is not what the caller asked about.
    shutil.move("made/samples", "aside")
    assert len(verify_store("made", executor=elsewhere).problems) >= len(IDS)
    assert set(there.iterdir()) == before


def _mount(disk: Path) -> None:
    """In a worker: local stores lie on another disk, under the same paths."""
    initialize = Storage.__init__

    def on_this_disk(self: Storage, *arguments: Any) -> None:
        initialize(self, *arguments)
        if self.root.endswith("_away"):
            self.location = f"{disk}{self.root}"

    Storage.__init__ = on_this_disk  # type: ignore[method-assign]


def test_workers_with_another_disk_are_noticed(here: Path, tmp_path: Path) -> None:
    shutil.copytree("store", "store_away")
    shutil.copytree("store", f"{tmp_path}{here}/store_away")
    other = pytest.raises(StoreError, match="a worker has it, but it is not here")
    with ProcessPoolExecutor(1, context(), _mount, (tmp_path,)) as executor:
        report = convert("ahmedml", "made_away", root="source", chunk_points=32, executor=executor)
        assert ["it is not here" in result.reason for result in report.having("failed")] == [True, True]
        assert not Storage("made_away").exists("manifest.json")
        with other:
            stage_store("store", "staged_away", executor=executor)
        with other:
            export_webdataset("store", "shards_away", shards=1, executor=executor)
        with other:
            stage_matrix("matrix", "matrix_away", executor=executor)
        assert verify_store("store_away", executor=executor).problems == []
        shutil.rmtree("store_away/samples")
        problems = verify_store("store_away", executor=executor).problems
        assert ["it is not here" in problem.message for problem in problems] == [True, True]


def test_warehouses_stay_in_their_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = DuckDBWarehouse("long/*.parquet"), IcebergWarehouse("lab.long", properties={"uri": "sqlite:///a.db"})
    memory = IcebergWarehouse("lab.long", properties={"uri": "sqlite:///:memory:"})
    monkeypatch.chdir(here.with_name("there"))
    assert opened[0].files == f"{here}/long/*.parquet"
    assert opened[1].properties["uri"] == f"sqlite:///{here}/a.db"
    assert memory.properties["uri"] == "sqlite:///:memory:"


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("store", "{here}/store"),
        ("./store/", "{here}/store"),
        (Path("store"), "{here}/store"),
        ("file://store", "{here}/store"),
        ("file:///a/b", "/a/b"),
        ("~/store", "{home}/store"),
        ("/", "/"),
        ("a::b", "{here}/a::b"),
        ("s3://bucket/store", "s3://bucket/store"),
        ("zip://samples::/data/store.zip", "zip://samples::/data/store.zip"),
        ("memory://store", "memory://store"),
    ],
)
def test_absolute(here: Path, place: str | Path, expected: str) -> None:
    assert absolute(place) == expected.format(here=here, home=Path.home())


@pytest.mark.parametrize("place", ["$SCRATCH/store", "${SCRATCH}/store", "/scratch/$USER/store", "file://$SCRATCH"])
def test_a_variable_of_the_environment_is_no_folder(here: Path, place: str) -> None:
    with pytest.raises(StoreError, match="environment variables are not replaced in paths"):
        absolute(place)
    (here / "c$" / "$RECYCLE.BIN").mkdir(parents=True, exist_ok=True)
    for there in ("c$/$RECYCLE.BIN", "c$/$RECYCLE.BIN/store"):
        assert absolute(there) == f"{here}/{there}"
