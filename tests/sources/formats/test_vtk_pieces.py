"""Files of VTK that name their pieces: read piece by piece, from the sample's folder only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.solver_files import cell_array, surface, volume, write_vtk
from zarr_core.convert import convert
from zarr_core.errors import SampleError
from zarr_core.sources import SampleTree, SourceDescription
from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats import peek
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.formats.vtk import VtkMesh
from zarr_core.sources.left_out import collected_notes
from zarr_core.sources.sample import SourceSample
from zarr_core.storage import Storage
from zarr_core.verify import verify_store

pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")

CENTRES = ArrayChoice(compute="position", at="cells")
#: Faces of a hexahedron by its points.
FACES = [[3, 2, 1, 0], [4, 5, 6, 7], [0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [3, 0, 4, 7]]
PIECE = '<VTKFile type="PUnstructuredGrid"><PUnstructuredGrid GhostLevel="0">{}</PUnstructuredGrid></VTKFile>'
BLOCKS = """<VTKFile type="vtkMultiBlockDataSet"><vtkMultiBlockDataSet>
<DataSet index="0" name="internal" file="case/internal.vtu"/>
<Block index="1" name="boundary"><DataSet index="0" name="body" file="case/boundary/body.vtp"/>
<DataSet index="1" name="empty"/></Block></vtkMultiBlockDataSet></VTKFile>"""


def kind(suffix: str, **mesh: Any) -> SourceDescription:
    mesh = {"file": f"*{suffix}", "fields": {"pressure": "p"}} | mesh
    return SourceDescription.model_validate({"name": "own", "samples": "run_*", "meshes": {"volume": mesh}})


def write_pieces(run: Path, sources: tuple[str, ...] = ("a/0.vtu", "a/1.vtu")) -> list[Any]:
    """A root file and its pieces, as they are named."""
    blocks = [volume(seed=number) for number in range(len(sources))]
    for block, source in zip(blocks, sources, strict=True):
        write_vtk(block, run / source)
    (run / "a.pvtu").write_text(PIECE.format("".join(f'<Piece Source="{source}"/>' for source in sources)))
    return blocks


def mark_copies(block: Any, cells: list[int], name: str = "vtkGhostType") -> None:
    """Mark cells as copies of another piece's."""
    from vtkmodules.util.numpy_support import numpy_to_vtk

    ghosts = np.zeros(block.GetNumberOfCells(), np.uint8)
    ghosts[cells] = 1
    array = numpy_to_vtk(ghosts, deep=True)
    array.SetName(name)
    block.GetCellData().AddArray(array)


def opened(root: Path, description: SourceDescription) -> tuple[SampleTree, SourceSample]:
    tree = SampleTree(description, root)
    return tree, tree.discover()["run_1"]


def load(root: Path, description: SourceDescription, canonical: str = "volume_pressure") -> np.ndarray:
    tree, sample = opened(root, description)
    values: np.ndarray = tree.load(sample, canonical).numpy()
    return values


def test_pieces_are_one_mesh(tmp_path: Path) -> None:
    blocks = write_pieces(tmp_path / "source" / "run_1")
    root = tmp_path / "source"
    expected = np.concatenate([cell_array(block, "p") for block in blocks])
    np.testing.assert_array_equal(load(root, kind(".pvtu")), expected)
    assert len(load(root, kind(".pvtu"), "volume_position")) == len(expected)
    tree, sample = opened(root, kind(".pvtu"))
    assert not tree.find().unused
    contents = peek(SourceFile(Storage(root), "run_1", sample.files["volume_pressure"]))
    assert (contents.points, contents.cells) == (128, 54)
    assert ("T", "points", 128) in {(array.name, array.at, array.rows) for array in contents.arrays}
    assert convert(kind(".pvtu"), tmp_path / "store", root=root, values_dtype="float32").ok
    assert verify_store(str(tmp_path / "store"), source=str(root)).ok
    write_vtk(volume(seed=5), root / "run_1" / "a" / "1.vtu")
    assert opened(root, kind(".pvtu"))[1].fingerprint != sample.fingerprint
    assert not tree.is_unchanged(sample)


def test_a_piece_without_cells_has_no_arrays(tmp_path: Path) -> None:
    from vtkmodules.vtkCommonDataModel import vtkUnstructuredGrid

    blocks = write_pieces(tmp_path / "run_1", ("a/0.vtu", "a/1.vtu", "a/2.vtu"))
    write_vtk(vtkUnstructuredGrid(), tmp_path / "run_1" / "a" / "1.vtu")
    expected = np.concatenate([cell_array(block, "p") for block in blocks[::2]])
    np.testing.assert_array_equal(load(tmp_path, kind(".pvtu")), expected)
    assert len(load(tmp_path, kind(".pvtu"), "volume_position")) == len(expected)
    blocks[1].GetCellData().RemoveArray("p")
    write_vtk(blocks[1], tmp_path / "run_1" / "a" / "1.vtu")
    with pytest.raises(SampleError, match="a/1.vtu: has no array 'p' at its cells"):
        load(tmp_path, kind(".pvtu"))


@pytest.mark.parametrize("name", ["vtkGhostType", "vtkGhostLevels"])
def test_copies_of_cells_of_another_piece_are_left_out(tmp_path: Path, name: str) -> None:
    blocks = write_pieces(tmp_path / "run_1")
    mark_copies(blocks[1], [0, 5], name)
    write_vtk(blocks[1], tmp_path / "run_1" / "a" / "1.vtu")
    expected = [cell_array(blocks[0], "p"), np.delete(cell_array(blocks[1], "p"), [0, 5])]
    np.testing.assert_array_equal(load(tmp_path, kind(".pvtu")), np.concatenate(expected))
    assert len(load(tmp_path, kind(".pvtu"), "volume_position")) == 52


def test_ghost_cells_of_a_file_without_pieces_are_noted(tmp_path: Path) -> None:
    block, path = volume(), tmp_path / "run_1" / "volume.vtu"
    mark_copies(block, [0, 5])
    write_vtk(block, path)
    with collected_notes() as notes:
        assert len(load(tmp_path, kind(".vtu"))) == block.GetNumberOfCells()
    assert list(notes.values()) == ["2 cells"]


def test_copies_of_polyhedra_among_other_cells_are_left_out(tmp_path: Path) -> None:
    """``RemoveGhostCells`` would damage the faces of the polyhedra that stand before other cells."""
    from vtkmodules.vtkCommonCore import vtkIdList

    block = volume(2)
    block.GetCellData().Initialize()
    block.Reset()  # the cells, each second one as a polyhedron
    for number, first in enumerate((0, 1, 3, 4, 9, 10, 12, 13)):
        corner = [first + i for i in (0, 1, 4, 3, 9, 10, 13, 12)]
        if number % 2:
            block.InsertNextCell(12, 8, corner)
            continue
        stream = vtkIdList()
        for entry in (len(FACES), *(n for face in FACES for n in (4, *(corner[i] for i in face)))):
            stream.InsertNextId(entry)
        block.InsertNextCell(42, stream)
    copies = [0, 1, 6]
    expected = np.delete(VtkMesh([("", block)]).values(CENTRES), copies, axis=0)
    mark_copies(block, copies)
    write_vtk(block, tmp_path / "run_1" / "a" / "0.vtu")
    (tmp_path / "run_1" / "a.pvtu").write_text(PIECE.format('<Piece Source="a/0.vtu"/>'))
    description = kind(".pvtu", fields={}, connectivity=True)
    np.testing.assert_array_equal(load(tmp_path, description, "volume_position"), expected)
    tree, sample = opened(tmp_path, description)
    assert tree.load_mesh(sample, "volume_position").types.tolist() == [42, 12, 42, 12, 12]
    assert len(load(tmp_path, kind(".pvtu", fields={}, at="points"), "volume_position")) == 23


def test_parts_of_a_case_by_name(tmp_path: Path) -> None:
    run = tmp_path / "run_1"
    write_vtk(volume(), run / "case" / "internal.vtu")
    write_vtk(surface(), run / "case" / "boundary" / "body.vtp")
    (run / "case.vtm").write_text(BLOCKS)
    inner, body = kind(".vtm", patches="internal"), kind(".vtm", patches=["body"], compute=["area"])
    np.testing.assert_array_equal(load(tmp_path, inner), cell_array(volume(), "p"))
    np.testing.assert_array_equal(load(tmp_path, body), cell_array(surface(), "p"))
    assert load(tmp_path, body, "volume_area").shape == (9,)
    (run / "case" / "internal.vtu").write_bytes(b"damaged, and not needed for the body")
    load(tmp_path, body)
    with pytest.raises(SampleError, match=r"case\.vtm: case/internal\.vtu: truncated or damaged"):
        load(tmp_path, inner)
    with pytest.raises(SampleError, match=r"case\.vtm: has no patch 'roof'; it has internal, body"):
        load(tmp_path, kind(".vtm", patches="roof"))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("../outside.vtu", "rejected: names the piece '../outside.vtu'; pieces must lie in the sample's folder"),
        ("a/../../outside.vtu", "rejected: names the piece"),
        ("/etc/outside.vtu", "rejected: names the piece"),
        ("file:///etc/outside.vtu", "rejected: names the piece"),
        ("https://example.org/outside.vtu", "rejected: names the piece"),
        ("C:outside.vtu", "rejected: names the piece"),
        ("..\\outside.vtu", "rejected: names the piece"),
        ("a/2.vtu", "its piece 'a/2.vtu' is missing"),
        ("a.pvtu", "has the piece 'a.pvtu', whose format is none of .vtu, .vtp"),
        ("a/1.vtu", "rejected: names its piece 'a/1.vtu' twice"),
    ],
)
def test_a_piece_elsewhere_is_refused(tmp_path: Path, source: str, reason: str) -> None:
    write_pieces(tmp_path / "run_1")
    write_vtk(volume(), tmp_path / "outside.vtu")
    write_vtk(volume(), tmp_path / "run_1" / "a" / "unused.vtu")
    root = tmp_path / "run_1" / "a.pvtu"
    root.write_text(root.read_text().replace("</PUns", f'<Piece Source="{source}"/></PUns'))
    with pytest.raises(SampleError) as caught:
        load(tmp_path, kind(".pvtu"))
    assert f"a.pvtu: {reason}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "truncated or damaged"),
        (PIECE.format('<Piece Source="a/0.vtu"/>')[:-20], "truncated or damaged"),
        (PIECE.format(""), "names no piece"),
        ('<VTKFile type="PImageData"/>', "has the type 'PImageData'"),
        (f'<!DOCTYPE x [<!ENTITY a "0">]>{PIECE.format("")}', "rejected: it declares a document type"),
    ],
)
def test_a_damaged_or_hostile_root_file_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    write_pieces(tmp_path / "run_1")
    (tmp_path / "run_1" / "a.pvtu").write_text(text)
    with pytest.raises(SampleError, match=rf"a\.pvtu: {reason}"):
        load(tmp_path, kind(".pvtu"))


def test_pieces_need_the_folder_of_a_sample() -> None:
    with pytest.raises(ValueError, match="pieces of .pvtu, .pvtp, .vtm lie in the sample's folder"):
        SourceDescription.model_validate({"name": "own", "samples": "*", "meshes": {"volume": {"file": "{id}.pvtu"}}})
