"""CGNS files: zones and boundary patches become fields; damaged and hostile files are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.solver_files import write_cgns
from zarr_core.errors import SampleError
from zarr_core.sources import SampleTree, SourceDescription
from zarr_core.sources.arrays import ArrayChoice

pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")
h5py = pytest.importorskip("h5py", reason="the extra hdf5 is not installed")

from zarr_core.sources.formats.cgns import read_cgns  # noqa: E402 (it imports h5py)

KIND = SourceDescription.model_validate(
    {
        "name": "cases",
        "samples": "run_*",
        "meshes": {
            "surface": {"file": "*.cgns", "patches": ["floor"], "compute": ["normals", "area"]},
            "volume": {"file": "*.cgns", "fields": {"pressure": "p", "velocity": "U"}},
        },
    }
)


def load(root: Path, *fields: str) -> dict[str, np.ndarray]:
    tree = SampleTree(KIND, root)
    sample = tree.discover()["run_1"]
    return {canonical: tree.load(sample, canonical).numpy() for canonical in fields or KIND.fields}


def test_zones_and_patches_are_fields(tmp_path: Path) -> None:
    written = write_cgns(tmp_path / "run_1" / "a.cgns")
    values = load(tmp_path)
    np.testing.assert_array_equal(values["volume_pressure"], written["p"])
    np.testing.assert_array_equal(values["volume_velocity"], written["U"])
    np.testing.assert_array_equal(values["volume_position"][:2], [[0.5, 0.5, 0.5], [1.5, 0.5, 0.5]])
    np.testing.assert_array_equal(values["surface_position"][:, :2], values["volume_position"][:4, :2])
    np.testing.assert_array_equal(values["surface_position"][:, 2], 0)
    np.testing.assert_array_equal(values["surface_normals"], [[0, 0, -1]] * 4)
    np.testing.assert_allclose(values["surface_area"], 1)


def test_structured_and_several_zones(tmp_path: Path) -> None:
    written = write_cgns(tmp_path / "run_1" / "a.cgns", structured=2)
    values = load(tmp_path)
    np.testing.assert_array_equal(values["volume_pressure"], written["p"])
    np.testing.assert_array_equal(values["volume_velocity"], written["U"])
    corners = [[10.5, 10.5, 10.5], [11.5, 10.5, 10.5], [20.5, 20.5, 20.5], [21.5, 20.5, 20.5]]
    np.testing.assert_array_equal(values["volume_position"][8:], corners)
    assert len(values["surface_position"]) == 4
    contents = read_cgns(tmp_path / "run_1" / "a.cgns", []).contents()
    assert (contents.cells, contents.patches) == (12, ("Zone", "Block0", "Block1", "floor"))
    mesh = read_cgns(tmp_path / "run_1" / "a.cgns", []).mesh(ArrayChoice(at="cells"))
    assert (len(mesh.points), mesh.offsets.tolist()) == (27 + 24, list(range(0, 97, 8)))
    assert mesh.connectivity[64:].min() == 27


def test_points_of_a_patch_are_those_of_its_faces(tmp_path: Path) -> None:
    path = tmp_path / "a.cgns"
    written = write_cgns(path)
    temperature = ArrayChoice(arrays=("T",), at="points")
    on_patch = temperature.model_copy(update={"patches": ("floor",)})
    position = ArrayChoice(compute="position", at="points", patches=("floor",))
    file = read_cgns(path, [temperature, on_patch, position])
    np.testing.assert_array_equal(file.values(temperature), written["T"])
    numbers = file.values(position) @ [1, 3, 9]
    assert sorted(numbers) == list(range(9))
    np.testing.assert_array_equal(file.values(on_patch), written["T"][numbers.astype(int)])


def test_the_latest_time_is_read(tmp_path: Path) -> None:
    written = write_cgns(tmp_path / "run_1" / "a.cgns", times=2)
    np.testing.assert_array_equal(load(tmp_path, "volume_pressure")["volume_pressure"], written["p"])


def test_an_array_of_two_solutions_without_times_is_refused(tmp_path: Path) -> None:
    """VTK reads the first solution, be it the initial condition or the earliest time."""
    path = tmp_path / "run_1" / "a.cgns"
    written = write_cgns(path)
    with h5py.File(path, "r+") as file:
        file.copy("Base/Zone/Cells0", "Base/Zone/Cells1")
        file.move("Base/Zone/Cells1/p", "Base/Zone/Cells1/q")
        for axis in "XYZ":
            del file[f"Base/Zone/Cells1/U{axis}"]
    np.testing.assert_array_equal(load(tmp_path, "volume_pressure")["volume_pressure"], written["p"])
    with h5py.File(path, "r+") as file:
        file.move("Base/Zone/Cells1/q", "Base/Zone/Cells1/p")
    with pytest.raises(SampleError, match="solutions 'Cells0' and 'Cells1' of /Base/Zone both have 'p', and no Flow"):
        load(tmp_path, "volume_pressure")


def test_what_a_file_contains(tmp_path: Path) -> None:
    write_cgns(tmp_path / "a.cgns")
    contents = read_cgns(tmp_path / "a.cgns", []).contents()
    assert {(array.name, array.at, array.components) for array in contents.arrays} == {
        ("p", "cells", 1),
        ("U", "cells", 3),
        ("T", "points", 1),
    }
    assert (contents.points, contents.cells, contents.patches, contents.dimension) == (27, 8, ("Zone", "floor"), 3)


def test_a_patch_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_cgns(tmp_path / "a.cgns")
    choice = ArrayChoice(compute="position", at="cells", patches=("roof",))
    with pytest.raises(ValueError, match="has no patch 'roof'; it has Zone, floor"):
        read_cgns(tmp_path / "a.cgns", [choice]).values(choice)


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.99])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "run_1" / "a.cgns"
    write_cgns(path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(SampleError, match=r"a\.cgns: truncated"):
        load(tmp_path, "volume_pressure")


def test_the_older_format_is_named_with_its_converter(tmp_path: Path) -> None:
    path = tmp_path / "run_1" / "a.cgns"
    path.parent.mkdir()
    path.write_bytes(b"@(#)ADF Database Version B02012>" + bytes(1000))
    with pytest.raises(SampleError, match=r"a\.cgns: is a CGNS file in the older ADF format; .*adf2hdf"):
        load(tmp_path, "volume_pressure")


def link(file: Any) -> None:
    file["Base/Zone/Linked"] = h5py.ExternalLink("/etc/other.cgns", "/Base")


def plug_in(file: Any) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((10,))
    properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))  # zstd, which is no part of HDF5
    space = h5py.h5s.create_simple((10,))
    h5py.h5d.create(file["Base"].id, b"packed", h5py.h5t.IEEE_F64LE, space, dcpl=properties)


def external(file: Any) -> None:
    file.create_dataset("Base/outside", (10,), "<f8", external=[("/etc/hostname", 0, 80)])


def many_points(file: Any) -> None:
    file["Base/Zone/ data"][0] = 2**31 - 1


def many_cells(file: Any) -> None:
    file["Base/Zone/Cells/ElementRange/ data"][1] = 2**31 - 1


def point_outside(file: Any) -> None:
    file["Base/Zone/Cells/ElementConnectivity/ data"][0] = 10**8


def point_of_a_patch_outside(file: Any) -> None:
    file["Base/Zone/Faces/ElementConnectivity/ data"][0] = 10**8


def no_size(file: Any) -> None:
    del file["Base/Zone/ data"]
    file["Base/Zone"].create_dataset(" data", data=["many"])


def cylindrical(file: Any) -> None:
    coordinates = file["Base/Zone/GridCoordinates"]
    for old, new in (("X", "R"), ("Y", "Theta")):
        coordinates.move(f"Coordinate{old}", f"Coordinate{new}")
        coordinates[f"Coordinate{new}"].attrs["name"] = np.bytes_(f"Coordinate{new}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (link, "rejected: /Base/Zone/Linked is a link to another file"),
        (plug_in, "rejected: /Base/packed needs the HDF5 filter 32015 of a plug-in"),
        (external, "rejected: /Base/outside takes its values from another file"),
        (many_points, "rejected: claims 2,147,483,647 values"),
        (many_cells, "rejected: claims 2,147,483,647 values"),
        (point_outside, "truncated or damaged: its cells have points 1 to 99999999 of 27"),
        (point_of_a_patch_outside, "truncated or damaged: its cells have points 1 to 99999999 of 27"),
        (cylindrical, "/Base/Zone/GridCoordinates has no CoordinateX, but CoordinateR, CoordinateTheta, CoordinateZ;"),
        (no_size, "damaged: /Base/Zone/ data is not a size"),
    ],
)
def test_a_hostile_file_is_refused(tmp_path: Path, change: Any, reason: str) -> None:
    path = tmp_path / "run_1" / "a.cgns"
    write_cgns(path)
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(SampleError, match=f"a.cgns: {reason}"):
        load(tmp_path, "volume_pressure")
