"""Verification compares the parameters of samples with those of the source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.described_source import Source
from tests.helpers.small_source import KIND, write_source
from zarr_core.points.convert.conversion import convert
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import VerificationReport, verify_store
from zarr_core.verify import format_report


def messages(report: VerificationReport) -> list[str]:
    return [str(problem) for problem in report.problems]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["directory", "packed"])
@pytest.mark.parametrize("workers", [1, 2])
def test_parameters_are_compared_with_those_of_the_source(tmp_path: Path, layout: Any, workers: int) -> None:
    source, store = write_source(tmp_path / "source"), tmp_path / "store"
    for number, sample_id in enumerate(("run_1", "run_2", "run_3")):
        parameters = {"drag": 0.1 + number / 3, "inflow": [30, 0.5, 0], "name": "car"}
        (source / sample_id / "params.json").write_text(json.dumps(parameters))
    convert(KIND, store, source_url=str(source), chunk_points=16, layout=layout)
    report = verify_store(str(store), source=str(source), workers=workers)
    assert report.ok
    assert format_report(report).endswith(", row by row; parameters of 3 samples")
    (source / "run_1" / "params.json").write_text(json.dumps({"drag": 0.25, "inflow": [30, 0.5, 0], "lift": 1}))
    (source / "run_2" / "params.json").write_text("no JSON")
    report = verify_store(str(store), source=str(source), workers=workers)
    assert messages(report)[:3] == [
        "run_1: parameter 'drag' is 0.1, that of its source 0.25",
        "run_1: parameter 'lift' is missing; its source has 1",
        "run_1: parameter 'name' is 'car'; its source has none",
    ]
    (last,) = messages(report)[3:]
    assert last.startswith("run_2: its parameters cannot be compared: params.json")
    assert report.damaged == ["run_1"]


def test_a_changed_digit_of_a_stored_parameter_is_found(tmp_path: Path) -> None:
    source, store = write_source(tmp_path / "source", ("run_1",)), tmp_path / "store"
    (source / "run_1" / "params.json").write_text('{"drag": 0.3125}')
    convert(KIND, store, source_url=str(source), chunk_points=16)
    path = store / load_manifest(str(store)).samples["run_1"].relpath / "zarr.json"
    path.write_text(path.read_text().replace("0.3125", "0.3126"))
    assert messages(verify_store(str(store), source=str(source))) == [
        "run_1: parameter 'drag' is 0.3126, that of its source 0.3125"
    ]


def test_parameters_of_a_kind_of_ones_own_need_it(tmp_path: Path) -> None:
    place = Source(tmp_path)
    place.write("case_1", "case_2")
    (place.root / "case_1" / "params.json").write_text('{"drag": 0.5}')
    place.convert()
    (place.root / "case_1" / "params.json").write_text('{"drag": 0.75}')
    without = verify_store(str(place.store), source=str(place.root))
    assert without.ok
    assert "not the parameters of 1 samples (give --dataset-kind of the source)" in format_report(without)
    report = verify_store(str(place.store), source=str(place.root), dataset_kind=str(place.kind))
    assert messages(report) == ["case_1: parameter 'drag' is 0.5, that of its source 0.75"]
    shutil.rmtree(place.root / "case_1")
    gone = verify_store(str(place.store), source=str(place.root), dataset_kind=str(place.kind), sample_ids=["case_1"])
    assert messages(gone) == [f"case_1: cannot be compared: its folder is no longer in {place.root}"]
