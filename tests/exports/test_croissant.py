"""Croissant descriptions of stores."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers.stores import info_before_a_commit
from zarr_core import WideMatrix, write_sample
from zarr_core.__main__ import main
from zarr_core.errors import ZarrCoreError
from zarr_core.exports import croissant_document, write_croissant
from zarr_core.points.store.head import load_manifest
from zarr_core.storage import Storage


def import_mlcroissant() -> ModuleType:
    """The library of MLCommons, or a skipped test.

    The first import of absl, which it needs, keeps ``sys.stderr``. If that were pytest's file, absl would close it as
    soon as Dagster configures the logging of the process, and every later test would fail.
    """
    with patch.object(sys, "stderr", sys.__stderr__):
        return pytest.importorskip("mlcroissant", reason="needs the extra croissant")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("croissant") / "store"
    rng = np.random.default_rng(0)
    for number, split in enumerate(["train", "train", "test", None]):
        arrays = {"surface_position": rng.random((9 + number, 3)), "surface_pressure": rng.random(9 + number)}
        write_sample(root, f"case/{number}", arrays, split=split)
    group = root / load_manifest(root).samples["case/0"].relpath / "zarr.json"
    metadata = json.loads(group.read_bytes())
    metadata["consolidated_metadata"]["metadata"]["surface/pressure"]["attributes"] = {"units": "Pa"}
    group.write_text(json.dumps(metadata))
    return root


def test_what_a_store_holds(store: Path) -> None:
    document = croissant_document(store, license="CC-BY-4.0", url="s3://bucket/store/", generation=3)
    manifest, *objects = document["distribution"]
    assert manifest["contentUrl"] == "s3://bucket/store/generations/00000003.json"
    data = (store / "generations" / "00000003.json").read_bytes()
    assert manifest["sha256"] == hashlib.sha256(data).hexdigest()
    assert [one["includes"] for one in objects] == ["**/surface/**"]
    surface, splits, samples = document["recordSet"]
    keys = ("@id", "dataType", "arrayShape", "unitText", "description")
    assert [tuple(map(field.get, keys)) for field in surface["field"]] == [
        ("surface/position", "cr:Float32", "-1,3", None, "(points, 3)"),
        ("surface/pressure", "cr:Float16", "-1,1", "Pa", "(points, 1), in Pa"),
    ]
    assert document["version"] == "3.0.0"
    assert splits["data"] == [{"splits/name": "train"}, {"splits/name": "test"}]
    assert [row["samples/split"] for row in samples["data"]] == ["train", "train", "test"]
    latest = croissant_document(store)["recordSet"][-1]["data"]
    assert [row["samples/id"] for row in latest if not row["samples/split"]] == ["case/3"]
    assert all((store / row["samples/group"] / "zarr.json").exists() for row in latest)


@pytest.mark.parametrize("given", ["Six cars", "Six cars."])
def test_the_description_begins_with_the_given_one_as_a_sentence(store: Path, given: str) -> None:
    own = croissant_document(store)["description"]
    assert croissant_document(store, description=given)["description"] == f"Six cars. {own}"


def test_files_of_packed_samples(tmp_path: Path) -> None:
    write_sample(tmp_path, "case", {"surface_position": np.zeros((9, 3))}, layout="packed")
    *_, objects = croissant_document(tmp_path)["distribution"]
    assert [path.suffix for path in tmp_path.glob(objects["includes"])] == [".zip"]


def test_a_commit_meanwhile_does_not_mix_generations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.exports.croissant.store_info", info_before_a_commit(tmp_path / "store"))
    document = croissant_document(tmp_path / "store")
    assert document["version"] == "1.0.0"
    assert [row["samples/id"] for row in document["recordSet"][-1]["data"]] == ["a"]


def test_the_library_of_mlcommons_validates_it(store: Path, tmp_path: Path) -> None:
    mlcroissant = import_mlcroissant()
    out = tmp_path / "croissant.json"
    options = ["--license", "CC-BY-4.0", "--creator", "Someone", "--cite-as", "none", "--quiet"]
    assert main(["export", "croissant", str(store), str(out), *options]) == 0
    dataset = mlcroissant.Dataset(jsonld=str(out))
    assert (dataset.metadata.issues.errors, dataset.metadata.issues.warnings) == (set(), set())
    assert [record["splits/name"] for record in dataset.records("splits")] == ["train", "test"]
    assert len(list(dataset.records("samples"))) == 4
    surface = dataset.metadata.record_sets[0].to_json()
    assert [field.get("unitText") for field in surface["field"]] == [None, "Pa"]


def test_a_document_without_options(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", "croissant", str(store), "croissant.json", "--quiet"]) == 0
    document = json.loads((tmp_path / "croissant.json").read_text())
    assert document == json.loads(json.dumps(croissant_document(store)))
    assert "license" not in document


@pytest.mark.parametrize("out", ["s3://croissant.json", "memory://x/", "folder/"])
def test_an_output_without_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ZarrCoreError, match=f"{out} names no file; expected one such as s3://bucket/croissant.json"):
        write_croissant({}, out)
    assert [*tmp_path.iterdir()] == []


def test_a_document_at_a_url() -> None:
    assert write_croissant({"name": "x"}, "memory://croissant/x.json").endswith("croissant/x.json")
    assert json.loads(Storage("memory://croissant").read("x.json")) == {"name": "x"}


def test_a_matrix(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "betas", ["cg1", "cg2"])
    matrix.append("a", ["s1", "s2"], dict.fromkeys(("beta", "coverage"), np.zeros((2, 2), np.float32)))
    matrix.set_metadata(pa.table({"sample_id": ["s1", "s2"], "age": [1, 2]}))
    out = tmp_path / "croissant.json"
    options = ["--license", "CC-BY-4.0", "--creator", "Someone", "--cite-as", "none", "--quiet"]
    assert main(["export", "croissant", matrix.url, str(out), *options]) == 0
    document = json.loads(out.read_text())
    for file in document["distribution"]:
        if file["@type"] == "cr:FileObject":
            assert hashlib.sha256(Path(file["contentUrl"]).read_bytes()).hexdigest() == file["sha256"]
    assert [file["@id"] for file in document["distribution"]] == [
        "manifest",
        "features",
        "metadata/samples",
        "objects/matrix",
    ]
    assert document["distribution"][-1]["includes"] == ["beta.zarr/**", "coverage.zarr/**"]
    assert document["recordSet"][1]["data"] == [
        {"samples/id": "s1", "samples/batch": "a", "samples/row": 0},
        {"samples/id": "s2", "samples/batch": "a", "samples/row": 1},
    ]
    mlcroissant = import_mlcroissant()
    dataset = mlcroissant.Dataset(jsonld=str(out))
    assert (dataset.metadata.issues.errors, dataset.metadata.issues.warnings) == (set(), set())
    rows = [(record["samples/id"], record["samples/row"]) for record in dataset.records("samples")]
    assert rows == [(b"s1", 0), (b"s2", 1)] or rows == [("s1", 0), ("s2", 1)]


def test_what_is_empty_is_no_record_set(tmp_path: Path) -> None:
    mlcroissant = import_mlcroissant()
    WideMatrix.create(tmp_path / "matrix", ["cg1", "cg2"])
    write_sample(tmp_path / "store", "a", {"surface_position": np.random.rand(5, 3)})
    for name, records in {"matrix": ["matrix"], "store": ["surface", "samples"]}.items():
        document = croissant_document(tmp_path / name, license="CC-BY-4.0", creator="Someone", cite_as="none")
        assert [one["name"] for one in document["recordSet"]] == records
        write_croissant(document, tmp_path / "croissant.json")
        dataset = mlcroissant.Dataset(jsonld=str(tmp_path / "croissant.json"))
        assert (dataset.metadata.issues.errors, dataset.metadata.issues.warnings) == (set(), set())
