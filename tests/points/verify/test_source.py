"""Comparison with the source: what is equal within rounding, and what is absent, changed or another one."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND, SHARED, write_source
from tests.points.verify.damaged import check, messages, rewrite
from zarr_core.errors import SourceError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.verify.store import verify_store
from zarr_core.sources.description import SourceDescription


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("values_dtype", ["float16", "float32"])
def test_equal_within_the_rounding_of_the_stored_dtype(tmp_path: Path, dtype: torch.dtype, values_dtype: str) -> None:
    write_source(tmp_path / "source", ("run_1",), surface=3000, volume=5000, dtype=dtype)
    convert(KIND, tmp_path / "store", source_url=str(tmp_path / "source"), values_dtype=values_dtype)
    assert messages(check(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize("values_dtype", ["float16", "float32"])
@pytest.mark.parametrize("constant", [0.0, 0.1, -1e4 / 3])
def test_a_component_that_is_constant_is_sound(tmp_path: Path, constant: float, values_dtype: str) -> None:
    """A planar slice: moments of equal values are rounding noise, which depends on the order of sums."""
    source = write_source(tmp_path / "source", ("run_1",), surface=3000, volume=50_000)
    for path in (source / "run_1").glob("*.pt"):
        values = torch.load(path)
        (values if values.ndim == 1 else values[:, -1])[:] = constant
        torch.save(values, path)
    convert(KIND, tmp_path / "store", source_url=str(source), values_dtype=values_dtype, chunk_points=1000)
    assert messages(check(tmp_path)) == []


def test_a_value_rounded_the_wrong_way_is_found(tmp_path: Path) -> None:
    write_source(tmp_path / "source", ("run_1",))
    convert(KIND, tmp_path / "store", source_url=str(tmp_path / "source"))

    def nudge(rows: np.ndarray) -> np.ndarray:
        rows[5] = np.nextafter(rows[5], np.float16(np.inf))
        return rows

    rewrite(tmp_path, "run_1", "surface/pressure", nudge)
    problems = messages(check(tmp_path))
    assert any("surface_pressure: 1 of 70 rows differ from the source: stored row 5 is" in line for line in problems)


def test_wrong_source(place: Path, tmp_path: Path) -> None:
    write_source(tmp_path / "other", seed=1)
    report = verify_store(str(place / "store"), source=str(tmp_path / "other"))
    assert len(report.problems) == 21
    assert all("rows differ from the source" in problem.message for problem in report.problems)
    # The same sizes, so that only the contents tell; and a tree without these samples says that.
    report = verify_store(str(place / "store"), source=str(tmp_path))
    assert messages(report)[0] == f"run_1: cannot be compared: its folder is no longer in {tmp_path}"
    assert len(report.problems) == 3


def test_source_that_vanished_or_changed_since(place: Path) -> None:
    source = place / "source"
    shutil.rmtree(source / "run_1")
    (source / "run_2" / "surface_pressure.pt").unlink()
    torch.save(torch.zeros(5), source / "run_3" / "surface_pressure.pt")
    (source / "run_3" / "volume_cell_velocity.pt").write_bytes(b"no tensor")
    problems = messages(check(place))
    assert problems[0].startswith("run_1: cannot be compared: its folder is no longer in")
    assert problems[1] == "run_2, surface_pressure: cannot be compared: surface_pressure.pt is no longer in the source"
    assert problems[2].startswith("run_3, surface_pressure: has shape (84, 1), its source (5, 1)")
    assert "surface_pressure.pt has changed since" in problems[2]
    assert problems[3].startswith("run_3, volume_velocity: cannot be compared: volume_cell_velocity.pt: ")
    assert len(problems) == 4


def test_a_copied_source_is_as_good(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "source", tmp_path / "elsewhere", copy_function=shutil.copy)  # other modification times
    assert verify_store(str(place / "store"), source=str(tmp_path / "elsewhere")).ok


def test_root_with_or_without_the_subfolder(tmp_path: Path) -> None:
    write_source(tmp_path / "source" / "preprocessed", ("param1/a", "param0/b"), kind="shapenet_car")
    convert("shapenet_car", tmp_path / "store", source_url=str(tmp_path / "source"))
    for root in (tmp_path / "source", tmp_path / "source" / "preprocessed"):
        report = verify_store(str(tmp_path / "store"), source=str(root))
        assert (messages(report), report.samples) == ([], 2)


def test_samples_that_are_files_at_the_root(tmp_path: Path) -> None:
    source, store = tmp_path / "source", str(tmp_path / "store")
    source.mkdir()
    for sample_id in ("geo_0", "geo_1"):
        np.savez(source / f"{sample_id}.npz", x=np.random.default_rng(0).random((9, 3), np.float32))
    (source / "geo_0").mkdir()
    (source / "geo_0" / "log.txt").touch()  # not the folder of the sample
    files = {"volume_position": {"file": "{id}.npz", "array": "x"}}
    convert(SourceDescription.model_validate({"name": "own", "samples": "*", "files": files}), store, root=source)
    report = verify_store(store, source=str(source))
    assert (messages(report), report.samples) == ([], 2)
    (source / "geo_1.npz").unlink()
    absent = "geo_1, volume_position: cannot be compared: geo_1.npz is no longer in the source"
    assert messages(verify_store(store, source=str(source))) == [absent]


def test_a_changed_file_of_equal_size_is_reported_as_newer(place: Path) -> None:
    path = place / "source" / "run_1" / "surface_pressure.pt"
    values = torch.load(path, weights_only=True)
    values[7] += 1
    torch.save(values, path)
    (problem,) = messages(check(place))
    assert "1 of 70 rows differ" in problem
    assert problem.endswith("surface_pressure.pt was written again since the conversion")


def test_stores_of_another_program(tmp_path: Path) -> None:
    samples = make_samples(2)
    samples["run_1"]["surface_pressure"][:] = 0  # zarr-python leaves such chunks out
    store = write_published_store(tmp_path / "store", samples)
    assert messages(verify_store(str(store))) == []
    problems = messages(verify_store(str(store), source=str(tmp_path), dataset_kind=KIND))
    where = f"are not in {tmp_path}"
    assert problems == [f"{i}: cannot be compared: the files that it was made from {where}" for i in ("run_1", "run_2")]


def test_a_kind_without_a_source_is_refused(place: Path) -> None:
    with pytest.raises(SourceError, match="give --source"):
        verify_store(str(place / "store"), dataset_kind=KIND)


def test_in_another_filesystem(tmp_path: Path) -> None:
    write_source(tmp_path / "source", ("run_1",))
    convert(KIND, "memory://verify-store", source_url=str(tmp_path / "source"), chunk_points=16)
    assert verify_store("memory://verify-store", source=str(tmp_path / "source")).ok


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not beside this clone")
def test_real_samples(tmp_path: Path) -> None:
    source = SHARED / "data" / "ahmed_rans"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        convert(KIND, tmp_path, source_url=str(source), sample_ids=["run_1", "run_10"], chunk_points=4096)
    report = verify_store(str(tmp_path), source=str(source))
    assert messages(report) == []
    assert report.samples == 2
