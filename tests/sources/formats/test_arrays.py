"""NumPy and HDF5 files become fields; what would run code, fill the memory or read other files is refused by name."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from tests.helpers.failing_disk import fail_reads
from zarr_core.errors import SampleError
from zarr_core.sources import SampleTree, SourceDescription
from zarr_core.sources.formats import peek
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.left_out import collected_notes
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage

VALUES = np.arange(30, dtype="<f4").reshape(10, 3)


def description(suffix: str, array: str = "a/xyz") -> SourceDescription:
    file = "xyz.npy" if suffix == ".npy" else {"file": f"f*{suffix}", "array": array, "scale": 2.0}
    return SourceDescription.model_validate({"name": "own", "samples": "run_*", "files": {"volume_position": file}})


def load(root: str | Path, suffix: str, array: str = "a/xyz") -> np.ndarray:
    tree = SampleTree(description(suffix, array), root)
    values: np.ndarray = tree.load(tree.discover()["run_1"], "volume_position").numpy()
    return values


def write(folder: Path, suffix: str, values: np.ndarray = VALUES) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("xyz.npy" if suffix == ".npy" else f"fields{suffix}")
    if suffix == ".npy":
        np.save(path, values)
    elif suffix == ".npz":
        np.savez_compressed(path, **{"a/xyz": values, "b": np.zeros(3)})
    else:
        h5py = pytest.importorskip("h5py", reason="the extra hdf5 is not installed")
        with h5py.File(path, "w") as file:
            file.create_dataset("a/xyz", data=values, compression="gzip")
    return path


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5"])
@pytest.mark.parametrize("values", [VALUES, np.asfortranarray(VALUES), VALUES.astype(">f8"), VALUES.astype(np.int32)])
def test_an_array_is_a_field(tmp_path: Path, suffix: str, values: np.ndarray) -> None:
    write(tmp_path / "run_1", suffix, values)
    np.testing.assert_array_equal(load(tmp_path, suffix), values * (1 if suffix == ".npy" else 2))


@pytest.mark.parametrize("parts", [VALUES.T, np.hsplit(VALUES, 3), [VALUES[:, 0], VALUES[:, 1:]]])
def test_components_are_vectors_columns_or_matrices(tmp_path: Path, parts: Sequence[np.ndarray]) -> None:
    """MATLAB, for one, writes every vector as a matrix of one column."""
    (tmp_path / "run_1").mkdir()
    np.savez(tmp_path / "run_1" / "f.npz", *parts)
    file = {"file": "f.npz", "array": [f"arr_{i}" for i in range(len(parts))]}
    kind = SourceDescription.model_validate({"name": "own", "samples": "run_*", "files": {"volume_position": file}})
    tree = SampleTree(kind, tmp_path)
    np.testing.assert_array_equal(tree.load(tree.discover()["run_1"], "volume_position").numpy(), VALUES)


@pytest.mark.parametrize("other", [np.zeros(2), np.zeros(2, np.uint64)])
def test_whole_numbers_that_would_be_rounded_beside_others_are_refused(tmp_path: Path, other: np.ndarray) -> None:
    (tmp_path / "run_1").mkdir()
    file = {"file": "f.npz", "array": ["arr_0", "arr_1", "arr_1"]}
    kind = SourceDescription.model_validate({"name": "own", "samples": "run_*", "files": {"volume_position": file}})
    for largest in (2**53, -(2**53), 2**53 + 1, -(2**53) - 1):
        np.savez(tmp_path / "run_1" / "f.npz", np.array([0, largest]), other)
        tree = SampleTree(kind, tmp_path)
        sample = tree.discover()["run_1"]
        if abs(largest) > 2**53:
            with pytest.raises(SampleError, match=r"f.npz: whole numbers beyond 2\*\*53 cannot be joined with float64"):
                tree.load(sample, "volume_position")
        else:
            assert tree.load(sample, "volume_position")[1, 0] == largest


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5"])
def test_numbers_that_torch_does_not_have_are_a_problem_of_the_sample(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "run_1", suffix, VALUES.astype(np.longdouble))
    with pytest.raises(SampleError, match="contains (float128|longdouble), which is not supported"):
        load(tmp_path, suffix)


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_a_scale_is_no_number_of_half_precision(tmp_path: Path, scale: float) -> None:
    """1e-6 rounds small values of float16 to 0, and 1e4 makes large ones infinite."""
    values = np.array([[1e-3, 2e-3, 50]], np.float16)
    write(tmp_path / "run_1", ".npz", values)
    file = {"file": "f*.npz", "array": "a/xyz", "scale": scale}
    kind = SourceDescription.model_validate({"name": "own", "samples": "run_*", "files": {"volume_position": file}})
    tree = SampleTree(kind, tmp_path)
    loaded = tree.load(tree.discover()["run_1"], "volume_position").numpy()
    np.testing.assert_allclose(loaded, values.astype(np.float64) * scale, rtol=1e-6)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5"])
def test_a_remote_file_is_read_as_a_stream(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, suffix)
    with fsspec.open(f"memory://arrays{suffix}/run_1/{path.name}", "wb") as target:
        target.write(path.read_bytes())
    monkeypatch.setattr("tempfile.TemporaryDirectory", None)  # a copy on a disk would need one
    assert load(f"memory://arrays{suffix}", suffix).shape == (10, 3)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5"])
def test_an_array_is_no_mesh(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / "run_1", suffix)
    mesh = {"file": path.name, "fields": {"velocity": "a/xyz"}}
    kind = SourceDescription.model_validate({"name": "own", "samples": "run_*", "meshes": {"volume": mesh}})
    tree = SampleTree(kind, tmp_path)
    with pytest.raises(SampleError, match="contains no mesh; name its arrays in `files` of the description"):
        tree.load(tree.discover()["run_1"], "volume_position")


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_an_array_that_is_not_there_is_named(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "run_1", suffix)
    with pytest.raises(SampleError, match="'q'; it has a/xyz"):
        load(tmp_path, suffix, "q")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5"])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, suffix: str, share: float) -> None:
    path = write(tmp_path / "run_1", suffix)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(SampleError, match=f"{path.name}: truncated"):
        load(tmp_path, suffix)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5"])
def test_a_damaged_byte_is_a_problem_of_the_sample(tmp_path: Path, suffix: str) -> None:
    """NumPy, zlib, zipfile and h5py have errors of their own for damaged bytes."""
    path = write(tmp_path / "run_1", suffix)
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), max(len(whole) // 400, 1)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :])
        try:
            load(tmp_path, suffix)
        except SampleError:
            refused += 1
    assert refused


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5"])
@pytest.mark.parametrize("first", [0, 1])
def test_an_error_of_the_disk_or_the_network_is_no_damage(
    tmp_path: Path, suffix: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a damaged file its sample is refused for good; a disk that answers later is read again."""
    path = write(tmp_path / "run_1", suffix)
    fail_reads(monkeypatch, path, first)
    with pytest.raises(OSError, match="Input/output error"):
        load(tmp_path, suffix)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5"])
def test_an_error_of_a_client_is_no_damage(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, suffix)
    with fsspec.open(f"memory://failing{suffix}/run_1/{path.name}", "wb") as target:
        target.write(path.read_bytes())

    def ends(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr("zarr_core.storage.reading.RemoteFile._fill", ends)
    with pytest.raises(RuntimeError, match="cannot schedule"):
        load(f"memory://failing{suffix}", suffix)


class _Code:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        import os

        return os.mkdir, ("ran",)  # type: ignore[return-value]


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_pickled_objects_are_refused_and_do_not_run(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run_1", suffix, np.array([_Code()], dtype=object))
    with pytest.raises(SampleError, match="rejected: contains pickled objects"):
        load(tmp_path, suffix)
    (tmp_path / "run_1" / "xyz.npy").write_bytes(pickle.dumps(_Code()))
    with pytest.raises(SampleError, match="truncated or not an array file"):
        load(tmp_path, ".npy")
    assert not (tmp_path / "ran").exists()


def header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.mark.parametrize("shape", [(10**15, 3), (-1, 3), (2**62, 4)])
def test_a_claim_of_more_values_than_fit_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    run = tmp_path / "run_1"
    run.mkdir()
    (run / "xyz.npy").write_bytes(header(shape) + bytes(100))
    with pytest.raises(SampleError, match="xyz.npy: truncated"):
        load(tmp_path, ".npy")
    with zipfile.ZipFile(run / "fields.npz", "w") as archive:
        archive.writestr("a/xyz.npy", header(shape) + bytes(100))
    with pytest.raises(SampleError, match="fields.npz: truncated"):
        load(tmp_path, ".npz")


def test_an_archive_that_expands_to_any_size_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "run_1", ".npz", np.zeros((3_000_000, 3)))
    with pytest.raises(SampleError, match="rejected: claims an array of 72,000,000 bytes"):
        load(tmp_path, ".npz")


@pytest.fixture
def hdf5(tmp_path: Path) -> Path:
    pytest.importorskip("h5py", reason="the extra hdf5 is not installed")
    (tmp_path / "run_1").mkdir()
    return tmp_path / "run_1" / "fields.h5"


def test_a_dataset_of_another_file_is_refused(hdf5: Path, tmp_path: Path) -> None:
    import h5py

    (tmp_path / "secret").write_bytes(bytes(120))
    with h5py.File(hdf5, "w") as file:
        file.create_dataset("a/xyz", (10, 3), "<f4", external=[(str(tmp_path / "secret"), 0, 120)])
        file["linked"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "xyz")
        source = h5py.VirtualSource(str(tmp_path / "other.h5"), "xyz", shape=(10, 3))
        virtual = h5py.VirtualLayout((10, 3), "<f4")
        virtual[...] = source
        file.create_virtual_dataset("virtual", virtual)
    for name, reason in (
        ("a/xyz", "takes its values from another file"),
        ("virtual", "takes its values from another file"),
        ("linked", "is a link to another file"),
    ):
        with pytest.raises(SampleError, match=f"rejected: .*{reason}"):
            load(tmp_path, ".h5", name)


@pytest.mark.parametrize("marker", [-999.0, -999.9])
@pytest.mark.parametrize("attribute", ["_FillValue", "missing_value"])
def test_a_number_that_stands_for_a_missing_value_is_no_value(
    hdf5: Path, tmp_path: Path, attribute: str, marker: float
) -> None:
    """It is one also where its attribute has more digits than the values."""
    import h5py

    for values in (VALUES, np.where(VALUES[2, 1] == VALUES, np.float32(marker), VALUES)):
        with h5py.File(hdf5, "w") as file:
            file.create_dataset("a/xyz", data=values).attrs[attribute] = np.array([marker])
        if values is VALUES:
            np.testing.assert_array_equal(load(tmp_path, ".h5"), 2 * VALUES)
    with pytest.raises(SampleError, match=r"a/xyz: 1 values are missing: they equal -999\.\d+, its marker"):
        load(tmp_path, ".h5")


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (0, {}, "xyz: 1 of its 1 chunks were never written"),
        (2, {"chunks": (2, 3)}, r"xyz: \d+ of its \d+ chunks were never written"),
        (2, {"fillvalue": 9.96921e36}, r"xyz: \d+ values are missing: they equal 9.969\d+e\+36, its marker"),
    ],
)
def test_values_that_were_never_written_are_no_values(
    hdf5: Path, tmp_path: Path, rows: int, settings: dict[str, Any], message: str
) -> None:
    """HDF5 reads 0 in their place, and netCDF's library its default fill value, which no attribute names."""
    import h5py

    with h5py.File(hdf5, "w") as file:
        values = file.create_dataset("a/xyz", VALUES.shape, VALUES.dtype, **settings)
        if rows:
            values[:rows] = VALUES[:rows]
    with pytest.raises(SampleError, match=message):
        load(tmp_path, ".h5")


def test_numbers_that_were_packed_are_noted_and_a_dataset_may_be_empty(hdf5: Path, tmp_path: Path) -> None:
    """Readers of netCDF multiply and add. Here a description gives the `scale`."""
    import h5py

    for factor, offset in ((1.0, 0.0), (0.5, 20.0)):
        with h5py.File(hdf5, "w") as file:
            packed = file.create_dataset("a/xyz", data=VALUES)
            packed.attrs.update({"scale_factor": factor, "add_offset": np.array([offset])})
            file["nothing"] = h5py.Empty("f4")
        with collected_notes() as notes:
            np.testing.assert_array_equal(load(tmp_path, ".h5"), 2 * VALUES)
        reason = "attributes that tell how numbers were packed are not applied"
        assert notes == ({} if factor == 1 else {reason: "a/xyz: scale_factor 0.5 and add_offset 20.0"})
    file = SourceFile(Storage(str(hdf5.parent)), "", FileInfo(hdf5.name, hdf5.stat().st_size, ""))
    assert [array.name for array in peek(file).arrays] == ["a/xyz"]


def test_a_filter_of_a_plug_in_is_refused(hdf5: Path, tmp_path: Path) -> None:
    import h5py

    with h5py.File(hdf5, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((10, 3))
        properties.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))  # zstd, which is no part of HDF5
        h5py.h5d.create(file.id, b"xyz", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((10, 3)), dcpl=properties)
    with pytest.raises(SampleError, match="rejected: /xyz needs the HDF5 filter 32015 of a plug-in"):
        load(tmp_path, ".h5", "xyz")


def test_a_dataset_without_chunks_that_claims_any_size_is_refused(hdf5: Path, tmp_path: Path) -> None:
    import h5py

    with h5py.File(hdf5, "w") as file:
        file.create_dataset("a/xyz", (10**10, 3), "<f4", chunks=(1000, 3))
        file["circle"] = h5py.SoftLink("/")
    with pytest.raises(SampleError, match="rejected: claims an array of 120,000,000,000 bytes"):
        load(tmp_path, ".h5")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("force_1.csv", "Cd, Cl\n0.3,-0.1\n", {"Cd": 0.3, "Cl": -0.1}),
        ("force_1.csv", "run,name\n1,base car\n", {"run": 1.0, "name": "base car"}),
        ("force_1.dat", "# Coefficients\n#\n# Time Cd\n1 0.5\n2 0.3\n", {"Time": 2, "Cd": 0.3}),
        ("force_1.dat", "# Time, Cd\n1, 0.5\n2, 0.3\n", {"Time": 2, "Cd": 0.3}),
        ("force_1.dat", "# Time Cd\n1 0.5\n2 0.3\n# at end\n", {"Time": 2, "Cd": 0.3}),
        ("force_1.dat", "# Time Cd\n# of Cd, by hand\n1 0.5\n2 0.3\n", "has 2 columns in its header and 1 in its row"),
        ("force_1.dat", "1 0.5\n2 0.3\n", "has numbers in the place of its header"),
        ("force_1.json", '{"Cd": 0.3}', {"Cd": 0.3}),
        ("force_1.csv", "Cd,Cl\n0.3,\n", {"Cd": 0.3}),
        ("force_1.csv", "\ufeffCd,,Cd,\n0.3,1,0.3,2\n", {"Cd": 0.3}),
        ("force_1.csv", "Cd,Cd\n0.3,0.4\n", "has different values in two columns 'Cd'"),
        ("force_1.csv", "Cd,Cl\n0.3,-0.1\n0.4,0.1\n", "has 2 rows below its header, expected one"),
        ("force_1.csv", "Cd,Cl\n0.3\n", "has 2 columns in its header and 1 in its row"),
        ("force_1.csv", "Cd;Cl\n0,3;-0,1\n", "has semicolons between its columns; write commas"),
        ("force_1.csv", "Cd,Cl\ninf,1\n", "'Cd' is inf"),
        ("force_1.csv", "0.3,0.1\n0.4,0.1\n", r"its header \(0.3\); put a line with the names"),
        ("force_1.csv", "speed,30\nangle,5\n", r"has numbers in the place of its header \(30\)"),
        ("force_1.csv", "", "has 0 rows"),
        ("force_1.csv", "L\n3\n", "'L' has another value in another file"),
    ],
)
def test_scalars_from_tables_beside_the_sample(tmp_path: Path, name: str, text: str, expected: object) -> None:
    write(tmp_path / "run_1", ".npy")
    (tmp_path / "run_1" / name).write_text(text, encoding="utf-8")
    (tmp_path / "run_1" / "params.json").write_text('{"L": 1}')
    files = {"volume_position": "xyz.npy"}
    kind = SourceDescription.model_validate(
        {"name": "own", "samples": "run_*", "files": files, "parameters": f"force_[0-9]*{Path(name).suffix}"}
    )
    tree = SampleTree(kind, tmp_path)
    sample = tree.discover()["run_1"]
    if isinstance(expected, dict):
        assert tree.load_parameters(sample) == {"L": 1} | expected
        return
    with pytest.raises(SampleError, match=str(expected)):
        tree.load_parameters(sample)
