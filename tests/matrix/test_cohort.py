"""The page docs/cohort.md is executed: every command and every line of it."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.helpers.pages import run_page
from zarr_core.datasets import MatrixDataset

PROJECT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    monkeypatch.chdir(tmp_path)
    names = run_page("cohort.md")
    assert len(names["brain"]) == 8
    assert len(names["measured"]) > 1_000
    assert 0 < len(names["covered"]) < len(names["region"])
    assert names["deep"].shape == (4, len(names["covered"]))
    assert 0.7 < np.isfinite(names["deep"]).mean() <= 1
    assert names["predicted"].shape == names["ages"].shape == (8,)
    whole = MatrixDataset(names["matrix"], names["train"], names["measured"])
    assert whole.fingerprint == MatrixDataset("scratch/betas", names["train"], names["measured"]).fingerprint
    with h5py.File("cohort/betas.h5ad") as file:
        assert [*file["obs"].attrs["column-order"]] == ["batch", "platform", "tissue", "age"]
        assert np.isfinite(file["obs/age"][:]).sum() == 8
    printed = capsys.readouterr().out
    assert "28 samples of 5 batches loaded" in printed
    assert "metadata of 28 samples: age" in printed
    assert "added 1: lister_imr90 (2 samples; parquet" in printed
