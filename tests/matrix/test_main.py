"""``zarr-core matrix create``, ``load`` and ``export``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.long_tables import BATCHES, FEATURES, pivoted, write_long
from zarr_core.__main__ import main
from zarr_core.matrix import WideMatrix


def document(capsys: pytest.CaptureFixture[str], line: str, status: int = 0) -> dict[str, object]:
    capsys.readouterr()
    assert main([*line.split(), "--json"]) == status
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_long(tmp_path / "long")
    pq.write_table(pa.table({"probe": FEATURES, "chr": ["1"] * len(FEATURES)}), tmp_path / "probes.parquet")
    return tmp_path


def test_from_a_table_to_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys, f"matrix create {place}/m --features {place}/probes.parquet --values beta=float64")
    assert (made["features"], made["values"]) == (len(FEATURES), {"beta": "float64"})
    assert "already holds a matrix" in refused(capsys, f"matrix create {place}/m --features {place}/probes.parquet")
    load = f"matrix load {place}/m --source {place}/long/*/*.parquet"
    done = document(capsys, f"{load} --samples s3")
    assert list(done["loaded"]) == ["b-1"]  # type: ignore[call-overload]
    done = document(capsys, load)
    assert (list(done["loaded"]), done["up_to_date"], done["failed"]) == (["001"], ["b-1"], {})  # type: ignore[call-overload]
    shown = document(capsys, f"matrix {place}/m")
    assert shown["sources"]["001"]["kind"] == "parquet"  # type: ignore[index]
    samples = [sample for batch in BATCHES.values() for sample in batch]
    expected = pivoted(place / "long", samples, FEATURES, "beta")
    np.testing.assert_array_equal(WideMatrix.open(place / "m").read(samples).astype("float32"), expected)
    assert main(f"matrix export npy {place}/m {place}/out --quiet".split()) == 0
    np.testing.assert_array_equal(np.load(place / "out/beta.npy"), WideMatrix.open(place / "m").read(samples_of(place)))


def samples_of(place: Path) -> list[str]:
    return (place / "out/samples.txt").read_text().split()


def refused(capsys: pytest.CaptureFixture[str], line: str, status: int = 1) -> str:
    capsys.readouterr()
    assert main(line.split()) == status
    return capsys.readouterr().err


def test_a_batch_that_cannot_be_loaded_does_not_stop_the_others(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    WideMatrix.create(place / "m", FEATURES)
    write_long(place / "long", {"b-1": ["s3"]})  # the rows of a sample a second time
    load = f"matrix load {place}/m --source {place}/long/*/*.parquet"
    done = document(capsys, load, status=1)
    assert list(done["loaded"]) == ["001"]  # type: ignore[call-overload]
    assert "more than one beta row" in done["failed"]["b-1"]  # type: ignore[index]
    assert "failed: b-1: " in refused(capsys, f"{load} --quiet")
    assert main([*load.split(), "--batches", "001", "--quiet"]) == 0


def test_the_source_of_samples_that_joined_a_batch(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    WideMatrix.create(place / "m", FEATURES)
    load = f"matrix load {place}/m --source {place}/long/*/*.parquet"
    document(capsys, load)
    before = WideMatrix.open(place / "m").batch_sources
    write_long(place / "more", {"b-1": ["s9"]})
    (place / "more/batch_id=b-1").rename(place / "long/batch_id=b-1/more")
    done = document(capsys, f"matrix load {place}/m --source {place}/long/**/*.parquet")
    after = WideMatrix.open(place / "m").batch_sources
    (added,) = after.keys() - before.keys()
    assert done["sources"] == {"b-1": after[added]}
    assert after[added] != before["b-1"]


def test_a_warehouse_described_in_a_file_and_other_columns(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_long(place / "other", {"c": ["s9"]}, cpg_id="probe", beta="value")
    WideMatrix.create(place / "m", FEATURES, {"beta": "float32"})
    columns = "feature=probe beta=value"
    done = document(capsys, f"matrix load {place}/m --source {place}/other/*/*.parquet --columns {columns}")
    assert list(done["loaded"]) == ["c"]  # type: ignore[call-overload]
    (place / "lab.yaml").write_text(f"kind: duckdb\nfiles: {place}/long/*/*.parquet\n")
    assert len(document(capsys, f"matrix load {place}/m --source {place}/lab.yaml")["loaded"]) == 2  # type: ignore[arg-type]
    for line, status, message in (
        (f"--source {place}/lab.yaml --columns feature=x", 1, "name the columns there"),
        (f"--source {place}/none.yaml", 1, "cannot be read"),
        (f"--source {place}/x --columns probe=x", 1, "no column probe to name"),
        (f"--source {place}/x --columns probe", 2, "expected NAME=VALUE"),
        (f"--source {place}/long/*/*.parquet --batches b-9", 1, "no rows of a batch 'b-9'"),
    ):
        assert message in refused(capsys, f"matrix load {place}/m {line} --quiet", status), line
