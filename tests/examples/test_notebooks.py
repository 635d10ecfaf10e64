"""The notebooks run on the bundled data, and the documentation has their pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.notebooks import IMAGES, NOTEBOOKS, run_notebook

pytestmark = pytest.mark.slow


def run(name: str, figures: int) -> dict[str, Any]:
    pictures = sorted(IMAGES.glob(f"notebook-{name}-*.png"))
    names, drawn = run_notebook(NOTEBOOKS / f"{name}.ipynb")
    assert len(drawn) == len(pictures) == figures, "run python -m tests.helpers.notebooks"
    return names


def test_look() -> None:
    pytest.importorskip("xarray", reason="the extra views is not installed")
    names = run("look", 3)
    assert set(names["reader"].manifest.samples) == {f"run_{number}" for number in (1, 4, 6, 10, 12, 13)}
    assert names["middle"].sum() > 500, "cells near the plane"


@pytest.mark.filterwarnings("error:.*samples of split .* are absent:UserWarning")
def test_train() -> None:
    names = run("train", 2)
    losses = names["losses"]
    assert len(losses) == 200
    assert names["state"]["epoch"] == 100
    assert losses[-1] < losses[100] < losses[0] / 2, "it learns, also after it was resumed"


def test_cohort() -> None:
    for library in ("duckdb", "sklearn"):
        pytest.importorskip(library, reason="the extra examples is not installed")
    names = run("cohort", 2)
    assert names["beta"].shape == (28, 3000)
    assert len(names["aged"]) == 8
    assert names["measured"].sum() > 1000


def test_notebooks_are_small_and_without_outputs() -> None:
    notebooks = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert [notebook.stem for notebook in notebooks] == ["cohort", "look", "train"]
    for notebook in notebooks:
        cells = json.loads(notebook.read_text())["cells"]
        assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code" and cell["outputs"]] == []
    sizes = {picture.name: picture.stat().st_size for picture in IMAGES.glob("notebook-*.png")}
    assert max(sizes.values()) < 60_000, sizes


def test_a_notebook_that_fails_is_named(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "id": "second", "source": ["1 / 0"]}
    (tmp_path / "bad.ipynb").write_text(json.dumps({"cells": [cell]}))
    with pytest.raises(ZeroDivisionError) as caught:
        run_notebook(tmp_path / "bad.ipynb")
    assert caught.traceback[-1].frame.code.raw.co_filename == "bad.ipynb, second"
