"""Fields with error bounds: converted, read by every reader, verified, refused where the bound cannot be kept."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from tests.helpers.small_source import KIND, load_field, write_source
from zarr_core import write_sample
from zarr_core.convert import ConversionReport, convert
from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.read.engines import ENGINES
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.sources import resolve_kind

BOUNDS: dict[str, Any] = {"volume_velocity": "1e-3std", "surface_pressure": 0.25, "volume_position": "1e-4"}
SETTINGS: dict[str, Any] = {"chunk_points": 64, "max_errors": BOUNDS}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source")


def bound_of(source: Path, name: str) -> float:
    given = BOUNDS[name]
    if not str(given).endswith("std"):
        return float(given)
    return float(given.removesuffix("std")) * float(load_field(source, "run_1", name).astype("float64").std())


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["directory", "packed"])
@pytest.mark.parametrize("codec", ["none", "bitshuffle-zstd", "zstd"])
def test_every_engine_reads_the_same_values_within_the_bound(
    source: Path, tmp_path: Path, layout: Any, codec: str
) -> None:
    store = tmp_path / "store"
    assert convert(KIND, store, root=source, layout=layout, codec=codec, **SETTINGS).ok
    assert verify_store(str(store), source=str(source)).ok
    engines = [engine for engine in ENGINES if engine != "tensorstore" or _has("tensorstore")]
    read = [ZarrChunkReader(store, engine=engine).read_sample("run_1") for engine in engines]
    for name, values in read[0].items():
        for other in read[1:]:
            np.testing.assert_array_equal(other[name], values)
        if name not in BOUNDS:
            continue
        expected = load_field(source, "run_1", name)
        domain = name.partition("_")[0]
        order = shuffle_permutation(0, "run_1", domain, len(expected))
        assert values.dtype == "float32"
        error = np.abs(values.astype("float64") - expected[order]).max()
        assert 0 < error <= bound_of(source, name)
    drawn = ZarrChunkReader(store).read_sample("run_1", {"volume": 50, "surface": 20}, epoch=3)
    reference = ZarrChunkReader(store, engine="zarr").read_sample("run_1", {"volume": 50, "surface": 20}, epoch=3)
    for name, values in drawn.items():
        np.testing.assert_array_equal(values, reference[name])


def test_zarr_python_and_xarray_decode_by_themselves(source: Path, tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    store = tmp_path / "store"
    convert(KIND, store, root=source, **SETTINGS)
    group = store / load_manifest(store).samples["run_1"].relpath
    ours = ZarrChunkReader(store).read_sample("run_1")["volume_velocity"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Numcodecs codecs")
        array = zarr.open_array(group / "volume/velocity", mode="r")
        by_xarray = xarray.open_zarr(group, group="volume")["velocity"].values
    np.testing.assert_array_equal(array[:], ours)
    np.testing.assert_array_equal(by_xarray, ours)
    bound = bound_of(source, "volume_velocity")
    assert 0.9999 * bound < array.attrs["max_error"] <= bound


def test_one_worker_or_two_write_the_same_bytes(source: Path, tmp_path: Path) -> None:
    written = []
    for workers in (1, 2):
        store = tmp_path / f"store{workers}"
        convert(KIND, store, root=source, workers=workers, layout="packed", **SETTINGS)
        files = sorted((store / "samples").rglob("*.zip")) or sorted((store / "samples").rglob("*"))
        written.append([(str(file.relative_to(store)), file.read_bytes()) for file in files if file.is_file()])
    assert written[0] == written[1]
    assert written[0]


def replace_pressure(source: Path, values: torch.Tensor) -> None:
    torch.save(values, source / "run_1" / resolve_kind(KIND).fields["surface_pressure"].filename)


def refusals(report: ConversionReport) -> dict[str, str]:
    return {result.sample_id: result.reason for result in report.having("quarantined")}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused_as_ever(source: Path, tmp_path: Path, bad: float) -> None:
    values = torch.from_numpy(load_field(source, "run_1", "surface_pressure")[:, 0].copy())
    values[3] = bad
    replace_pressure(source, values)
    for bound in (0.1, "1e-3std"):
        report = convert(KIND, tmp_path / f"store{bound}", root=source, max_errors={"surface_pressure": bound})
        assert "1 of 70 values are NaN or infinite" in refusals(report)["run_1"]


def test_a_constant_field_is_exact(source: Path, tmp_path: Path) -> None:
    replace_pressure(source, torch.full((70,), 101325.1))
    assert convert(KIND, tmp_path / "store", root=source, max_errors={"surface_pressure": "1e-3std"}).ok
    assert (ZarrChunkReader(tmp_path / "store").read_sample("run_1")["surface_pressure"] == np.float32(101325.1)).all()
    assert verify_store(str(tmp_path / "store"), source=str(source)).ok


def test_a_bound_below_what_float32_resolves_is_refused_for_float64_sources(source: Path, tmp_path: Path) -> None:
    replace_pressure(source, 101325 + torch.linspace(0, 0.1, 70, dtype=torch.float64))
    report = convert(KIND, tmp_path / "store", root=source, max_errors={"surface_pressure": 1e-4})
    reason = refusals(report)["run_1"]
    assert "surface_pressure: its error bound is 0.0001, float32 changes a value by 0.003" in reason
    assert "use a larger --max-error, or none and --field-dtype surface_pressure=float64" in reason


def test_verify_finds_a_value_that_exceeds_the_recorded_bound(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    convert(KIND, store, root=source, **SETTINGS)
    for entry in load_manifest(store).samples.values():
        for file in (store / entry.relpath / "zarr.json", store / entry.relpath / "surface/pressure/zarr.json"):
            document = json.loads(file.read_bytes())
            metadata = document.get("consolidated_metadata", {}).get("metadata", {}).get("surface/pressure", document)
            metadata["attributes"]["max_error"] = 1e-6
            file.write_text(json.dumps(document))
    problems = [str(problem) for problem in verify_store(str(store), source=str(source)).problems]
    assert any("its largest error" in problem and "exceeds its error bound 1e-06" in problem for problem in problems)


def test_a_bound_is_a_setting_of_the_store(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    convert(KIND, store, root=source, **SETTINGS)
    manifest = load_manifest(store)
    assert manifest.conversion is not None
    recorded = manifest.conversion.settings[manifest.conversion.current]["max_errors"]
    assert recorded == {"surface_pressure": "0.25", "volume_position": "0.0001", "volume_velocity": "0.001std"}
    same = convert(KIND, store, root=source)
    assert len(same.having("up to date")) == 3
    with pytest.raises(StoreError, match=r"max_errors is .* in the store, not .*--reconvert"):
        convert(KIND, store, root=source, max_errors={"volume_velocity": "none"})
    convert(KIND, store, root=source, max_errors={"volume_velocity": "none"}, reconvert=True)
    assert load_manifest(store).fields["volume_velocity"].dtype == "float16"
    assert load_manifest(store).fields["volume_position"].dtype == "float32"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_errors": {"volume_velocty": 1}}, "max_errors: no field 'volume_velocty'"),
        ({"max_errors": {"volume_velocity": "small"}}, "max_errors, volume_velocity: error bound 'small' is neither"),
        ({"max_errors": "1e-3std"}, "max_errors must be a mapping"),
        (
            {"max_errors": {"volume_velocity": 1}, "field_dtypes": {"volume_velocity": "float32"}},
            "volume_velocity has an error bound",
        ),
    ],
)
def test_invalid_bounds_are_refused(source: Path, tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ZarrCoreError, match=message):
        convert(KIND, tmp_path / "store", root=source, **given)


def _has(package: str) -> bool:
    try:
        __import__(package)
    except ImportError:
        return False
    return True


def test_a_bound_that_is_coarse_for_a_component_is_named(tmp_path: Path) -> None:
    """A velocity with a mean flow: the standard deviation of all components together is mostly the flow."""
    source = write_source(tmp_path / "source", ("run_1", "run_2"))
    file = source / "run_2" / resolve_kind(KIND).fields["volume_velocity"].filename
    velocity = torch.load(file, weights_only=True)
    velocity[:, 0] += 3000
    torch.save(velocity, file)
    report = convert(KIND, tmp_path / "store", root=source, chunk_points=64, max_errors={"volume_velocity": "1e-3std"})
    assert report.ok
    (note,) = [note for note in report.notes if "error bound" in note]
    assert "run_2 (volume_velocity: an RMS error of" in note
    assert "run_1" not in note
    recorded = ZarrChunkReader(tmp_path / "store").read_attributes("run_2")["rounding"]["volume_velocity"]["rms"]
    assert max(recorded) > 0.01


def test_a_component_that_a_bound_makes_constant_is_named(tmp_path: Path) -> None:
    """All its values become equal, so that the stored ones have no standard deviation. Constant ones lose nothing."""
    source = write_source(tmp_path / "source", ("run_1", "run_2"))
    for sample_id, spread in (("run_1", 0.0), ("run_2", 1e-4)):
        file = source / sample_id / resolve_kind(KIND).fields["volume_velocity"].filename
        velocity = torch.load(file, weights_only=True)
        velocity[:, 2] = 0.013 + spread * torch.linspace(-1, 1, len(velocity))
        torch.save(velocity, file)
    report = convert(KIND, tmp_path / "store", root=source, chunk_points=64, max_errors={"volume_velocity": "0.1std"})
    assert report.ok
    (note,) = [note for note in report.notes if "error bound" in note]
    assert "run_2" in note
    assert "(component 2)" in note
    reader = ZarrChunkReader(tmp_path / "store")
    assert np.ptp(reader.read_sample("run_2")["volume_velocity"][:, 2]) == 0
    recorded = reader.read_attributes("run_2")["rounding"]["volume_velocity"]
    expected = load_field(source, "run_2", "volume_velocity")[:, 2].astype("float64")
    assert recorded["rms"][2] == pytest.approx(np.sqrt(np.mean(expected**2)) / expected.std(ddof=1), rel=1e-3)
    assert recorded["zeroed"][2] == 1
    assert reader.read_attributes("run_1")["rounding"]["volume_velocity"]["rms"][2] == 0


@pytest.mark.parametrize("magnitude", [1e-30, 1e24, 1e30])
def test_the_error_of_very_small_and_very_large_values_is_recorded(tmp_path: Path, magnitude: float) -> None:
    """The squares of their errors are no float32 numbers."""
    values = (magnitude * np.random.default_rng(0).normal(size=500)).astype("float32")
    arrays = {"surface_position": np.zeros((500, 3)), "surface_heat": values}
    write_sample(tmp_path / "store", "a", arrays, max_errors={"surface_heat": "1e-2std"})
    recorded = ZarrChunkReader(tmp_path / "store").read_attributes("a")["rounding"]["surface_heat"]["rms"][0]
    assert recorded == pytest.approx(0.01 / np.sqrt(3), rel=0.1)
