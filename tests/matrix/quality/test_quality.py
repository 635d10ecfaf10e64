"""The quality report: figures equal those of the cells, outliers are named, and the page shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from zarr_core.errors import UnknownFieldError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.quality.__main__ import main
from zarr_core.matrix.quality.measure import COVERAGE_EDGES, measure_quality
from zarr_core.matrix.quality.page import render_page
from zarr_core.matrix.quality.report import quality_report

FEATURES = [f"cg{number:03d}" for number in range(200)]
HOSTILE = "<b>&$x$_1"


def betas(samples: int, seed: int) -> np.ndarray:
    """Rows around one profile, the last fifth of the axis not measured."""
    profile = np.random.default_rng(7).beta(0.4, 0.4, len(FEATURES))
    random = np.random.default_rng(seed)
    values = (profile + random.normal(0, 0.02, (samples, len(FEATURES)))).astype("float32")
    values[:, 160:] = np.nan
    return values


@pytest.fixture
def written(tmp_path: Path) -> tuple[WideMatrix, dict[str, np.ndarray]]:
    """Two batches, in the first of which one sample lacks values and one has another profile."""
    matrix = WideMatrix.create(tmp_path / "matrix", FEATURES)
    first, second = betas(8, 0), betas(5, 1)
    first[2, :40] = np.nan
    first[5, :160] = first[5, :160][::-1]
    coverage = np.full(second.shape, np.nan, "float32")
    coverage[:, :160] = np.arange(160) + 1
    nothing = np.full_like(first, np.nan)
    matrix.append("arrays", [f"a{number}" for number in range(8)], {"beta": first, "coverage": nothing})
    matrix.append(HOSTILE, [f"w{number}" for number in range(5)], {"beta": second, "coverage": coverage})
    return matrix, {"arrays": first, HOSTILE: second}


def test_the_numbers_are_those_of_the_cells(written: tuple[WideMatrix, dict[str, np.ndarray]]) -> None:
    matrix, tables = written
    report = measure_quality(matrix)
    assert (report["samples"], report["features"], list(report["batches"])) == (13, 200, list(tables))
    for name, values in tables.items():
        batch, there = report["batches"][name], ~np.isnan(values)
        assert (batch["cells"], batch["missing"]) == (values.size, np.count_nonzero(~there))
        assert list(batch["features"].values()) == [
            np.count_nonzero(there.all(0)),
            np.count_nonzero(there.any(0) & ~there.all(0)),
            np.count_nonzero(~there.any(0)),
        ]
        assert sum(batch["histogram"]) == np.count_nonzero(there)
        assert batch["histogram"] == np.histogram(np.clip(values[there], 0, 1), 50, (0, 1))[0].tolist()
        assert (batch["below"], batch["above"]) == (np.count_nonzero(values < 0), np.count_nonzero(values > 1))
        assert batch["missing_along_axis"][-1] == 1
        for row, sample in zip(values, batch["samples"].values(), strict=True):
            assert sample["mean"] == pytest.approx(np.nanmean(row, dtype=float), abs=1e-6)
            assert sample["missing"] == pytest.approx(1 - np.count_nonzero(~np.isnan(row)) / 160, abs=1e-6)
    assert report["batches"]["arrays"]["coverage"] is None
    coverage = report["batches"][HOSTILE]["coverage"]
    assert (coverage["cells"], coverage["mean"]) == (800, 80.5)
    expected = np.histogram(np.arange(160) + 1, (*COVERAGE_EDGES, np.inf))[0] * 5
    assert coverage["histogram"] == expected.tolist()


def test_only_outliers_are_reported(written: tuple[WideMatrix, dict[str, np.ndarray]]) -> None:
    report = measure_quality(written[0])
    assert {(found["sample"], found["reason"]) for found in report["outliers"]} == {
        ("a2", "lacks values"),
        ("a5", "differs from its batch"),
    }


@pytest.mark.slow
def test_only_new_batches_are_read(
    written: tuple[WideMatrix, dict[str, np.ndarray]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, _ = written
    first = quality_report(matrix, tmp_path / "report")
    matrix.append("more", ["m0"], {"beta": betas(1, 3), "coverage": betas(1, 3)})
    requested: list[str] = []
    read = WideMatrix.read
    monkeypatch.setattr(
        WideMatrix, "read", lambda self, ids, *a, **k: requested.extend(ids) or read(self, ids, *a, **k)
    )
    second = quality_report(matrix, tmp_path / "report")
    assert set(requested) == {"m0"}
    assert second["measured_batches"] == ["more"]
    assert {name: second["batches"][name] for name in first["batches"]} == first["batches"]
    (tmp_path / "report" / "quality.json").write_text("{")  # its writer was killed
    assert quality_report(matrix, tmp_path / "report")["batches"] == second["batches"]


def test_a_batch_that_was_loaded_again_with_other_values_is_measured_again(
    written: tuple[WideMatrix, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    matrix, tables = written
    first = quality_report(matrix, tmp_path / "report")
    sample_ids = matrix.batches["arrays"]
    matrix.retire(batch_ids=["arrays"])
    matrix.reinstate(batch_ids=["arrays"])
    coverage = np.full_like(tables["arrays"], np.nan)
    matrix.append("arrays", sample_ids, {"beta": 1 - tables["arrays"], "coverage": coverage})
    second = quality_report(matrix, tmp_path / "report")
    assert second["measured_batches"] == ["arrays"]
    for number, sample_id in enumerate(sample_ids):
        mean = np.nanmean(1 - tables["arrays"][number], dtype=float)
        assert second["batches"]["arrays"]["samples"][sample_id]["mean"] == pytest.approx(mean, abs=1e-6)
    assert second["batches"][HOSTILE] == first["batches"][HOSTILE]


def test_the_page_shows_outliers_and_escapes_names(written: tuple[WideMatrix, dict[str, np.ndarray]]) -> None:
    page = re.sub("<!--.*?-->", "", render_page(measure_quality(written[0])), flags=re.DOTALL)
    assert "2 samples far from the rest of the batch" in page
    assert "a2 of arrays lacks values: 0.25, batch median 0" in page
    assert "<b>" not in page.replace("&lt;b&gt;", "")
    for drawn in ("&lt;b&gt;&amp;$x$_1 (5)", "&lt;b&gt;&amp;$x$_1  20.0%", "&lt;b&gt;&amp;$x$_1, mean 80.5"):
        assert drawn in page, "names in figures, as they are"
    assert "1 batch without: arrays" in page


def test_a_matrix_without_batches_has_a_report(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "matrix", FEATURES)
    report = quality_report(matrix, tmp_path / "report")
    assert report["batches"] == {}
    assert "Nothing has been loaded yet." in (tmp_path / "report" / "quality.html").read_text()
    with pytest.raises(UnknownFieldError, match="no value table 'm'; it has beta, coverage"):
        measure_quality(matrix, value="m")


def test_a_matrix_without_coverage_has_a_report(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "matrix", FEATURES, values={"beta": "float32"})
    matrix.append("first", ["s0", "s1", "s2"], {"beta": betas(3, 0)})
    report = quality_report(matrix, tmp_path / "report")
    assert report["batches"]["first"]["coverage"] is None
    assert "s2" in (tmp_path / "report" / "quality.html").read_text()


def test_the_command_line(
    written: tuple[WideMatrix, dict[str, np.ndarray]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([written[0].url, "--output", str(tmp_path / "r"), "--generation", "2"]) == 0
    assert "8 samples, 200 features, 1 batches (1 read), 2 outliers" in capsys.readouterr().out
    assert json.loads((tmp_path / "r" / "quality.json").read_text())["generation"] == 2
