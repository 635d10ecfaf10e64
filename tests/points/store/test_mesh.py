"""Meshes that travel along with a sample."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.helpers.solver_files import cell_array, surface, volume, write_vtk
from tests.helpers.stores import object_place
from zarr_core import ZarrChunkReader, stage_store, verify_store
from zarr_core.convert import convert
from zarr_core.errors import CorruptChunkError, StoreError, UnknownFieldError
from zarr_core.sources import SourceDescription
from zarr_core.storage.zarr_stores import make_store

pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")


def kind(connectivity: bool) -> SourceDescription:
    meshes: dict[str, Any] = {
        "surface": {"file": "*.vtp", "fields": {"pressure": "p"}},
        "volume": {"file": "*.vtu", "at": "points", "length_scale": 0.5, "fields": {"temperature": "T"}},
    }
    for mesh in meshes.values():
        mesh["connectivity"] = connectivity
    return SourceDescription.model_validate({"name": "cars", "samples": "run_*", "meshes": meshes})


@pytest.fixture(scope="module", params=["directory", "packed"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options: Any = {"values_dtype": "float32", "chunk_points": 8, "layout": request.param}
    root = tmp_path_factory.mktemp("meshes")
    write_vtk(surface(), root / "source" / "run_1" / "a.vtp")
    write_vtk(volume(), root / "source" / "run_1" / "b.vtu")
    for name, connectivity in (("store", True), ("plain", False)):
        report = convert(kind(connectivity), root / name, root=root / "source", **options)
        assert report.ok, report.results
    return root


def test_a_mesh_is_read_whole_in_the_order_of_the_solver(place: Path) -> None:
    meshes = ZarrChunkReader(place / "store").read_mesh("run_1")
    sheet, block = meshes["surface"], meshes["volume"]
    assert (sheet.at, block.at) == ("cells", "points")
    np.testing.assert_array_equal(sheet.fields["surface_pressure"][:, 0], cell_array(surface(), "p"))
    corners = sheet.points[sheet.connectivity].reshape(-1, 4, 3)
    np.testing.assert_allclose(corners.mean(axis=1), sheet.fields["surface_position"], atol=1e-6)
    np.testing.assert_array_equal(block.points, block.fields["volume_position"])
    assert block.points.max() == 1.5
    assert set(block.types.tolist()) <= {11, 12}  # voxel, hexahedron
    np.testing.assert_array_equal(np.diff(block.offsets), 8)


def test_fields_do_not_see_the_meshes(place: Path) -> None:
    store, plain = ZarrChunkReader(place / "store"), ZarrChunkReader(place / "plain")
    assert store.fields == plain.fields
    for name, values in plain.read_sample("run_1", {}).items():
        np.testing.assert_array_equal(store.read_sample("run_1", {})[name], values)
    relpath = store.manifest.samples["run_1"].relpath
    group = zarr.open_group(make_store(f"{place}/store/{relpath}"), mode="r")
    assert sorted(group.group_keys()) == ["surface", "volume"]
    with pytest.raises(UnknownFieldError, match="has no mesh: its description has no `connectivity: true`"):
        plain.read_mesh("run_1")


def test_a_staged_copy_has_the_meshes_unless_it_has_part_of_the_fields(place: Path, tmp_path: Path) -> None:
    stage_store(str(place / "store"), str(tmp_path / "all"))
    np.testing.assert_array_equal(
        ZarrChunkReader(tmp_path / "all").read_mesh("run_1")["volume"].connectivity,
        ZarrChunkReader(place / "store").read_mesh("run_1")["volume"].connectivity,
    )
    assert verify_store(str(tmp_path / "all")).ok
    stage_store(str(place / "store"), str(tmp_path / "part"), fields=["volume_position"])
    assert verify_store(str(tmp_path / "part")).ok
    with pytest.raises(UnknownFieldError, match="or this is a copy of some of the fields"):
        ZarrChunkReader(tmp_path / "part").read_mesh("run_1")


def test_damage_is_found_and_repaired(place: Path, tmp_path: Path) -> None:
    store, source = str(tmp_path / "store"), place / "source"
    assert verify_store(str(place / "store"), source=str(source)).ok
    convert(kind(True), store, root=source, values_dtype="float32")
    chunk = next(Path(store).rglob("_mesh/surface_connectivity/c/0/0"))
    data = bytearray(chunk.read_bytes())
    data[5] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(CorruptChunkError, match="_mesh/surface_connectivity"):
        ZarrChunkReader(store).read_mesh("run_1")
    assert "its mesh cannot be read" in str(verify_store(store).problems)
    convert(kind(True), store, root=source, force=True)
    assert verify_store(store).ok
    leftover = chunk.with_name(f".{chunk.name}.{'0' * 32}.tmp")  # of a killed writer
    leftover.write_bytes(b"part")
    assert verify_store(store).ok
    stage_store(store, str(tmp_path / "copy"))
    assert not list((tmp_path / "copy").rglob("*.tmp"))
    chunk.unlink()
    assert "were recorded" in str(verify_store(store).problems)


@pytest.mark.parametrize("name", ["surface_connectivity/c/0/0", "surface_points/zarr.json"])
def test_a_damaged_mesh_is_not_staged(place: Path, tmp_path: Path, name: str) -> None:
    """Nor does it replace an intact copy."""
    store = tmp_path / "store"
    shutil.copytree(place / "store", store)
    assert stage_store(store, tmp_path / "copy").ok
    path, start, size = object_place(store, "run_1", f"_mesh/{name}")
    copy = object_place(tmp_path / "copy", "run_1", f"_mesh/{name}")[0]
    intact, damaged = copy.read_bytes(), bytearray(path.read_bytes())
    damaged[start + size - 5 : start + size] = bytes(5)
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=f"run_1: .*_mesh/{name}"):
        stage_store(store, tmp_path / "another")
    failed = stage_store(store, tmp_path / "copy", check=True).failed
    # A packed copy is checked by itself, and not read from the source if it is intact.
    assert [f"_mesh/{name}" in each.problem for each in failed] == ([] if path.suffix == ".zip" else [True])
    assert copy.read_bytes() == intact
    if "/c/" in name and path.suffix != ".zip":
        path.unlink()
        with pytest.raises(StoreError, match="run_1: its meshes have"):
            stage_store(store, tmp_path / "another")
