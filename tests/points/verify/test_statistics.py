from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.small_source import KIND, write_source
from zarr_core import stage_store
from zarr_core.points.convert.conversion import convert
from zarr_core.points.statistics import calculate_store_statistics, record_training_statistics, write_statistics
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    assert convert(KIND, root, root=write_source(tmp_path / "source"), chunk_points=32).ok
    assert record_training_statistics(str(root), load_manifest(root))
    return root


def found(store: Path, deep: bool = False) -> list[str]:
    return [str(problem) for problem in verify_store(str(store), deep=deep).problems]


@pytest.mark.parametrize("name", ["statistics/00000001/{split}.yaml", "statistics/00000001/{split}.json", "stats.yaml"])
def test_numbers_that_the_moments_do_not_give_are_found(store: Path, name: str) -> None:
    (recorded,) = (store / "statistics/00000001").glob("*.yaml")
    file = store / name.format(split=recorded.stem)
    line = next(line for line in file.read_text().splitlines() if "surface_pressure_mean" in line)
    assert found(store) == []
    file.write_text(file.read_text().replace(line, line.replace(": ", ": 7")))
    (problem,) = found(store)
    assert problem.startswith(f"{file.relative_to(store)}: surface_pressure_mean is 7")
    assert "but the moments of the samples give" in problem
    assert f"write it again with `zarr-core statistics {store} " in problem
    assert found(store, deep=True) == [problem]


def test_statistics_of_any_split_and_generation_are_compared(store: Path) -> None:
    of_all = calculate_store_statistics(str(store), recompute=True)
    write_statistics(str(store), of_all, of="all samples", generation=1)
    assert found(store, deep=True) == []
    damaged = store / "statistics/00000001/all.yaml"
    damaged.write_text("volume_pressure_mean: 1.0\n")
    assert any("has no surface_pressure_mean" in problem for problem in found(store, deep=True))
    damaged.write_text("{")
    (problem,) = found(store)
    assert "statistics/00000001/all.yaml cannot be parsed" in problem


def test_earlier_versions_recorded_no_statistics_of_parameters(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1",))
    (source / "run_1" / "params.json").write_text('{"speed": 2.5}')
    store = tmp_path / "store"
    assert convert(KIND, store, root=source, chunk_points=32).ok
    (file,) = record_training_statistics(str(store), load_manifest(store))[:1]
    path = store / "statistics/00000001" / Path(file).name
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("speed_")]
    assert len(kept) < len(lines)
    path.write_text("".join(kept))
    assert found(store) == []
    path.write_text("".join([*kept, "speed_mean: 2.5\n"]))
    assert any("has no speed_std" in problem for problem in found(store))


def test_a_copy_has_the_statistics_of_its_source(store: Path, tmp_path: Path) -> None:
    stage_store(str(store), str(tmp_path / "copy"), sample_ids=["run_1"])
    assert found(tmp_path / "copy") == []
    shutil.rmtree(store / "statistics")
    assert found(store) == []
