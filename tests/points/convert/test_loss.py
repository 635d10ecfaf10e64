"""A field that its stored dtype would change is refused, and the error of every other one is recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zarr_core.points.convert.stored_values
from tests.helpers.small_source import KIND, write_source
from zarr_core.convert import ConversionReport, convert
from zarr_core.datasets import build_dataset
from zarr_core.format.rounding import RoundingError
from zarr_core.points.convert.stored_values import checked_rounding
from zarr_core.points.verify.store import verify_store
from zarr_core.sources import resolve_kind
from zarr_core.statistics import calculate_store_statistics, write_statistics
from zarr_core.stores.summary import sample_info

PRESSURE = resolve_kind(KIND).fields["surface_pressure"].filename


def converted(tmp_path: Path, pressure: torch.Tensor, **settings: Any) -> ConversionReport:
    source = tmp_path / "source"
    if not source.exists():
        write_source(source, ("run_1", "run_2"), surface=len(pressure))
    torch.save(pressure, source / "run_1" / PRESSURE)
    return convert(KIND, tmp_path / "store", root=source, chunk_points=256, **settings)


def near(mean: float, spread: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.from_numpy(np.random.default_rng(0).normal(mean, spread, 1000))
    return values.to(dtype)


@pytest.mark.parametrize(
    ("pressure", "dtype", "way_out"),
    [
        (near(300, 0.1), "float16", "float32"),
        (near(0, 5e-9), "float16", "float32"),
        (near(300, 0.1).bfloat16() + near(0, 0.001).bfloat16(), "float16", None),
        (near(101325, 0.01, torch.float64), "float32", "float64"),
        (torch.cat([near(5, 1)[:900], near(0, 1e-9)[:100]]), "float16", "float32"),
    ],
    ids=["300 +- 0.1", "below 2e-8", "bfloat16 fits", "float64", "a tenth becomes 0"],
)
def test_what_a_dtype_would_change_is_refused(
    tmp_path: Path, pressure: torch.Tensor, dtype: str, way_out: str | None
) -> None:
    report = converted(tmp_path, pressure, field_dtypes={"surface_pressure": dtype})
    refused = {result.sample_id: result.reason for result in report.having("quarantined")}
    if way_out is None:
        assert not refused
        return
    assert list(refused) == ["run_1"]
    assert f"surface_pressure: {dtype} would change its values" in refused["run_1"]
    flags = f"use --field-dtype surface_pressure={way_out} --reconvert, or --values-dtype {way_out} for all fields; "
    assert flags in refused["run_1"]
    assert f"field_dtypes={{'surface_pressure': '{way_out}'}}, reconvert=True in Python" in refused["run_1"]
    again = converted(tmp_path, pressure, field_dtypes={"surface_pressure": way_out}, reconvert=True)
    assert sorted(again.manifest.samples) == ["run_1", "run_2"]


@pytest.mark.parametrize(("first", "is_named"), [(2**24, True), (0, False)])
def test_whole_numbers_that_are_rounded_are_named(tmp_path: Path, first: int, is_named: bool) -> None:
    report = converted(tmp_path, torch.arange(first, first + 1000), values_dtype="float32")
    assert report.ok
    assert any("whole numbers were rounded" in note and "run_1" in note for note in report.notes) == is_named


def test_whole_numbers_that_float64_does_not_hold_are_no_exact_values(tmp_path: Path) -> None:
    """NumPy takes a cast of int64 to float64 for safe; a thousand of these numbers would become four."""
    report = converted(tmp_path, torch.arange(1000) * 2**53, field_dtypes={"surface_pressure": "float64"})
    assert report.ok
    assert not any("whole numbers were rounded" in note for note in report.notes)
    report = converted(tmp_path, torch.arange(1000) * 2**52 + 1)
    assert report.ok
    assert any("whole numbers were rounded" in note and "surface_pressure as float64" in note for note in report.notes)
    (refused,) = converted(tmp_path, torch.arange(1000) + 2**61 - 500).having("quarantined")
    assert "surface_pressure: float64 would change its values: an RMS error of" in refused.reason
    assert "float64 holds those up to 2**53: write smaller ones" in refused.reason


@pytest.mark.parametrize("value", [300.1, 1e-9, 0.0])
def test_a_constant_field_is_stored(tmp_path: Path, value: float) -> None:
    report = converted(tmp_path, torch.full((70,), value))
    assert not report.having("quarantined")
    assert verify_store(str(tmp_path / "store"), source=str(tmp_path / "source")).ok
    told = "a constant component is too small for float16 and stored as 0 (samples: 1): run_1 (surface_pressure; use"
    assert any(told in note for note in report.notes) == (value == 1e-9)


def test_the_error_is_recorded_and_shown(tmp_path: Path) -> None:
    converted(tmp_path, near(20, 1))
    found = sample_info(tmp_path / "store", "run_1").fields
    assert found["surface_pressure"].rms_error == pytest.approx(0.0045, rel=0.05)  # 2**-6 / sqrt(12) of float16 at 20
    assert found["surface_pressure"].max_error == pytest.approx(2**-7, rel=0.1)
    assert found["surface_pressure"].zeroed == 0
    assert found["surface_position"].rms_error == 0
    assert verify_store(str(tmp_path / "store"), source=str(tmp_path / "source")).ok


def test_verify_finds_loss_in_stores_of_older_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "zarr_core.points.convert.stored_values.checked_rounding", lambda *arguments: RoundingError.none(1)
    )
    report = converted(tmp_path, near(300, 0.1))
    assert not report.having("quarantined")
    group = tmp_path / "store" / report.manifest.samples["run_1"].relpath / "zarr.json"
    document = json.loads(group.read_text())
    del document["attributes"]["zarr_core"]["rounding"]
    group.write_text(json.dumps(document))
    (problem,) = verify_store(str(tmp_path / "store"), source=str(tmp_path / "source"), sample_ids=["run_1"]).problems
    assert "float16 has changed its values: an RMS error of" in problem.message


def test_verify_compares_with_the_recorded_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(*arguments: Any) -> RoundingError:
        error = checked_rounding(*arguments)
        return replace(error, rms=error.rms / 2)

    monkeypatch.setattr(zarr_core.points.convert.stored_values, "checked_rounding", half)
    converted(tmp_path, near(20, 1))
    problems = verify_store(str(tmp_path / "store"), source=str(tmp_path / "source"), sample_ids=["run_1"]).problems
    assert "surface_pressure" in {problem.field for problem in problems}
    assert all("is larger than the recorded one" in problem.message for problem in problems)


def test_float64_is_normalized_before_it_is_rounded(tmp_path: Path) -> None:
    pressure = near(101325, 0.01, torch.float64)
    converted(tmp_path, pressure, field_dtypes={"surface_pressure": "float64"})
    store = str(tmp_path / "store")
    numbers = calculate_store_statistics(store, sample_ids=["run_1"])
    write_statistics(store, numbers, of="run_1", split="train", generation=1)
    config: dict[str, Any] = {"kind": KIND, "root": store, "fields": ["surface_pressure"], "split": "train"}
    config["normalizers"] = {"surface_pressure": "mean_std"}
    dataset = build_dataset(config)
    place = dataset.sample_ids.index("run_1")
    values = dataset[place]["surface_pressure"]
    assert values.dtype == torch.float32
    assert len(values.unique()) == len(pressure.unique())
    assert float(values.std()) == pytest.approx(1, rel=1e-3)
    stored = build_dataset(config | {"dtype": "stored"})
    assert torch.equal(stored.normalize(stored[place])["surface_pressure"], values)
