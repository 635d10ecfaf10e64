"""Columns of CSV files become fields; what is no table of numbers is refused by name, row and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from tests.helpers.failing_disk import fail_reads
from zarr_core import ZarrChunkReader
from zarr_core.errors import SampleError
from zarr_core.points.convert.conversion import convert
from zarr_core.sources import SampleTree, SourceDescription
from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats import open_file, peek
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.left_out import collected_notes
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage

TEXT = "x,y,z,p,patch\n1,2,3,0.5,wall\n4,5,6,1e-3,inlet\n"
POSITION = [[1, 2, 3], [4, 5, 6]]
FILES = {
    "volume_position": {"file": "volume.csv", "array": ["x", "y", "z"]},
    "volume_pressure": {"file": "volume.csv", "array": "p", "scale": 2.0},
}


def described(**parts: Any) -> SourceDescription:
    return SourceDescription.model_validate({"name": "own", "samples": "run_*", "files": FILES} | parts)


def write(root: Path, text: str | bytes, name: str = "volume.csv") -> Path:
    path = root / "run_1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def load(root: str | Path, field: str = "volume_position", **parts: Any) -> np.ndarray:
    tree = SampleTree(described(**parts), root)
    values: np.ndarray = tree.load(tree.discover()["run_1"], field).numpy()
    return values


def found_in(path: Path) -> dict[str, int | None]:
    file = SourceFile(Storage(str(path.parent)), "", FileInfo(path.name, path.stat().st_size, ""))
    return {array.name: array.rows for array in peek(file).arrays}


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        "\ufeff" + TEXT,
        TEXT.replace("\n", "\r\n"),
        "\n" + TEXT.replace("\n", "\n \n") + "\n",
        TEXT.rstrip(),
        "# " + TEXT,
        TEXT.replace("x,y,z,p", ' x , "y", "z",p '),
        '"p","x","patch, old","y","z"\n0.5,1,"a, ""b""",2,3\n1e-3, 4 ,c,"5",6\n',
        "p,p2,p2,x,y,z\n.5,,,1,2,3\n1E-3,,,4,+5,6\n",
    ],
)
def test_columns_are_fields(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    tree = SampleTree(described(), tmp_path)
    sample = tree.discover()["run_1"]
    position, pressure = (tree.load(sample, field).numpy() for field in FILES)
    assert position.dtype == pressure.dtype == np.float64
    np.testing.assert_array_equal(position, POSITION)
    np.testing.assert_array_equal(pressure, [1, 2e-3])


def test_names_of_paraview_and_values_that_are_not_finite(tmp_path: Path) -> None:
    write(tmp_path, '"U:0","Points:0","Points:1","Points:2"\nnan,1,2,3\n-inf,4,5,6\n')
    position = {"file": "volume.csv", "array": [f"Points:{i}" for i in range(3)]}
    files = {"volume_position": position, "volume_velocity": {"file": "volume.csv", "array": "U:0"}}
    np.testing.assert_array_equal(load(tmp_path, files=files), POSITION)
    np.testing.assert_array_equal(load(tmp_path, "volume_velocity", files=files), [np.nan, -np.inf])


@given(values=st.lists(st.tuples(*[st.floats()] * 3), min_size=1, max_size=20))
@settings(max_examples=examples(50))
def test_numbers_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, values: list[tuple[float, ...]]) -> None:
    rows = [",".join(map(repr, row)) for row in values]
    root = tmp_path_factory.mktemp("csv")
    write(root, "\n".join(["p,x,y,z", *(f"0,{row}" for row in rows)]))
    np.testing.assert_array_equal(load(root), values)


def test_a_file_is_parsed_once_for_all_of_its_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, TEXT)
    tree = SampleTree(described(), tmp_path)
    sample = tree.discover()["run_1"]
    position = tree.load(sample, "volume_position")
    monkeypatch.setattr("numpy.loadtxt", None)
    assert tree.load(sample, "volume_pressure").tolist() == [1, 2e-3]
    assert position.is_contiguous()


def test_columns_that_no_choice_named_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT)
    opened = open_file(SourceFile(Storage(str(path.parent)), "", FileInfo(path.name, path.stat().st_size, "")))
    pressure = opened.values(ArrayChoice(arrays=("p",)))
    assert pressure.tolist() == [0.5, 1e-3]
    pressure[:] = 0  # a field is not the memory of the file
    assert opened.values(ArrayChoice(arrays=("p",))).tolist() == [0.5, 1e-3]
    assert opened.values(ArrayChoice(arrays=("y", "p"))).tolist() == [[2, 0.5], [5, 1e-3]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a line with the names of its columns"),
        (" \n\n", "is empty"),
        ("x,y,z,p\n", "has no rows below its header"),
        ("1,2,3,4\n5,6,7,8\n", r"has numbers in the place of its header \(1\); put a line with the names"),
        ("x;y;z;p\n1;2;3;4\n", "has semicolons between its columns; write commas"),
        ("x\ty\tz\tp\n1\t2\t3\t4\n", "has tabs between its columns; write commas"),
        ("x y z p\n1 2 3 4\n", "has no column 'x'; it has 'x y z p'"),
        ("x,y,p\n1,2,4\n", "has no column 'z'; it has 'x', 'y', 'p'"),
        ("X,y,z,p\n1,2,3,4\n", "has no column 'x'; it has 'X', 'y', 'z', 'p'"),
        ("x,y,z,p,x\n1,2,3,4,5\n", "has several columns 'x'; give each a name of its own"),
        ("x,y,z,p\n1,2,3,4\n1,wall,3,4\n", "has 'wall' in column 'y' of row 2, expected a number"),
        ("x,y,z,p\n1,2,3,4\n\n1,2,3,\n", "has '' in column 'p' of row 2, expected a number"),
        ("x,y,z,p\n1,2,3,1_0\n", "has '1_0' in column 'p' of row 1, expected a number"),
        ("x,y,z,p\n1,2,3,\u0661\n", "row 1: could not convert"),
        ("x,y,z,p\n1,2,3,4\n1,2,3\n", "has 4 columns in its header and 3 in row 2"),
        ("x,y,z,p\n1,2,3,4,5\n", "has 4 columns in its header and 5 in row 1"),
        ("x,y,z,p\n0,1,0,2,0,3,0,4\n", "has 4 columns in its header and 8 in row 1"),  # commas in numbers
        ('x,y,z,p,name\n1,2,3,4,"a\n5,6,7,8,b"\n', "row 1: unexpected end of data"),
        ('x,y,z,"p\n1,2,3,4\n', "header: unexpected end of data"),
        (TEXT.encode("utf-16"), "is not text in UTF-8; write it in UTF-8"),
        (TEXT.replace("inlet", "Eintritt \u00fc").encode("latin-1"), "is not text in UTF-8"),
        (b"x,y,z,p\n" + bytes(5_000_000), "row 1: field larger than field limit"),
        (b"x" * 5_000_000, "header: field larger than field limit"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    write(tmp_path, text)
    with pytest.raises(SampleError, match=f"volume.csv: {message}"):
        load(tmp_path)


def test_of_a_line_without_end_the_beginning_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.sources.formats.csv._MAX_LINE", 10)
    write(tmp_path, "x,y,z,p\n1,2,3," + "4" * 100)
    with pytest.raises(SampleError, match="has 4 columns in its header and 1 in row 2"):
        load(tmp_path)


def test_a_row_is_named_also_behind_many(tmp_path: Path) -> None:
    """NumPy counts the rows of a file from its last 50,000 on."""
    write(tmp_path, "x,y,z,p\n" + "1,2,3,4\n" * 120_000 + "1,2,3,\n")
    with pytest.raises(SampleError, match="has '' in column 'p' of row 120001, expected a number"):
        load(tmp_path)


def test_a_remote_file_is_read_as_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fsspec.open("memory://csv/run_1/volume.csv", "wb") as target:
        target.write(TEXT.encode())
    monkeypatch.setattr("tempfile.TemporaryDirectory", None)  # a copy on a disk would need one
    np.testing.assert_array_equal(load("memory://csv"), POSITION)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_an_error_of_the_disk_or_the_network_is_no_damage(
    tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, TEXT + "7,8,9,0.1,wall\n" * 10_000)
    fail_reads(monkeypatch, path, first, size=20)
    with pytest.raises(OSError, match="Input/output error"):
        load(tmp_path)


def test_an_error_of_a_client_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    with fsspec.open("memory://failing_csv/run_1/volume.csv", "wb") as target:
        target.write(TEXT.encode())

    def ends(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr("zarr_core.storage.reading.RemoteFile._fill", ends)
    with pytest.raises(RuntimeError, match="cannot schedule"):
        load("memory://failing_csv")


def test_columns_are_no_mesh(tmp_path: Path) -> None:
    write(tmp_path, TEXT)
    meshes = {"volume": {"file": "volume.csv", "fields": {"pressure": "p"}}}
    with pytest.raises(SampleError, match="contains no mesh; name its arrays in `files` of the description"):
        load(tmp_path, files={}, meshes=meshes)


def test_the_contents_are_the_columns_of_numbers(tmp_path: Path) -> None:
    with collected_notes() as notes:
        assert found_in(write(tmp_path, "x,y,,x,p,patch\n1,2,3,4,5,wall\n1,2,3,4,5,wall\n")) == {"y": None, "p": None}
    (names,) = notes.values()
    assert names == "'x', '', 'x', 'patch'"
    assert found_in(write(tmp_path, "Cd,Cl\n0.3,0.1\n")) == {"Cd": None, "Cl": None}
    for text, reason in (("x,y\n", "has no rows"), ('x,y\n"1,2\n', "row 1: unexpected end"), ("", "is empty")):
        with pytest.raises(ValueError, match=reason):
            found_in(write(tmp_path, text))


def test_a_source_of_csv_and_npz_files_is_converted(tmp_path: Path) -> None:
    """Its parameters, and a table beside the samples, are CSV files as well."""
    source = tmp_path / "source"
    generator = np.random.default_rng(0)
    values = {}
    for number in (1, 2):
        own = values[f"run_{number}"] = generator.normal(size=(300, 5)).astype(np.float32)  # as positions are stored
        run = source / f"run_{number}"
        run.mkdir(parents=True)
        np.savetxt(run / "volume.csv", own, delimiter=",", header="x,y,z,p,k", fmt="%.17g", comments="")
        np.savez(run / "surface.npz", xyz=own[:100, :3])
        (run / "forces.csv").write_text(f"Cd,Cl\n0.{number},0.1\n")
    (source / "speeds.csv").write_text("run,speed\n1,10\n2,20\n")
    parts = {
        "files": FILES | {"surface_position": {"file": "surface.npz", "array": "xyz"}},
        "parameters": ["forces.csv"],
        "tables": [{"file": "speeds.csv", "key": "run", "sample_id": "run_{}"}],
    }
    report = convert(described(**parts), tmp_path / "store", root=source, values_dtype="float64")
    assert len(report.having("converted")) == 2
    reader = ZarrChunkReader(tmp_path / "store")
    for number in (1, 2):
        own, sample = values[f"run_{number}"], reader.read_sample(f"run_{number}")
        stored = np.column_stack([sample["volume_position"], sample["volume_pressure"]])
        expected = own[:, :4] * [1, 1, 1, 2]
        np.testing.assert_array_equal(stored[np.lexsort(stored.T)], expected[np.lexsort(expected.T)])
        surface = np.asarray(sample["surface_position"])
        np.testing.assert_array_equal(np.sort(surface, axis=0), np.sort(own[:100, :3], axis=0))
        recorded = reader.read_attributes(f"run_{number}")["parameters"]
        assert recorded == {"Cd": number / 10, "Cl": 0.1, "speed": 10 * number}


def test_a_table_beside_files_with_the_ids_of_samples_is_no_sample(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.csv").write_text(TEXT)
    (tmp_path / "speeds.csv").write_text("run,speed\n1,10\n2,20\n")
    files = {"volume_position": {"file": "{id}.csv", "array": ["x", "y", "z"]}}
    tables = [{"file": "speeds.csv", "key": "run"}]
    samples = SampleTree(described(samples="*", files=files, tables=tables), tmp_path).discover()
    assert {sample_id: sample.scalars for sample_id, sample in samples.items()} == {
        "1": {"speed": 10},
        "2": {"speed": 20},
    }
