"""Whole samples are read slab by slab, and predictions are written in the order of their sources."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.drivaernet_store import FIELDS, NORMALIZERS, drivaernet
from tests.helpers.small_source import write_source
from tests.helpers.solver_files import cell_array, surface, volume
from tests.helpers.solver_files import write_vtk as write_mesh
from zarr_core import Predictions, build_dataset, stage_store, write_sample, write_vtk
from zarr_core.convert import convert
from zarr_core.datasets import Slab, ZarrPointDataset
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.sources import SourceDescription

LAYOUT = {
    "name": "box",
    "samples": "run_*",
    "meshes": {
        "surface": {"file": "boundary.vtp", "at": "points", "fields": {"temperature": "T"}},
        "volume": {"file": "volume.vtu", "fields": {"pressure": "p", "velocity": "U"}},
    },
    "splits": {"rule": "folders", "folders": {"train": ["run_1"]}},
}


@pytest.mark.parametrize("points", [1, 7, 16, 32, 1000])
@pytest.mark.parametrize("engine", ["direct", "zarr"])
def test_slabs_are_the_whole_sample(root: Path, points: int, engine: str) -> None:
    dataset = drivaernet(
        root, normalizers=NORMALIZERS, engine=engine, num_volume_points=9, num_geometry_points=4, with_index=True
    )
    whole = drivaernet(root, normalizers=NORMALIZERS)[2]
    joined: dict[str, list[Tensor]] = {field: [] for field in FIELDS}
    ends = {"surface": 0, "volume": 0}
    for slab in dataset.slabs(2, points):
        assert isinstance(slab, Slab)
        assert slab.sample_id == dataset.sample_ids[2]
        assert list(slab) == [field for field in FIELDS if field.startswith(slab.domain)]
        assert slab.rows.start == ends[slab.domain], "each point once, in order"
        ends[slab.domain] = slab.rows.stop
        assert slab.rows.stop - slab.rows.start <= points
        for field, values in slab.items():
            assert len(values) == slab.rows.stop - slab.rows.start
            joined[field].append(values)
    for field, parts in joined.items():
        assert torch.equal(torch.cat(parts), whole[field])


def test_slabs_of_the_stored_dtype_are_normalized_by_the_dataset(root: Path) -> None:
    stored = drivaernet(root, normalizers=NORMALIZERS, dtype="stored")
    expected = drivaernet(root, normalizers=NORMALIZERS).slabs(2, 32)
    for slab, normalized in zip(stored.slabs(2, 32), expected, strict=True):
        for field, values in stored.normalize(slab).items():
            torch.testing.assert_close(values, normalized[field], msg=field)


def test_slabs_of_one_domain_and_some_fields(root: Path) -> None:
    dataset = drivaernet(root, fields=["volume_pressure", "surface_pressure"])
    domains = [slab.domain for slab in dataset.slabs("A_B_001", 100)]
    assert domains == ["volume", "volume", "surface"]
    assert [list(slab) for slab in dataset.slabs("A_B_001", 100, "surface")] == [["surface_pressure"]]
    only = drivaernet(root, fields=["volume_pressure"])
    for wrong, error in (
        (lambda: only.slabs(0, 100, "surface"), "no field of the domain 'surface' is read; domains are volume"),
        (lambda: only.slabs("run", 100), "no sample 'run'"),
    ):
        with pytest.raises(UnknownFieldError, match=error):
            wrong()
    with pytest.raises(ZarrCoreError, match="points must be positive, not 0"):
        only.slabs(0, 0)


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("predictions") / "source", ("run_1", "run_2"))


@pytest.fixture
def dataset(tensors: Path, tmp_path: Path) -> ZarrPointDataset:
    convert("ahmedml", tmp_path / "store", root=tensors, chunk_points=32)
    return build_dataset({"kind": "point", "root": str(tmp_path / "store"), "split": "train"})


def test_the_order_of_the_source(dataset: ZarrPointDataset, tensors: Path) -> None:
    sample_id = dataset.sample_ids[0]
    pressure = torch.load(tensors / sample_id / "surface_pressure.pt", weights_only=True)
    order = dataset.source_order(0, "surface")
    assert order.dtype == np.int64
    assert sorted(order) == list(range(len(pressure)))
    stored = dataset.reader.read_sample(sample_id, fields=["surface_pressure"])["surface_pressure"][:, 0]
    assert np.array_equal(pressure.numpy()[order].astype(stored.dtype), stored)
    with pytest.raises(UnknownFieldError, match="no domain 'wheels'; domains are surface, volume"):
        dataset.source_order(0, "wheels")


def predicted(
    dataset: ZarrPointDataset, path: Path, domain: str, model: Callable[[Slab], Any], points: int = 50
) -> Predictions:
    with Predictions(dataset, 0, domain, path) as predictions:
        for slab in dataset.slabs(0, points, domain):
            predictions.add(slab, model(slab))
    return predictions


def test_predictions_are_in_the_order_of_the_source(dataset: ZarrPointDataset, tensors: Path, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "p.npy"
    pressure = torch.load(tensors / dataset.sample_ids[0] / "surface_pressure.pt", weights_only=True).half()
    found = predicted(dataset, path, "surface", lambda slab: 2 * slab["surface_pressure"])
    np.testing.assert_array_equal(found.values, 2 * pressure.float().numpy())
    np.testing.assert_array_equal(np.load(path), found.values)
    positions = torch.load(tensors / dataset.sample_ids[0] / "surface_position_vtp.pt", weights_only=True)
    found = predicted(dataset, path, "surface", lambda slab: slab["surface_position"].numpy())
    np.testing.assert_array_equal(found.values, positions.numpy())
    found = predicted(dataset, path, "surface", lambda slab: slab["surface_pressure"].bfloat16())
    assert found.values.dtype == np.float32
    assert list(tmp_path.glob("folder/*")) == [path]


def test_predictions_can_be_written_as_a_sample(dataset: ZarrPointDataset, tmp_path: Path) -> None:
    arrays = {}
    for field in ("surface_position", "surface_pressure"):
        arrays[field] = predicted(dataset, tmp_path / f"{field}.npy", "surface", lambda slab, f=field: slab[f]).values
    write_sample(tmp_path / "predicted", dataset.sample_ids[0], arrays, split="train", chunk_points=32)
    other = build_dataset({"kind": "point", "root": str(tmp_path / "predicted"), "split": "train"})
    for one in (dataset, other):
        one.set_epoch(3)
    for field, values in other[0].items():
        assert torch.equal(values, dataset[0][field]), "in the same stored order"


def fill(dataset: ZarrPointDataset, path: Path, slabs: list[Slab], last: Any = None) -> None:
    """Predictions for the surface: the pressures of slabs, then other values for the first slab."""
    with Predictions(dataset, 0, "surface", path) as predictions:
        for slab in slabs:
            predictions.add(slab, slab["surface_pressure"])
        if last is not None:
            predictions.add(*last)


def test_what_is_incomplete_or_does_not_fit_is_refused(dataset: ZarrPointDataset, tmp_path: Path) -> None:
    path = tmp_path / "p.npy"
    slabs = list(dataset.slabs(0, 20, "surface"))
    with pytest.raises(ZarrCoreError, match=r"points 20 to 40 \(in stored order\) of 'surface' have no predictions"):
        fill(dataset, path, [slabs[0], *slabs[2:]])
    with pytest.raises(ZarrCoreError, match="p.npy is written at the end of the `with` block"):
        _ = Predictions(dataset, 0, "surface", path).values
    fill(dataset, path, slabs)
    other = next(iter(dataset.slabs(0, 20, "volume")))
    for last, error in (
        ((other, other["volume_pressure"]), "the slab is of .*, volume; these are predictions for .*, surface"),
        ((slabs[0], np.zeros((20, 1), np.float32)), r"20 points must be \(20,\) of float32, not \(20, 1\) of float32"),
        ((slabs[0], np.zeros(20)), r"20 points must be \(20,\) of float32, not \(20,\) of float64"),
    ):
        with pytest.raises(ZarrCoreError, match=error):
            fill(dataset, path, slabs, last)
    for values in (np.zeros((20, 2, 2)), np.zeros(20, complex)):
        with pytest.raises(ZarrCoreError, match=r"must be \(points,\) or \(points, components\) of real numbers"):
            fill(dataset, path, [], (slabs[0], values))
    assert list(tmp_path.glob("*p.npy*")) == [path], "as it was finished before, and nothing else"
    assert len(np.load(path)) == slabs[-1].rows.stop


def test_an_earlier_file_or_attempt_is_not_taken_for_the_predictions(dataset: ZarrPointDataset, tmp_path: Path) -> None:
    path = tmp_path / "p.npy"
    predicted(dataset, path, "surface", lambda slab: slab["surface_pressure"])
    slabs = list(dataset.slabs(0, 50, "surface"))
    again = Predictions(dataset, 0, "surface", path)

    def attempt(slabs: list[Slab], then: Callable[[], Any] = lambda: None) -> None:
        with again:
            for slab in slabs:
                again.add(slab, -slab["surface_pressure"])
            then()

    with pytest.raises(ZarrCoreError, match="is written at the end of the `with` block"):
        attempt(slabs, lambda: again.values)
    with pytest.raises(ZarrCoreError, match="is written at the end of the `with` block"):
        _ = again.values
    # The values of the attempt that failed are gone.
    with pytest.raises(ZarrCoreError, match="points 0 to 50 .* have no predictions"):
        attempt(slabs[1:])
    attempt(slabs)
    pressure = predicted(dataset, tmp_path / "q.npy", "surface", lambda slab: slab["surface_pressure"]).values
    np.testing.assert_array_equal(again.values, -pressure)


def test_a_thin_copy_has_no_predictions_for_all_points(dataset: ZarrPointDataset, tmp_path: Path) -> None:
    stage_store(dataset.reader.root, tmp_path / "thin", points={"surface": 32})
    thin = build_dataset({"kind": "point", "root": str(tmp_path / "thin"), "split": "train"})
    order = thin.source_order(0, "surface")
    assert np.array_equal(order, dataset.source_order(0, "surface")[: len(order)])
    assert len(order) < len(dataset.source_order(0, "surface"))
    with pytest.raises(ZarrCoreError, match="a thin copy.; predict on the store that it was copied from"):
        Predictions(thin, 0, "surface", tmp_path / "p.npy")


def test_the_order_of_another_program_is_not_known(root: Path) -> None:
    with pytest.raises(ZarrCoreError, match="A_B_001: the order of its points is not known, because another program"):
        drivaernet(root).source_order(0, "surface")


@pytest.fixture
def meshes(tmp_path: Path) -> tuple[Path, ZarrPointDataset]:
    pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")
    source = tmp_path / "meshes"
    write_mesh(surface(6), source / "run_1" / "boundary.vtp")
    write_mesh(volume(6), source / "run_1" / "volume.vtu")
    store = tmp_path / "meshes_store"
    convert(SourceDescription.model_validate(LAYOUT), store, root=source, chunk_points=32, values_dtype="float32")
    return source, build_dataset({"kind": "point", "root": str(store), "split": "train"})


def opened(path: Path) -> Any:
    from vtkmodules import vtkIOXML

    name = "PolyData" if path.suffix == ".vtp" else "UnstructuredGrid"
    reader = getattr(vtkIOXML, f"vtkXML{name}Reader")()
    reader.SetFileName(str(path))
    reader.Update()
    return reader.GetOutput()


def test_predictions_open_in_vtk_at_the_points_of_the_source(
    meshes: tuple[Path, ZarrPointDataset], tmp_path: Path
) -> None:
    from vtkmodules.util.numpy_support import vtk_to_numpy

    source, dataset = meshes
    pressure = predicted(dataset, tmp_path / "p.npy", "volume", lambda slab: -slab["volume_pressure"])
    velocity = predicted(dataset, tmp_path / "u.npy", "volume", lambda slab: 2 * slab["volume_velocity"])
    write_vtk({"p_predicted": pressure, "U_predicted": velocity}, tmp_path / "out" / "run_1.vtu", source)
    before, after = opened(source / "run_1" / "volume.vtu"), opened(tmp_path / "out" / "run_1.vtu")
    points = [vtk_to_numpy(mesh.GetPoints().GetData()) for mesh in (before, after)]
    np.testing.assert_array_equal(*points)
    np.testing.assert_array_equal(cell_array(after, "p"), cell_array(before, "p"))
    np.testing.assert_array_equal(cell_array(after, "p_predicted"), -cell_array(before, "p"))
    np.testing.assert_array_equal(cell_array(after, "U_predicted"), 2 * cell_array(before, "U"))

    temperature = predicted(dataset, tmp_path / "t.npy", "surface", lambda slab: slab["surface_temperature"] + 1)
    with pytest.raises(ZarrCoreError, match="run_1.vtu would be a copy of boundary.vtp, .*: give it the same one"):
        write_vtk({"T_predicted": temperature}, tmp_path / "out" / "run_1.vtu", source)
    write_vtk({"T_predicted": temperature}, tmp_path / "out" / "run_1.vtp", source)
    before, after = opened(source / "run_1" / "boundary.vtp"), opened(tmp_path / "out" / "run_1.vtp")
    expected = vtk_to_numpy(before.GetPointData().GetArray("T")) + 1
    np.testing.assert_array_equal(vtk_to_numpy(after.GetPointData().GetArray("T_predicted")), expected)


def test_a_source_that_was_written_again_is_named(meshes: tuple[Path, ZarrPointDataset], tmp_path: Path) -> None:
    """A solver that ran again often writes as many bytes."""
    source, dataset = meshes
    pressure = predicted(dataset, tmp_path / "p.npy", "volume", lambda slab: slab["volume_pressure"])
    os.utime(source / "run_1" / "volume.vtu", (0, 0))
    with pytest.warns(UserWarning, match="run_1: volume.vtu was written again since the conversion; if its points"):
        write_vtk({"q": pressure}, tmp_path / "out.vtu", source)


def test_the_lines_of_the_guide_write_predictions_into_the_file_of_the_source(
    meshes: tuple[Path, ZarrPointDataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, dataset = meshes
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "write_vtk(" in block)
    monkeypatch.chdir(tmp_path)
    exec(block, {"dataset": dataset, "source": source, "model": torch.nn.Linear(3, 1)})
    added = cell_array(opened(tmp_path / "run_1.vtu"), "pressure_predicted")
    np.testing.assert_array_equal(added, np.load(tmp_path / "pressure.npy"))


def test_the_lines_of_the_guide_give_a_parameter_to_slabs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "speed.expand(" in block)
    fields = {"volume_position": np.random.default_rng(0).normal(size=(90, 3))}
    write_sample(tmp_path / "store", "run_1", fields, split="train", parameters={"speed": 30.0})
    config: dict[str, Any] = {
        "kind": "point",
        "root": str(tmp_path / "store"),
        "split": "train",
        "parameters": ["speed"],
        "normalizers": {"speed": {"kind": "fixed", "shift": [20.0], "unit": [5.0]}},
    }
    dataset = build_dataset(config | {"item": {"x": ["volume_position", "speed"]}})
    names: dict[str, Any] = {"dataset": dataset, "torch": torch}
    exec(block, names)
    assert torch.equal(names["inputs"], dataset[0]["x"])
    named = build_dataset(config | {"with_sample_id": True})
    assert [list(slab) for slab in named.slabs("run_1", 90)] == [["volume_position"]], "slabs have fields only"


def test_files_that_predictions_do_not_belong_to_are_refused(
    meshes: tuple[Path, ZarrPointDataset], dataset: ZarrPointDataset, tensors: Path, tmp_path: Path
) -> None:
    source, of_meshes = meshes
    pressure = predicted(of_meshes, tmp_path / "p.npy", "volume", lambda slab: slab["volume_pressure"])
    surface_one = predicted(of_meshes, tmp_path / "t.npy", "surface", lambda slab: slab["surface_temperature"])
    out = tmp_path / "out.vtu"
    with pytest.raises(ZarrCoreError, match="run_1, surface: a file has the arrays of one domain of one sample"):
        write_vtk({"p": pressure, "t": surface_one}, out, source)
    with pytest.raises(ZarrCoreError, match="predictions is empty"):
        write_vtk({}, out, source)
    with pytest.raises(ZarrCoreError, match="run_1: .*volume.vtu is the source itself; write the copy to another path"):
        write_vtk({"q": pressure}, source / "run_1" / "volume.vtu", source)
    with pytest.raises(ZarrCoreError, match="run_1: volume.vtu has an array 'p' at its cells already"):
        write_vtk({"p": pressure}, out, source)
    with pytest.raises(ZarrCoreError, match="run_1: its files are not in .*; pass the root of the store's source"):
        write_vtk({"q": pressure}, out, tmp_path)
    of_tensors = predicted(dataset, tmp_path / "q.npy", "surface", lambda slab: slab["surface_pressure"])
    with pytest.raises(
        ZarrCoreError, match=r"come from surface_position_vtp.pt, which is no .vtu.*q.npy has the values"
    ):
        write_vtk({"q": of_tensors}, out, tensors)
    file = source / "run_1" / "volume.vtu"
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(ZarrCoreError, match="volume.vtu has .* bytes, .* at the conversion: it is another file"):
        write_vtk({"q": pressure}, out, source)
    shutil.move(file, source / "run_1" / "elsewhere.vtu")
    with pytest.raises(ZarrCoreError, match="run_1: volume.vtu is no longer in"):
        write_vtk({"q": pressure}, out, source)
    assert not list(tmp_path.glob("*out.vtu*"))
