"""Folders for the Hugging Face Hub."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.helpers.stores import info_before_a_commit
from zarr_core import WideMatrix, ZarrChunkReader, write_sample
from zarr_core.__main__ import main
from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.exports import ShardItems, export_huggingface, export_webdataset
from zarr_core.points.convert import convert
from zarr_core.sources import SourceDescription


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number, split in enumerate(["train", "train", "test", None]):
        arrays = {"surface_position": rng.random((9, 3)), "surface_pressure": rng.random(9)}
        write_sample(tmp_path / "store", f"case/{number}", arrays, split=split)
    return tmp_path / "store"


@pytest.fixture
def matrix(tmp_path: Path) -> WideMatrix:
    matrix = WideMatrix.create(tmp_path / "matrix", ["cg1", "cg2"], {"beta": "float32"})
    matrix.append("b", ["GSM1", "GSM2"], {"beta": np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)})
    return WideMatrix.open(tmp_path / "matrix")


def metadata(folder: Path) -> dict:
    _, head, _ = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head)


def test_every_sample_is_in_a_split(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "hub"
    options = ["--license", "CC-BY-4.0", "--cite-as", "@misc{x}", "--description", "Cars.", "--quiet", "--json"]
    assert main(["export", "huggingface", str(store), str(out), *options]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == {"train": 2, "test": 1, "others": 1}
    found = metadata(out)
    assert (found["license"], found["size_categories"]) == ("cc-by-4.0", ["n<1K"])
    (config,) = found["configs"]
    assert [file["split"] for file in config["data_files"]] == ["train", "test", "others"]
    for file in config["data_files"]:
        assert [*out.glob(file["path"])], "the card's patterns match the shards"
    card = (out / "README.md").read_text()
    assert "Cars." in card
    assert "@misc{x}" in card
    assert "| surface_pressure | float16 | 1 |  |" in card
    items = ShardItems(out / "data/train")
    whole = ZarrChunkReader(store).read_sample("case/0")
    np.testing.assert_array_equal(items[0]["surface_position"], whole["surface_position"])


def test_a_store_without_splits_is_the_split_train(store: Path, tmp_path: Path) -> None:
    write_sample(tmp_path / "plain", "a", {"surface_position": np.random.rand(5, 3)})
    assert export_huggingface(tmp_path / "plain", tmp_path / "hub") == {"train": 1}


@pytest.mark.parametrize("splits", [True, False])
def test_blacklisted_samples_are_left_out(tmp_path: Path, splits: bool) -> None:
    for sample_id in "abc":
        (tmp_path / "data" / sample_id).mkdir(parents=True)
        np.save(tmp_path / "data" / sample_id / "p.npy", np.random.rand(5, 3).astype("float32"))
    if splits:
        (tmp_path / "data/train_design_ids.txt").write_text("a\nb\nc\n")
    kind = SourceDescription(name="x", samples="*", files={"surface_position": "p.npy"}, blacklists=("blacklist.txt",))
    convert(kind, tmp_path / "store", root=tmp_path / "data")
    (tmp_path / "data/blacklist.txt").write_text("b\n")
    convert(kind, tmp_path / "store", root=tmp_path / "data")
    assert export_huggingface(tmp_path / "store", tmp_path / "hub") == {"train": 2}
    assert "2 samples" in (tmp_path / "hub/README.md").read_text()
    assert set(ShardItems(tmp_path / "hub/data/train").sample_ids) == {"a", "c"}
    assert export_webdataset(tmp_path / "store", tmp_path / "all").items == 2
    assert export_webdataset(tmp_path / "store", tmp_path / "named", sample_ids=["b"]).items == 1


def test_a_commit_meanwhile_does_not_mix_generations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.exports.huggingface.store_info", info_before_a_commit(tmp_path / "store"))
    assert export_huggingface(tmp_path / "store", tmp_path / "hub") == {"train": 1}


def test_a_readme_of_the_user_is_not_overwritten(tmp_path: Path) -> None:
    write_sample(tmp_path / "store", "a", {"surface_position": np.random.rand(5, 3)})
    hub = tmp_path / "hub"
    export_huggingface(tmp_path / "store", hub)
    export_huggingface(tmp_path / "store", hub)
    (hub / "README.md").write_text("# Own notes")
    with pytest.raises(StoreError, match=r"holds a README.md that no export has written"):
        export_huggingface(tmp_path / "store", hub)
    assert (hub / "README.md").read_text() == "# Own notes"


@pytest.mark.parametrize("split", ["others", "all"])
def test_names_that_the_hub_would_confuse_are_refused(tmp_path: Path, split: str) -> None:
    for name, own in (("a", split), ("b", None)):
        write_sample(tmp_path / "store", name, {"surface_position": np.random.rand(5, 3)}, split=own)
    with pytest.raises(ZarrCoreError, match=f"split '{split}'"):
        export_huggingface(tmp_path / "store", tmp_path / "hub")


def test_a_matrix_is_two_tables(matrix: WideMatrix, tmp_path: Path) -> None:
    assert export_huggingface(matrix.url, tmp_path / "hub") == {"train": 2}
    assert [config["config_name"] for config in metadata(tmp_path / "hub")["configs"]] == ["samples", "features"]
    assert {path.name for path in (tmp_path / "hub/data").iterdir()} == {"samples.parquet", "features.parquet"}
    with pytest.raises(ZarrCoreError, match="memory://hub: a matrix is exported to a local path"):
        export_huggingface(matrix.url, "memory://hub")


def test_the_library_of_hugging_face_loads_both(store: Path, matrix: WideMatrix, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face's datasets")
    export_huggingface(store, tmp_path / "points")
    for split, samples in {"train": ["case/0", "case/1"], "others": ["case/3"]}.items():
        rows = datasets.load_dataset(str(tmp_path / "points"), split=split, cache_dir=tmp_path / "cache")
        assert sorted(row["json"]["sample_id"] for row in rows) == samples
        whole = ZarrChunkReader(store).read_sample(rows[0]["json"]["sample_id"])
        np.testing.assert_array_equal(
            np.asarray(rows[0]["surface_position.npy"], np.float32), whole["surface_position"]
        )
    export_huggingface(matrix.url, tmp_path / "cells")
    rows = datasets.load_dataset(str(tmp_path / "cells"), "samples", split="train", cache_dir=tmp_path / "cache")
    np.testing.assert_array_equal(np.asarray(rows["beta"], np.float32), matrix.read(matrix.sample_ids, value="beta"))
