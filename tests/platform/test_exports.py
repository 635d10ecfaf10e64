"""Exports as assets: declared in ``defs.yaml``, materialized by hand."""

from __future__ import annotations

import inspect
import json
from contextlib import nullcontext
from pathlib import Path

import dagster as dg
import numpy as np
import pytest
from zarr_core.platform.assets.component import PointDataset
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.exports import MATRIX_FORMATS, POINT_FORMATS, ExportDeclaration
from zarr_core.platform.assets.wide_matrix.declaration import MatrixDeclaration

from tests.platform.automation import Automation
from tests.platform.matrix_trial import MatrixTrial, declare
from tests.platform.trial import Trial, write_run
from zarr_core import WideMatrix
from zarr_core.exports import ShardItems, croissant_document, export_huggingface, export_webdataset
from zarr_core.exports.matrix import MatrixRows
from zarr_core.points.convert.conversion import convert


def materialize(trial: Trial | MatrixTrial, asset: str) -> dg.AssetMaterialization:
    job = trial.definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=trial.instance, asset_selection=[trial.dataset.key(asset)]).success
    return trial.materialization(asset)


def test_samples_are_exported_to_a_folder_per_generation(
    dataset: DatasetDeclaration, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    exports = [
        ExportDeclaration(name="shards", format="webdataset", output=str(tmp_path / "shards"), arguments={"seed": 3}),
        ExportDeclaration(name="hub", format="huggingface", output=str(tmp_path / "hub"), arguments={"license": "MIT"}),
        ExportDeclaration(name="card", format="croissant", output=str(tmp_path / "croissant.json")),
    ]
    trial = Trial(dataset.model_copy(update={"exports": exports}), instance)
    for number in (1, 2):
        write_run(trial.source, number)
        convert("ahmedml", trial.dataset.store, root=trial.source)
        metadata = materialize(trial, "export_shards").metadata
        assert metadata["generation"].value == number
        assert metadata["items"].value == number
        assert len(ShardItems(tmp_path / f"shards/{number}")) == number
    assert materialize(trial, "export_hub").metadata["samples/train"].value == 2
    assert "license: mit" in (tmp_path / "hub/2/README.md").read_text()
    materialize(trial, "export_card")
    document = json.loads((tmp_path / "croissant.json").read_text())
    assert document == json.loads(json.dumps(croissant_document(trial.dataset.store)))


@pytest.mark.usefixtures("nothing_measured")
def test_the_automation_describes_each_generation_and_copies_none(
    dataset: DatasetDeclaration, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    exports = [
        ExportDeclaration(name="card", format="croissant", output=str(tmp_path / "croissant.json")),
        ExportDeclaration(name="shards", format="webdataset", output=str(tmp_path / "shards")),
    ]
    trial = Trial(dataset.model_copy(update={"exports": exports}), instance)
    automation = Automation(trial)
    assert automation.evaluate() == {}
    write_run(trial.source, 1)
    assert trial.convert_all().success
    assert trial.publish().success
    assert set(automation.evaluate()) == {"statistics", "benchmark_report", "export_card"}


def test_a_matrix_is_exported(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    arguments = {"values": ["beta"], "feature_ids": ["cg003", "cg001"]}
    trial = MatrixTrial(
        declare(
            tmp_path,
            exports=[
                ExportDeclaration(name="x", format="npy", output="npy", arguments=arguments),
                ExportDeclaration(name="card", format="croissant", output="croissant.json"),
            ],
        ),
        instance,
    )
    trial.write("b1")
    trial.load_directly()
    metadata = materialize(trial, "export_x").metadata
    assert (metadata["samples"].value, metadata["features"].value) == (5, 2)
    matrix = WideMatrix.open(trial.dataset.matrix)
    np.testing.assert_array_equal(
        np.load(tmp_path / "npy/beta.npy"), matrix.read(matrix.sample_ids, ["cg003", "cg001"], value="beta")
    )
    assert not [*tmp_path.glob("npy/coverage*")]
    materialize(trial, "export_card")
    assert json.loads((tmp_path / "croissant.json").read_text())["name"] == "matrix"


@pytest.mark.parametrize(
    ("export", "message"),
    [
        ({"format": "tfrecord"}, "format 'tfrecord' is none of webdataset, huggingface, croissant, npy, parquet, h5ad"),
        ({"format": "npy"}, "npy is for another kind of store"),
        ({"format": "croissant", "arguments": {"licence": "MIT"}}, "croissant has no argument 'licence'"),
    ],
)
def test_wrong_declarations_are_refused(dataset: DatasetDeclaration, export: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DatasetDeclaration(**{**dict(dataset), "exports": [{"name": "x", "output": "y", **export}]})


@pytest.mark.parametrize("name", ["npy", "parquet", "h5ad", "huggingface", "croissant"])
def test_outputs_of_a_matrix_are_local(tmp_path: Path, name: str) -> None:
    export = ExportDeclaration(name="x", format=name, output="s3://bucket/x")
    with (
        nullcontext()
        if name == "croissant"
        else pytest.raises(
            ValueError, match=f"exports: x: s3://bucket/x: {name} of a matrix is written to a local path"
        )
    ):
        declare(tmp_path, exports=[export])


def test_two_exports_have_two_names(dataset: DatasetDeclaration) -> None:
    one = {"name": "x", "format": "croissant", "output": "y"}
    with pytest.raises(ValueError, match="two have the name x"):
        DatasetDeclaration(**{**dict(dataset), "exports": [one, one]})


def test_exports_are_declared_in_yaml() -> None:
    text = (
        "{name: a, kind: ahmedml, source: x, store: y, report: z, exports: [{name: s, format: webdataset, output: o}]}"
    )
    assert PointDataset.resolve_from_yaml(text).exports == [
        ExportDeclaration(name="s", format="webdataset", output="o")
    ]


def test_relative_outputs_belong_to_the_project(tmp_path: Path) -> None:
    declared = declare(tmp_path, exports=[{"name": "x", "format": "h5ad", "output": "x.h5ad"}])
    assert isinstance(declared, MatrixDeclaration)
    assert declared.exports[0].output == str(tmp_path / "x.h5ad")


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (export_webdataset, POINT_FORMATS["webdataset"]),
        (croissant_document, POINT_FORMATS["croissant"]),
        (export_huggingface, POINT_FORMATS["huggingface"]),
        *((MatrixRows.__init__, MATRIX_FORMATS[name]) for name in ("npy", "parquet", "h5ad")),
    ],
)
def test_declared_arguments_are_those_of_the_functions(function: object, names: tuple[str, ...]) -> None:
    assert {*names} <= {*inspect.signature(function).parameters}  # type: ignore[arg-type]
