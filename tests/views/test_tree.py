"""Stores as trees of xarray."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.helpers.matrices import FEATURES, SMALL, append
from zarr_core import ZarrChunkReader, open_store, write_sample
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.points.store.head import load_manifest
from zarr_core.points.store.manifest import DomainGrid, SampleEntry, StoreManifest
from zarr_core.storage import Storage
from zarr_core.storage.zarr_stores import make_store
from zarr_core.views import lazy_tree

xarray = pytest.importorskip("xarray", reason="needs the extra views")

IDS = ["run_1", "run_2", "wing/a", "wing/b.1"]


@pytest.fixture(scope="module", params=["directory", "packed"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("views") / "store"
    rng = np.random.default_rng(0)
    for number, sample_id in enumerate(IDS):
        n, m = 40 + number, 25
        arrays = {
            "surface_position": rng.random((n, 3)),
            "surface_pressure": rng.random(n),
            "volume_position": rng.random((m, 3)),
            "volume_velocity": rng.random((m, 3)),
        }
        settings = {} if number else {"chunk_points": 8, "layout": request.param}
        if settings and request.param == "directory":
            settings["shard_points"] = 16
        split = "train" if number < 2 else "test"
        write_sample(root, sample_id, arrays, split=split, parameters={"speed": 30.5 + number}, **settings)
    return root


def test_every_field_of_every_sample(store: Path) -> None:
    tree, reader = open_store(store), ZarrChunkReader(store)
    assert tree.attrs == {"store": str(store), "dataset": "arrays", "generation": len(IDS)}
    assert list(tree.children) == ["run_1", "run_2", "wing"]
    for number, sample_id in enumerate(IDS):
        assert tree[sample_id].attrs == {"speed": 30.5 + number}
        for name, values in reader.read_sample(sample_id).items():
            domain, _, field = name.partition("_")
            array = tree[f"{sample_id}/{domain}/{field}"]
            assert (array.dims, array.dtype) == ((f"{domain}_points", f"components_{values.shape[1]}"), values.dtype)
            np.testing.assert_array_equal(array.values, values)


KEYS = [
    (slice(None), slice(None)),
    (3, slice(None)),
    (slice(5, 29), 0),
    (slice(None, None, 7), slice(1, 3)),
    (slice(30, 3, -4), slice(None)),
    (-1, -1),
    (slice(9, 9), slice(None)),
    ([7, 2, 30], [0, 2]),
    (np.arange(40) % 3 == 0, slice(None)),
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_selections_equal_those_of_numpy(store: Path, key: tuple[object, object]) -> None:
    array = open_store(store)["run_1/surface/position"]
    values = ZarrChunkReader(store).read_sample("run_1")["surface_position"]
    points, components = key
    expected = values[points][..., components]
    np.testing.assert_array_equal(array[key].values, expected)


def test_a_selection_reads_its_chunks_only(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    execute = ZarrChunkReader.execute

    def counted(self: ZarrChunkReader, reads: list, out: None = None) -> list:
        drawn.extend(read.drawn.runs for read in reads)
        return execute(self, reads, out)

    monkeypatch.setattr(ZarrChunkReader, "execute", counted)
    array = open_store(store)["run_1/surface/position"]
    assert drawn == []
    array[5:9].load()
    assert drawn == [((5, 9),)]


def test_a_part_of_a_store(store: Path) -> None:
    assert list(open_store(store, split="train").children) == ["run_1", "run_2"]
    tree = open_store(store, sample_ids=["wing/a"], generation=3)
    assert [*tree.children, *tree["wing"].children] == ["wing", "a"]
    with pytest.raises(UnknownFieldError, match="no split"):
        open_store(store, split="val")
    with pytest.raises(UnknownFieldError, match="holds no sample 'wing'"):
        open_store(store, sample_ids=["wing"])


def test_blocks_of_dask_are_shards_or_several_chunks(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask.array", reason="needs the extra views")
    packed = bool(load_manifest(store).samples["run_1"].head)
    if packed:  # whose chunks of 8 points are not sharded
        assert open_store(store, chunked=True)["run_1/surface/pressure"].chunks == ((40,), (1,))
    monkeypatch.setattr(lazy_tree, "_BLOCK_BYTES", 2 * 8 * 2 + 1)  # two chunks of float16, and a byte
    chunked = open_store(store, chunked=True)["run_1/surface/pressure"]
    assert chunked.chunks == ((16, 16, 8), (1,))
    np.testing.assert_array_equal(chunked.values, open_store(store)["run_1/surface/pressure"].values)
    assert b"run_2" not in pickle.dumps(chunked.data)  # a task carries its own sample, not the manifest


def test_units_are_those_of_the_group(store: Path, tmp_path: Path) -> None:
    copy_of = shutil.copytree(store, tmp_path / "store")
    entry = load_manifest(store).samples["run_2"]
    if entry.head:
        return  # the same document, in an archive
    group = copy_of / entry.relpath / "zarr.json"
    document = json.loads(group.read_bytes())
    document["consolidated_metadata"]["metadata"]["surface/pressure"]["attributes"] = {"units": "Pa"}
    group.write_text(json.dumps(document))
    fields = open_store(copy_of)["run_2/surface"]
    assert (fields["pressure"].attrs, fields["position"].attrs) == ({"units": "Pa"}, {})


def test_trees_are_copied_and_pickled(store: Path) -> None:
    tree = open_store(store)
    assert tree["run_2"].parent is tree
    for other in (pickle.loads(pickle.dumps(tree)), tree.copy(), copy.deepcopy(open_store(store))):
        assert other.identical(tree)
    assert [node.path for node in tree.leaves][:2] == ["/run_1/surface", "/run_1/volume"]


def test_25000_samples_cost_no_request_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = DomainGrid(100, 100, 100, 1)
    entry = SampleEntry("samples/x/0", {"surface": grid})
    manifest = StoreManifest("many", samples={f"run_{number}": entry for number in range(25_000)}, generation=1)
    (tmp_path / "manifest.json").write_bytes(manifest.to_json())
    read = []
    original = Storage.read
    monkeypatch.setattr(Storage, "read", lambda self, name, *part: (read.append(name), original(self, name, *part))[1])
    tree = open_store(tmp_path)
    assert (len(tree.children), read) == (25_000, ["manifest.json"])
    monkeypatch.setattr("zarr_core.views.lazy_tree._sample", lambda *_: ({}, {}))
    assert "24,988 more nodes" in repr(tree)
    assert "24,988 more nodes" in tree._repr_html_()


def test_a_matrix_is_a_dataset(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    cells = append(matrix, "a", 5)["beta"]
    tree = open_store(tmp_path)
    np.testing.assert_array_equal(tree["beta"].sel(sample="a_s3").values, cells["a_s3"])
    with pytest.raises(ZarrCoreError, match="for point stores"):
        open_store(tmp_path, split="train")


def test_xarray_opens_a_group_without_this_library(store: Path) -> None:
    """The metadata that a conversion writes has names for its dimensions."""
    for sample_id, entry in load_manifest(store).samples.items():
        fields = ZarrChunkReader(store).read_sample(sample_id)
        group = make_store(f"{store}/{entry.relpath}")
        tree = xarray.open_datatree(group, engine="zarr")
        for name, values in fields.items():
            domain, _, field = name.partition("_")
            dataset = xarray.open_zarr(group, group=domain)
            np.testing.assert_array_equal(tree[f"{domain}/{field}"].values, values)
            np.testing.assert_array_equal(dataset[field].values, values)
            array = zarr.open_array(group, path=f"{domain}/{field}", mode="r")
            assert array.metadata.dimension_names == (f"{domain}_points", f"components_{values.shape[1]}")
