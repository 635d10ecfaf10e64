"""Folders for the Hugging Face Hub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.helpers.faults import Kill, is_killed
from tests.helpers.stores import info_before_a_commit
from zarr_core import WideMatrix, ZarrChunkReader, write_sample
from zarr_core.__main__ import main
from zarr_core.errors import StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.exports import ShardItems, export_huggingface, export_webdataset
from zarr_core.points.convert.conversion import convert
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


def test_shards_that_this_export_lacks_are_refused(store: Path, matrix: WideMatrix, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    export_huggingface(store, hub)
    write_sample(store, "case/2", {"surface_position": np.ones((9, 3)), "surface_pressure": np.ones(9)}, split="val")
    with pytest.raises(StoreError, match="holds data/test of an earlier export, .*; delete data/test"):
        export_huggingface(store, hub)
    shutil.rmtree(hub / "data/test")
    assert export_huggingface(store, hub) == {"train": 2, "val": 1, "others": 1}
    with pytest.raises(StoreError, match="of an earlier export"):
        export_huggingface(matrix.url, hub)


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
    with pytest.raises(ZarrCoreError, match="memory://hub: a local path is needed"):
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


def loaded(folder: Path, cache: Path, split: str = "train") -> dict[str, dict]:
    """Rows by sample, as the library of Hugging Face reads them."""
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face's datasets")
    rows = datasets.load_dataset(str(folder), split=split, cache_dir=cache)
    return {row["json"]["sample_id"]: row for row in rows}


def test_parameters_that_differ_between_samples(tmp_path: Path) -> None:
    given: list[dict] = [
        *({"angle": 30, "speed": 10, "count": 2**70, "inflow": [1, 2]} for _ in range(6)),  # it looks at five samples
        {"angle": 30.5, "speed": 10, "late": 1, "count": 1, "inflow": [0.5, 2.0]},
        {"angle": 30, "speed": "fast", "none": None, "late": None},
        {},
        {"flag": True},
    ]
    for number, parameters in enumerate(given):
        split = "train" if number < 8 else "test"
        arrays = {"surface_position": np.random.rand(5, 3)}
        write_sample(tmp_path / "store", f"c{number}", arrays, parameters=parameters, split=split)
    export_huggingface(tmp_path / "store", tmp_path / "hub")
    rows = loaded(tmp_path / "hub", tmp_path / "cache") | loaded(tmp_path / "hub", tmp_path / "cache", "test")
    names = ("angle", "speed", "late", "none", "flag", "count", "inflow")
    for number, parameters in enumerate(given):
        own = {name: parameters.get(name) for name in names}
        own["speed"] = None if own["speed"] is None else str(own["speed"])
        assert rows[f"c{number}"]["json"]["parameters"] == own
    assert isinstance(rows["c0"]["json"]["parameters"]["angle"], float)


def test_fields_that_some_samples_lack(tmp_path: Path) -> None:
    files = {"surface_position": "p.npy", "surface_pressure": "v.npy"}
    kind = SourceDescription(name="x", samples="*", files=files, optional=("surface_pressure",))
    for number in range(8):
        (tmp_path / f"data/{number}").mkdir(parents=True)
        np.save(tmp_path / f"data/{number}/p.npy", np.random.rand(5, 3).astype("float32"))
    np.save(tmp_path / "data/7/v.npy", np.arange(5, dtype="float32"))
    convert(kind, tmp_path / "store", root=tmp_path / "data")
    with pytest.warns(UserWarning, match=r"lack a field, such as 0.*fields=\['surface_position'\]"):
        export_huggingface(tmp_path / "store", tmp_path / "hub")
    rows = loaded(tmp_path / "hub", tmp_path / "cache")
    assert [i for i, row in rows.items() if row["surface_pressure.npy"] is not None] == ["7"]
    assert sorted(rows["7"]["surface_pressure.npy"]) == [[n] for n in range(5)]
    options = ["--fields", "surface_position", "--quiet"]  # what the warning says
    assert main(["export", "huggingface", str(tmp_path / "store"), str(tmp_path / "some"), *options]) == 0
    assert "| surface_pressure |" not in (tmp_path / "some/README.md").read_text()
    assert "surface_pressure.npy" not in next(iter(loaded(tmp_path / "some", tmp_path / "cache").values()))


def test_some_value_tables_of_a_matrix(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "matrix", ["cg1"])
    matrix.append("b", ["s"], {"beta": np.zeros((1, 1), np.float32), "coverage": np.ones((1, 1), np.float32)})
    export_huggingface(matrix.url, tmp_path / "hub", fields=["coverage"])
    assert "| beta |" not in (tmp_path / "hub/README.md").read_text()
    with pytest.raises(UnknownFieldError, match="betta"):
        export_huggingface(matrix.url, tmp_path / "hub", fields=["betta"])


def uploaded(folder: Path) -> set[str]:
    """The files that an upload to the Hub would publish."""
    utils = pytest.importorskip("huggingface_hub.utils", reason="needs Hugging Face's datasets")
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return {*utils.filter_repo_objects(files, ignore_patterns=utils.DEFAULT_IGNORE_PATTERNS)}


@pytest.mark.parametrize(
    "kill",
    [
        Kill("create", r"000000\.tar"),
        Kill("rename", r"/000000\.tar$"),
        Kill("rename", r"/train/000000\.tar$"),
        Kill("rename", r"/index\.json$", 2),
        Kill("create", r"README\.md"),
        Kill("rename", r"hub/README\.md$"),
    ],
    ids=str,
)
def test_a_killed_export_publishes_no_unfinished_files(store: Path, tmp_path: Path, kill: Kill) -> None:
    export_huggingface(store, tmp_path / "whole")
    whole = {path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*")}
    assert is_killed(kill, export_huggingface, store, tmp_path / "hub")
    assert uploaded(tmp_path / "hub") < uploaded(tmp_path / "whole")
    export_huggingface(store, tmp_path / "hub")
    assert {path.relative_to(tmp_path / "hub") for path in (tmp_path / "hub").rglob("*")} == whole


@pytest.mark.parametrize("file", ["samples", "features"])
def test_a_killed_export_of_a_matrix_publishes_no_unfinished_files(
    matrix: WideMatrix, tmp_path: Path, file: str
) -> None:
    hub = tmp_path / "hub"
    export_huggingface(matrix.url, hub)
    whole = {*hub.rglob("*")}
    assert is_killed(Kill("rename", rf"/{file}\.parquet$"), export_huggingface, matrix.url, hub)
    assert uploaded(hub) == {"README.md", "data/samples.parquet", "data/features.parquet"}
    assert {*hub.rglob("*")} > whole
    assert is_killed(Kill("rename", rf"/data/{file}\.parquet$"), export_huggingface, matrix.url, hub)
    assert uploaded(hub) == {"README.md", "data/features.parquet"}  # no cells beside names of another export
    export_huggingface(matrix.url, hub)
    assert {*hub.rglob("*")} == whole
