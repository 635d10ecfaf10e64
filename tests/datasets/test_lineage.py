"""The lines of the documentation that record the data of a run, and those that lead from the record to the source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.small_source import write_source
from tests.helpers.waiting import wait_for
from zarr_core import ZarrChunkReader, ZarrPointDataset, build_dataset, stage_store, write_sample
from zarr_core.convert import convert

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (DOCS / "training.md", DOCS / "reference" / "loading.md")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("lineage") / "source", ("run_1", "run_2"))


@pytest.fixture(scope="module")
def dataset(source: Path) -> ZarrPointDataset:
    store = source.with_name("store")
    convert("ahmedml", store, root=source, chunk_points=32)
    return build_dataset({"kind": "point", "root": str(store), "split": "train", "num_surface_points": 8})


def lines_of_the_pages(first: str) -> str:
    """The block that begins with a line."""
    text = "".join(page.read_text() for page in PAGES)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (block,) = (block for block in blocks if block.startswith(f"{first}\n"))
    return str(block)


def test_a_staged_copy_names_what_it_is_a_copy_of(dataset: ZarrPointDataset, tmp_path: Path) -> None:
    write_sample(dataset.reader.root, "run_9", ZarrChunkReader(dataset.reader.root).read_sample("run_1"))
    stage_store(dataset.reader.root, tmp_path / "copy")
    config = {"kind": "point", "split": "train", "num_surface_points": 8}
    original, copy = (build_dataset(config | {"root": str(root)}) for root in (dataset.reader.root, tmp_path / "copy"))
    assert copy.lineage["zarr_core.generation"] == "1"
    assert copy.lineage["zarr_core.origin"] == f"file://{dataset.reader.root}"
    assert copy.lineage["zarr_core.origin_generation"] == original.lineage["zarr_core.generation"] != "1"
    assert "zarr_core.origin" not in original.lineage


def test_mlflow_records_the_lineage(dataset: ZarrPointDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install mlflow-skinny")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as run:
        exec(lines_of_the_pages("import mlflow"), {"dataset": dataset})
    tags = mlflow.get_run(run.info.run_id).data.tags
    assert {name: tags[name] for name in dataset.lineage} == dataset.lineage


def test_wandb_records_the_lineage(dataset: ZarrPointDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(project="test", dir=str(tmp_path)) as run:
        exec(lines_of_the_pages("import wandb"), {"dataset": dataset})
        assert dict(run.config) == dataset.lineage
    (recorded,) = tmp_path.rglob("*.wandb")
    # A process of its own writes it, also after the end of the run.
    wait_for(lambda: dataset.fingerprint.encode() in recorded.read_bytes())


@pytest.mark.parametrize("layout", ["directory", "packed"])
def test_a_recorded_generation_leads_to_the_files_of_its_samples(source: Path, tmp_path: Path, layout: str) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, chunk_points=32, layout=layout)
    found: dict[str, Any] = {"tags": build_dataset({"kind": "point", "root": str(store), "split": "train"}).lineage}
    exec(lines_of_the_pages("from zarr_core import ZarrChunkReader"), found)
    assert found["folder"] == found["sample_id"]
    sizes = {path.name: path.stat().st_size for path in (source / found["sample_id"]).glob("*.pt")}
    assert {file["name"]: file["size"] for file in found["files"].values()} == sizes
    assert all(file["version"] for file in found["files"].values())


def test_a_sample_of_arrays_has_no_source(tmp_path: Path) -> None:
    write_sample(tmp_path / "store", "case_1", {"surface_position": np.zeros((9, 3))})
    assert ZarrChunkReader(tmp_path / "store").read_attributes("case_1")["source"] == {}
