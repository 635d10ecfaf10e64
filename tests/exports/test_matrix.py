"""A wide matrix as .npy, Parquet and AnnData, and back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.helpers.faults import Kill, is_killed
from tests.helpers.matrices import FEATURES, SMALL, append
from zarr_core.__main__ import main
from zarr_core.errors import CorruptChunkError, UnknownFieldError, ZarrCoreError
from zarr_core.exports import export_h5ad, export_npy, export_parquet
from zarr_core.exports.matrix import MatrixRows
from zarr_core.matrix import WideMatrix

CHOSEN = {"sample_ids": ["b_s2", "a_s0", "b_s0", "a_s4"], "feature_ids": [FEATURES[70], FEATURES[3]]}


@pytest.fixture
def matrix(tmp_path: Path) -> WideMatrix:
    matrix = WideMatrix.create(tmp_path / "matrix", FEATURES, {"beta": "float32", "coverage": "float64"}, **SMALL)
    append(matrix, "a", 5)
    append(matrix, "b", 3, seed=9)
    return matrix


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.datasets.memory_map._BLOCK_BYTES", 3 * 100 * 8)


@pytest.fixture(params=[{}, CHOSEN], ids=["whole", "part"])
def part(request: pytest.FixtureRequest) -> dict[str, list[str]]:
    return request.param


@pytest.fixture
def rows(matrix: WideMatrix, small_blocks: None, part: dict[str, list[str]]) -> MatrixRows:
    return MatrixRows(matrix, **part)


def test_npy(matrix: WideMatrix, rows: MatrixRows, part: dict[str, list[str]], tmp_path: Path) -> None:
    out = export_npy(rows, tmp_path / "out")
    for value in ("beta", "coverage"):
        mapped = np.load(out / f"{value}.npy", mmap_mode="r")
        np.testing.assert_array_equal(mapped, matrix.read(rows.sample_ids, rows.feature_ids, value))
        assert mapped.dtype == matrix.values[value]
    assert (out / "samples.txt").read_text().split() == rows.sample_ids
    assert (out / "features.txt").read_text().split() == list(rows.features) == part.get("feature_ids", FEATURES)


def test_npy_deletes_tables_of_an_earlier_export_with_other_names(matrix: WideMatrix, tmp_path: Path) -> None:
    def tables() -> list[str]:
        return sorted(path.name for path in out.glob("*.npy"))

    out = export_npy(MatrixRows(matrix), tmp_path / "out")
    np.save(out / "mine.npy", np.zeros(3))
    (out / "metadata.parquet").touch()
    export_npy(MatrixRows(matrix, ["beta"]), out)  # the same rows and columns
    assert tables() == ["beta.npy", "coverage.npy", "mine.npy"]
    assert not (out / "metadata.parquet").exists()
    export_npy(MatrixRows(matrix, ["beta"], matrix.sample_ids[::-1]), out)
    assert tables() == ["beta.npy", "mine.npy"]
    assert not (out / "coverage.npy.json").exists()
    export_npy(MatrixRows(matrix, ["coverage"], matrix.sample_ids[::-1], FEATURES[:-1]), out)
    assert tables() == ["coverage.npy", "mine.npy"]


def test_parquet(matrix: WideMatrix, rows: MatrixRows, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra exports")
    out = export_parquet(rows, tmp_path / "out")
    table = pq.read_table(out / "samples.parquet")
    assert table.column_names == ["sample", "batch", "beta", "coverage"]
    assert table["sample"].to_pylist() == rows.sample_ids
    assert table["batch"].to_pylist() == [sample_id[0] for sample_id in rows.sample_ids]
    for value in ("beta", "coverage"):
        flat = table[value].combine_chunks().flatten().to_numpy()
        np.testing.assert_array_equal(flat.reshape(rows.shape), matrix.read(rows.sample_ids, rows.feature_ids, value))
        assert (flat.dtype, table[value].null_count) == (np.dtype(matrix.values[value]), 0)
    assert pq.read_table(out / "features.parquet")["feature"].to_pylist() == list(rows.features)
    assert json.loads(table.schema.metadata[b"zarr_core"])["generation"] == 3


def test_h5ad(matrix: WideMatrix, rows: MatrixRows, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="needs the extra exports")
    out = export_h5ad(rows, tmp_path / "betas.h5ad")
    with h5py.File(out) as file:
        assert {**file.attrs} == {"encoding-type": "anndata", "encoding-version": "0.1.0"}
        for name, value in {"X": "beta", "layers/coverage": "coverage"}.items():
            np.testing.assert_array_equal(file[name][:], matrix.read(rows.sample_ids, rows.feature_ids, value))
            assert (file[name].dtype, file[name].attrs["encoding-type"]) == (matrix.values[value], "array")
        assert file["obs/_index"].asstr()[:].tolist() == rows.sample_ids
        assert file["obs/batch"].asstr()[:].tolist() == rows.batches
        assert file["var/_index"].asstr()[:].tolist() == list(rows.features)
        assert [*file["obs"].attrs["column-order"]] == ["batch"]


def test_anndata_reads_an_export(matrix: WideMatrix, tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata", reason="wants an older pandas than the pins: make test-extras")
    out = export_h5ad(MatrixRows(matrix), tmp_path / "betas.h5ad")
    for backed in (None, "r"):
        found = anndata.read_h5ad(out, backed=backed)
        np.testing.assert_array_equal(np.asarray(found.X[:]), matrix.read(matrix.sample_ids))
        np.testing.assert_array_equal(
            np.asarray(found.layers["coverage"][:]), matrix.read(matrix.sample_ids, value="coverage")
        )
        assert found.obs_names.tolist() == matrix.sample_ids
        assert found.var_names.tolist() == FEATURES
        assert found.obs["batch"].tolist() == ["a"] * 5 + ["b"] * 3
        assert found.uns["zarr_core"]["generation"] == "3"


# By column of a table of metadata: the values of the samples a_s0 to a_s4. Names of ours, of HDF5 and of AnnData.
METADATA: dict[str, list] = {
    "age": [61, None, 40, 7, 0],
    "dose": [0.5, None, 1.5, 2.0, 2.5],
    "purity": [0.5, 1.0, 1.5, 2.0, 2.5],
    "batch": [3, 1, 4, 1, 5],
    "smoker": [True, None, False, True, True],
    "coverage": [True, False, True, False, True],
    "tissue": ["blood", None, "brain", "blood", "Ä"],
    "CD4/CD8": ["x", "y", "z", "x", "y"],
    "CD4_CD8": [None, None, None, None, None],
}


@pytest.fixture
def described(matrix: WideMatrix) -> WideMatrix:
    ids = [f"a_s{n}" for n in range(5)]
    columns = METADATA | {"purity": pa.array(METADATA["purity"]).cast(pa.float16())}
    matrix.set_metadata(pa.table({"sample_id": ids, **columns}))
    matrix.set_metadata(pa.table({"batch_id": ["a", "b"], "platform": ["450K", "EPIC"]}), "batches")
    return matrix


def expected(rows: MatrixRows, column: str) -> list:
    """Values of a column of the metadata in the order of the rows; the samples of batch b have none."""
    return [METADATA[column][int(name[-1])] if name.startswith("a") else None for name in rows.sample_ids]


@pytest.mark.usefixtures("small_blocks")
def test_metadata_leave_with_the_cells(described: WideMatrix, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra exports")
    rows = MatrixRows(described, **CHOSEN)
    cells = pq.read_table(export_parquet(rows, tmp_path / "out") / "samples.parquet")
    assert cells.column_names[-2:] == ["beta", "coverage"]
    beside = pq.read_table(export_npy(rows, tmp_path / "npy") / "metadata.parquet")
    assert beside["sample"].to_pylist() == rows.sample_ids
    for table, taken in ((cells, {"batch", "coverage"}), (beside, {"batch"})):
        assert table["batch"].to_pylist() == rows.batches
        for column in METADATA:
            found = table[f"metadata_{column}" if column in taken else column]
            assert found.to_pylist() == expected(rows, column)
            assert found.type == described.samples()[column].type
        assert table["platform"].to_pylist() == ["EPIC", "450K", "EPIC", "450K"]


def test_a_killed_export_leaves_no_metadata_of_other_samples(described: WideMatrix, tmp_path: Path) -> None:
    out = export_npy(MatrixRows(described), tmp_path / "out")
    others = MatrixRows(described, sample_ids=["b_s2", "a_s0"])
    assert is_killed(Kill("rename", "/metadata.parquet$"), export_npy, others, out)
    assert (out / "samples.txt").read_text().split() == others.sample_ids
    assert len(np.load(out / "beta.npy")) == 2
    assert not (out / "metadata.parquet").exists()
    export_npy(others, out)
    assert pa.parquet.read_table(out / "metadata.parquet")["sample"].to_pylist() == others.sample_ids


def test_durations_in_h5ad_have_a_unit(matrix: WideMatrix, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="needs the extra exports")
    waited = pa.array([90, None], pa.duration("s"))
    matrix.set_metadata(pa.table({"sample_id": ["a_s0", "a_s1"], "waited": waited}))
    with h5py.File(export_h5ad(MatrixRows(matrix, sample_ids=["a_s1", "a_s0"]), tmp_path / "out.h5ad")) as file:
        assert file["obs/waited/categories"].asstr()[:].tolist() == ["90 s"]
        assert file["obs/waited/codes"][:].tolist() == [-1, 0]


def test_anndata_reads_metadata(described: WideMatrix, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="needs the extra exports")
    rows = MatrixRows(described, sample_ids=described.sample_ids[:5][::-1])
    out = export_h5ad(rows, tmp_path / "betas.h5ad")
    kinds = {
        "age": "nullable-integer",
        "dose": "array",
        "purity": "array",
        "metadata_batch": "array",
        "smoker": "nullable-boolean",
        "coverage": "array",
        "tissue": "categorical",
        "metadata_CD4_CD8": "categorical",
        "CD4_CD8": "categorical",
        "platform": "categorical",
    }
    with h5py.File(out) as file:
        assert {name: file["obs"][name].attrs["encoding-type"] for name in kinds} == kinds
        assert {*file["obs"].attrs["column-order"]} == {"batch", *kinds}
        assert file["obs/age/mask"][:].tolist() == [value is None for value in expected(rows, "age")]
        assert file["obs/purity"].dtype == "float32"
        assert file["obs/tissue/codes"][:].tolist() == [2, 0, 1, -1, 0]
        assert file["obs/tissue/categories"].asstr()[:].tolist() == ["blood", "brain", "Ä"]
    anndata = pytest.importorskip("anndata", reason="wants an older pandas than the pins: make test-extras")
    obs = anndata.read_h5ad(out).obs
    # Text is "object" in pandas 2 and "str" in pandas 3.
    assert obs.dtypes.astype(str).replace("str", "object").to_dict() == {
        "batch": "object",
        "platform": "category",
        "age": "Int64",
        "dose": "float64",
        "purity": "float32",
        "metadata_batch": "int64",
        "smoker": "boolean",
        "coverage": "bool",
        "tissue": "category",
        "metadata_CD4_CD8": "category",
        "CD4_CD8": "category",
    }
    for column in METADATA:
        name = {"batch": "metadata_batch", "CD4/CD8": "metadata_CD4_CD8"}.get(column, column)
        assert obs[name].astype(object).where(obs[name].notna(), None).tolist() == expected(rows, column)


def test_a_url_is_refused_before_anything_is_written(
    matrix: WideMatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for name in ("npy", "parquet", "h5ad"):
        assert main(["export", name, matrix.url, "s3://bucket/x.h5ad", "--quiet"]) == 1
        assert "s3://bucket/x.h5ad: a local path is needed" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
    out = export_npy(MatrixRows(matrix), f"file://{tmp_path}/out")
    assert out == tmp_path / "out"
    assert (out / "beta.npy").exists()


@pytest.mark.parametrize(("export", "file"), [(export_parquet, "samples.parquet"), (export_npy, "samples.txt")])
def test_the_next_export_deletes_what_a_killed_one_left(
    matrix: WideMatrix, tmp_path: Path, export: Callable[..., Path], file: str
) -> None:
    out = tmp_path / "out"
    assert is_killed(Kill("rename", f"/{file}$"), export, MatrixRows(matrix), out)
    assert [path for path in out.iterdir() if path.suffix == ".tmp"]
    export(MatrixRows(matrix), out)
    assert not [path for path in out.iterdir() if path.suffix == ".tmp"]


@pytest.mark.parametrize("export", [export_npy, export_parquet])
def test_a_failed_export_leaves_no_cells_under_names_of_others(
    matrix: WideMatrix, tmp_path: Path, export: Callable[..., Path]
) -> None:
    out = export(MatrixRows(matrix, feature_ids=FEATURES[:5]), tmp_path / "out")
    shutil.rmtree(tmp_path / "matrix" / "coverage.zarr" / "c")
    with pytest.raises(CorruptChunkError):
        export(MatrixRows(WideMatrix.open(matrix.url), feature_ids=FEATURES[5:10]), out)
    if export is export_parquet:
        pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra exports")
        assert pq.read_table(out / "features.parquet")["feature"].to_pylist() == FEATURES[:5]
    else:
        cells = matrix.read(matrix.sample_ids, (out / "features.txt").read_text().split(), "beta")
        np.testing.assert_array_equal(np.load(out / "beta.npy"), cells)
        assert not (out / "coverage.npy").exists()


@pytest.mark.parametrize("file", ["samples", "features"])
def test_a_killed_export_leaves_no_lists_beside_names_of_others(matrix: WideMatrix, tmp_path: Path, file: str) -> None:
    out = export_parquet(MatrixRows(matrix, feature_ids=FEATURES[:5]), tmp_path / "out")
    others = MatrixRows(matrix, feature_ids=FEATURES[5:10])
    assert is_killed(Kill("rename", f"/{file}.parquet$"), export_parquet, others, out)
    assert not (out / "samples.parquet").exists()
    export_parquet(others, out)
    cells = pa.parquet.read_table(out / "samples.parquet")["beta"].combine_chunks().flatten().to_numpy()
    names = pa.parquet.read_table(out / "features.parquet")["feature"].to_pylist()
    assert names == FEATURES[5:10]
    np.testing.assert_array_equal(cells.reshape(-1, 5), matrix.read(matrix.sample_ids, names, "beta"))


def test_integer_features(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "matrix", np.arange(100) * 3, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 2)
    out = export_npy(MatrixRows(matrix, feature_ids=[9, 3]), tmp_path / "out")
    assert (out / "features.txt").read_text() == "9\n3\n"
    pytest.importorskip("h5py", reason="needs the extra exports")
    export_h5ad(MatrixRows(matrix), tmp_path / "betas.h5ad")


@pytest.mark.parametrize(("sample", "feature"), [("s\n1", "cg1"), ("s1", "cg\r1")])
def test_a_name_with_a_line_break_is_no_line_of_a_file_of_names(sample: str, feature: str, tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "matrix", [feature, "cg2"], {"beta": "float32"})
    matrix.append("a", [sample, "s2"], {"beta": np.zeros((2, 2), np.float32)})
    with pytest.raises(ZarrCoreError, match="has a line break, so it is not a line of a text file; export to parquet"):
        export_npy(MatrixRows(matrix), tmp_path / "npy")
    assert not list(tmp_path.glob("npy/*.npy"))


def test_wrong_selections_and_failures(matrix: WideMatrix, tmp_path: Path) -> None:
    with pytest.raises(UnknownFieldError, match="no sample 'x'"):
        MatrixRows(matrix, sample_ids=["x"])
    with pytest.raises(UnknownFieldError, match="no value table 'gamma'"):
        MatrixRows(matrix, ["gamma"])
    with pytest.raises(ZarrCoreError, match="names a sample twice"):
        MatrixRows(matrix, sample_ids=["a_s1", "a_s1"])
    with pytest.raises(ZarrCoreError, match="no samples"):
        MatrixRows(matrix, sample_ids=[])
    pytest.importorskip("h5py", reason="needs the extra exports")
    rows = MatrixRows(matrix)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ZarrCoreError, match="folder is a folder; expected the name of a file"):
        export_h5ad(rows, tmp_path / "folder")
    shard = next((tmp_path / "matrix" / "beta.zarr" / "c").rglob("*/0"))
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(CorruptChunkError):
        export_h5ad(rows, tmp_path / "out" / "betas.h5ad")
    assert list((tmp_path / "out").iterdir()) == []


def test_command_line(matrix: WideMatrix, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "features.txt").write_text(f"{FEATURES[7]}\n{FEATURES[2]}\n")
    options = ["--values", "beta", "--features", str(tmp_path / "features.txt"), "--quiet", "--json"]
    assert main(["export", "npy", matrix.url, str(tmp_path / "out"), *options]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "output": str(tmp_path / "out"),
        "generation": 3,
        "samples": 8,
        "features": 2,
        "values": ["beta"],
    }
    assert sorted(path.name for path in (tmp_path / "out").glob("*.npy")) == ["beta.npy"]
    assert main(["export", "npy", matrix.url, str(tmp_path / "other"), "--values", "gamma"]) == 1
    assert "no value table 'gamma'" in capsys.readouterr().err
