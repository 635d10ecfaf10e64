"""Metadata of samples and batches: tables that are committed with a generation and joined on reading."""

from __future__ import annotations

import decimal
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from tests.helpers.long_tables import FEATURES as LONG_FEATURES
from tests.helpers.long_tables import write_long
from tests.helpers.matrices import FEATURES, SMALL, append, block
from zarr_core.__main__ import main
from zarr_core.errors import CorruptChunkError, MatrixError, UnknownFieldError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.matrix.store import sample_table as module
from zarr_core.matrix.store.head import HEAD
from zarr_core.matrix.verify import verify_matrix
from zarr_core.storage import Storage
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.history import commits
from zarr_core.warehouses import DuckDBWarehouse


@pytest.fixture
def matrix(tmp_path: Path) -> WideMatrix:
    made = WideMatrix.create(tmp_path / "m", FEATURES[:20], {"beta": "float32"}, **SMALL)
    append(made, "a", 3)
    append(made, "b", 2)
    return made


def ages(**by_sample: Any) -> pa.Table:
    return pa.table({"sample_id": list(by_sample), "age": list(by_sample.values())})


def types(matrix: WideMatrix) -> dict[str, str]:
    return {field.name: str(field.type) for field in matrix.samples().drop_columns(["sample_id", "batch_id"]).schema}


def test_tables_are_joined_in_the_requested_order(matrix: WideMatrix, caplog: pytest.LogCaptureFixture) -> None:
    done = matrix.set_metadata(ages(b_s1=7.0, a_s0=3.5, x=9.0, a_s1=None))
    assert (done.unknown, done.missing, done.retired) == (("x",), ("a_s2", "b_s0"), ())
    assert "rows of samples that the matrix does not hold, kept for later: 1, such as x" in caplog.text
    assert "samples without metadata: 2, such as a_s2, b_s0" in caplog.text
    matrix.append("b@0123456789ab", ["x"], {"beta": block(1, 20)})
    done = matrix.set_metadata(pa.table({"batch_id": ["b", "c"], "array": ["EPIC", "450K"]}), "batches")
    assert (done.unknown, done.missing) == (("c",), ("a",))
    for opened in (matrix, WideMatrix.open(matrix.url)):
        table = opened.samples(["array", "age"], ["x", "a_s2", "a_s0", "x"])
        assert table.to_pylist() == [
            {"sample_id": "x", "batch_id": "b@0123456789ab", "array": "EPIC", "age": 9.0},
            {"sample_id": "a_s2", "batch_id": "a", "array": None, "age": None},
            {"sample_id": "a_s0", "batch_id": "a", "array": None, "age": 3.5},
            {"sample_id": "x", "batch_id": "b@0123456789ab", "array": "EPIC", "age": 9.0},
        ]
        assert opened.samples()["sample_id"].to_pylist() == opened.sample_ids
        assert types(opened) == {"age": "double", "array": "string"}
    changes = [change for commit in commits(Storage(matrix.url), HEAD) for change in commit.changes]
    assert [(change.what, change.note) for change in changes if "metadata" in change.what] == [
        ("metadata of batches", "2 rows: array"),
        ("metadata of samples", "4 rows: age"),
    ]
    assert verify_matrix(matrix.url).problems == []


def test_a_generation_pins_its_metadata(matrix: WideMatrix) -> None:
    before = matrix.generation
    matrix.set_metadata(ages(a_s0=1))
    first = matrix.generation
    matrix.set_metadata(ages(a_s0=2))
    assert WideMatrix.open(matrix.url).samples(["age"], ["a_s0"])["age"].to_pylist() == [2]
    pinned = WideMatrix.open(matrix.url, first)
    assert pinned.samples(["age"], ["a_s0"])["age"].to_pylist() == [1]
    with pytest.raises(MatrixError, match="open it without generation= to change its metadata"):
        pinned.set_metadata(ages(a_s0=3))
    with pytest.raises(UnknownFieldError, match="no metadata 'age'; columns: none"):
        WideMatrix.open(matrix.url, before).samples(["age"])
    assert matrix.set_metadata(ages(a_s0=2)).generation == matrix.generation == first + 1  # equal: no commit
    assert len(Storage(matrix.url).list("metadata")) == 2
    assert collect_garbage(Storage(matrix.url), HEAD, 0).expired
    assert len(Storage(matrix.url).list("metadata")) == 1


def test_a_matrix_without_metadata_has_the_bytes_of_before(matrix: WideMatrix) -> None:
    head = json.loads(Storage(matrix.url).read("HEAD.json"))
    assert head["format_version"] == 1
    assert {"metadata", "origin", "retired"}.isdisjoint(head)
    assert all("source" not in batch for batch in head["batches"].values())
    assert matrix.samples().column_names == ["sample_id", "batch_id"]
    matrix.set_metadata(ages(a_s0=2))
    assert json.loads(Storage(matrix.url).read("HEAD.json"))["format_version"] == 3


VALUES = st.dictionaries(st.sampled_from(["a_s0", "a_s2", "b_s1", "x", "y"]), st.none() | st.integers(0, 9), min_size=1)


@settings(max_examples=examples(12), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["age", "dose"]), VALUES), max_size=4))
def test_merged_tables_equal_those_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, tables: list[tuple[str, dict[str, int | None]]]
) -> None:
    made = WideMatrix.create(tmp_path_factory.mktemp("m"), FEATURES[:4], {"beta": "float32"})
    append(made, "a", 3)
    append(made, "b", 2)
    expected: dict[str, dict[str, int | None]] = {}
    for column, values in tables:
        made.set_metadata(pa.table({"sample_id": list(values), column: pa.array(values.values(), pa.int64())}))
        expected.setdefault(column, {}).update(values)
    found = made.samples()
    assert set(found.column_names[2:]) == set(expected)
    for column, values in expected.items():
        assert found[column].to_pylist() == [values.get(sample) for sample in made.sample_ids]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "pandas"])
def test_tables_of_any_kind(matrix: WideMatrix, tmp_path: Path, kind: str) -> None:
    matrix.append("c", ["007", "7"], {"beta": block(2, 20)})
    frame = pd.DataFrame({"id": ["007", "7"], "sex": pd.Categorical(["F", "M"]), "age": [30, 40], "ok": [True, False]})
    file: Any = tmp_path / f"table.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pandas(frame), file)
    elif kind == "pandas":
        file = frame
    else:
        frame.to_csv(file, index=False, sep="\t" if kind == "tsv" else ",")
    matrix.set_metadata(file, key="id")
    assert matrix.samples(["sex", "age", "ok"], ["7", "007"]).drop_columns("batch_id").to_pylist() == [
        {"sample_id": "7", "sex": "M", "age": 40, "ok": False},
        {"sample_id": "007", "sex": "F", "age": 30, "ok": True},
    ]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_pyarrow_gets_tables_in_its_own_memory(
    matrix: WideMatrix, tmp_path: Path, given_to_pyarrow: list[Any], kind: str
) -> None:
    path = tmp_path / f"ages.{kind}"
    if kind == "csv":
        ages(a_s0=3.5).to_pandas().to_csv(path, index=False)
    else:
        pq.write_table(ages(a_s0=3.5), path)
    matrix.set_metadata(str(path))
    assert WideMatrix.open(matrix.url).samples(["age"], ["a_s0"])["age"].to_pylist() == [3.5]
    assert {type(file) for file in given_to_pyarrow} == {pa.BufferReader}


def test_empty_cells_and_na_are_null_in_columns_of_text_too(matrix: WideMatrix, tmp_path: Path) -> None:
    matrix.append("NA", ["NA", "null"], {"beta": block(2, 20)})
    file = tmp_path / "table.csv"
    file.write_text("sample_id,batch_id,age,tissue\nNA,NA,50,blood\nnull,NA,,\na_s0,a,NA,NA\n")
    assert matrix.set_metadata(file).unknown == ()
    assert matrix.samples(None, ["NA", "null", "a_s0"]).select(["age", "tissue"]).to_pylist() == [
        {"age": 50, "tissue": "blood"},
        {"age": None, "tissue": None},
        {"age": None, "tissue": None},
    ]


def test_an_index_without_a_name_is_no_column(matrix: WideMatrix, tmp_path: Path) -> None:
    table = pd.DataFrame({"sample_id": ["x", "a_s0", "a_s1", "y", "b_s0"], "age": [1, 40, 61, 2, 50]})
    chosen = table[table["age"] > 30]  # rows at equal distances would have a RangeIndex, which Arrow does not store
    chosen.to_parquet(tmp_path / "chosen.parquet")
    by_age = chosen.sort_values("age", ascending=False)
    for source in (by_age, tmp_path / "chosen.parquet", chosen.set_index("sample_id")):
        assert matrix.set_metadata(source, replace=True).columns == ("age",)
        assert matrix.samples(None, ["a_s0", "a_s1"])["age"].to_pylist() == [40, 61]


def test_digits_that_a_number_would_lose_are_text(
    matrix: WideMatrix, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "samples.csv"
    header = "sample_id,donor,barcode,dose,count"
    rows = ["a_s0,007,9007199254740993,0.5,9007199254740993", "a_s1,NA,1.5,9007199254740992,10"]
    file.write_text("\n".join([header, *rows]))
    matrix.set_metadata(file)
    assert types(matrix) == {"donor": "string", "barcode": "string", "dose": "double", "count": "int64"}
    assert matrix.samples(None, ["a_s0", "a_s1"]).drop_columns("batch_id").to_pylist() == [
        {"sample_id": "a_s0", "donor": "007", "barcode": "9007199254740993", "dose": 0.5, "count": 2**53 + 1},
        {"sample_id": "a_s1", "donor": None, "barcode": "1.5", "dose": 2.0**53, "count": 10},
    ]
    assert "column donor is text, as a number would not keep all digits of 007" in caplog.text


def test_decimals_are_numbers(matrix: WideMatrix) -> None:
    counts = pa.array([decimal.Decimal(2**53 + 1), None]).cast(pa.decimal128(38, 0))
    doses = pa.array([decimal.Decimal("0.1"), None]).cast(pa.decimal128(9, 4))
    matrix.set_metadata(pa.table({"sample_id": ["a_s0", "a_s1"], "count": counts, "dose": doses}))
    assert types(matrix) == {"count": "int64", "dose": "double"}
    found = matrix.samples(["count", "dose"], ["a_s0", "a_s1"])
    assert (found["count"].to_pylist(), found["dose"].to_pylist()) == ([2**53 + 1, None], [0.1, None])


def test_a_line_break_in_a_cell_begins_no_row(tmp_path: Path) -> None:
    """pyarrow parses blocks of 1 MiB, and by default ends each at a line break, also within a cell."""
    notes = ["first, line\nsecond, line"] * 40_000
    table = pd.DataFrame({"sample_id": [f"s{number}" for number in range(40_000)], "note": notes})
    table.to_csv(tmp_path / "notes.csv", index=False)
    assert module.read_table(tmp_path / "notes.csv", "samples").to_pandas().equals(table)


def test_what_contradicts_is_refused_and_named(matrix: WideMatrix, tmp_path: Path) -> None:
    matrix.set_metadata(pa.table({"sample_id": ["a_s0"], "age": [1], "barcode": [2**60 + 1]}))
    matrix.set_metadata(pa.table({"batch_id": ["a"], "array": ["EPIC"]}), "batches")
    generation = matrix.generation
    (tmp_path / "header.csv").write_text("sample_id,größe\na_s0,3\n", "latin-1")
    (tmp_path / "cells.csv").write_text("sample_id,stadt\na_s0,Köln\n", "latin-1")
    table = pa.table
    for wrong, options, message in (
        (table({"sample": ["a_s0"]}), {}, "no column 'sample_id' with the ids; its columns are sample"),
        (table({"sample_id": ["a_s0", "a_s0"]}), {}, "'a_s0' has two rows"),
        (table({"sample_id": ["a_s0", None]}), {}, "row 2 has no id"),
        (table({"sample_id": [1.5]}), {}, "ids must be strings, not double"),
        (table({"sample_id": ["a_s0"], "age": [[1]]}), {}, "column age is of type list"),
        (
            table({"sample_id": ["a_s0"], "age": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}),
            {},
            "column age is of type month_day_nano",
        ),
        (table({"sample_id": ["a_s0"], "age": [decimal.Decimal(10**20)]}), {}, "column age .* beyond int64"),
        (
            table({"sample_id": ["a_s0", "a_s1"], "donor": [decimal.Decimal(f"{2**53 + n}.5") for n in (0, 1)]}),
            {},
            f"column donor .*float64 rounds {2**53}.5; store it as text",
        ),
        (pd.DataFrame({"sample_id": ["a_s0"], "age": pd.cut([7], [0, 9])}), {}, "column age is of type dictionary"),
        (table({"sample_id": ["a_s0"], "age": ["old"]}), {}, "another type than before"),
        (table({"sample_id": ["a_s0"], "barcode": [1.5]}), {}, "another type than before .*1152921504606846977"),
        (table({"sample_id": ["a_s0"], "array": ["27K"]}), {}, "'array' is already in the table of batches"),
        (table({"sample_id": ["b_s0"], "batch_id": ["a"]}), {}, "is in batch 'b', but batch_id in the metadata is 'a'"),
        (table({"sample_id": ["b_s0"], "id": ["a"]}), {"key": "id"}, "the column 'sample_id' is not that of the ids"),
        (table({"sample_id": ["a_s0"]}), {"kind": "donors"}, "kind must be"),
        (tmp_path / "none.csv", {}, "cannot be read"),
        (tmp_path / "table.xlsx", {}, "expected a .csv, .tsv or .parquet file"),
        ([1], {}, "must be a path or a table"),
        (pd.DataFrame({"sample_id": ["a_s0", "a_s1"], "age": [34, "old"]}), {}, "several types: .* column age"),
        (tmp_path / "header.csv", {}, "header.csv cannot be read: 'utf-8' codec"),
        (tmp_path / "cells.csv", {}, "cells.csv cannot be read: 'utf-8' codec"),
    ):
        with pytest.raises(MatrixError, match=message):
            matrix.set_metadata(wrong, **options)
    assert matrix.refresh().generation == generation
    matrix.set_metadata(table({"sample_id": ["a_s0"], "age": ["old"], "batch_id": ["a"]}), replace=True)
    assert types(matrix) == {"array": "string", "age": "string"}
    with pytest.raises(UnknownFieldError, match="no sample 'x'"):
        matrix.samples(None, ["x"])


@pytest.mark.parametrize("cell", ['"bone', '"bone" of a donor'])
def test_a_quotation_mark_that_is_not_closed_is_refused(cell: str, matrix: WideMatrix, tmp_path: Path) -> None:
    """Otherwise the rows below it are text of its cell, and their samples have no metadata."""
    file = tmp_path / "samples.csv"
    file.write_text(f'sample_id,tissue\na_s0,"whole ""blood"""\na_s1,5" of skin\na_s2,{cell}\nb_s0,brain\n')
    with pytest.raises(MatrixError, match=r"line \d: .* is a quotation mark not closed\?"):
        matrix.set_metadata(file)
    long = file.read_text().replace(cell, '"' + 140_000 * "x" + '"')
    file.write_text(file.read_text().replace(cell, "bone"))
    matrix.set_metadata(file)
    assert matrix.samples()["tissue"].to_pylist() == ['whole "blood"', '5" of skin', "bone", "brain", None]
    file.write_text(long)
    with pytest.raises(MatrixError, match=r"not closed, or is the cell right\? .* write the table as .parquet"):
        matrix.set_metadata(file)


def test_a_retired_sample_has_no_row(matrix: WideMatrix) -> None:
    matrix.set_metadata(ages(a_s0=1, a_s1=2, b_s0=3))
    matrix.retire(["a_s1"], ["b"])
    (name,) = (record.path for record in matrix._state.metadata.values())
    assert pq.read_table(f"{matrix.url}/{name}")["sample_id"].to_pylist() == ["a_s0"]
    assert matrix.set_metadata(ages(a_s1=5, a_s2=4)).retired == ("a_s1",)
    (name,) = (record.path for record in matrix._state.metadata.values())
    assert pq.read_table(f"{matrix.url}/{name}")["sample_id"].to_pylist() == ["a_s0", "a_s2"]
    matrix.forget_retired()
    tables = [pq.read_table(file) for file in Path(matrix.url, "metadata").iterdir()]
    assert len(tables) == 2
    assert not any("a_s1" in table["sample_id"].to_pylist() for table in tables)


def test_a_table_that_is_overtaken_is_merged_again(matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    original, others = module._write, [ages(a_s0=1)]

    def write(*arguments: Any) -> Any:
        if others:
            WideMatrix.open(matrix.url).set_metadata(others.pop())
        return original(*arguments)

    monkeypatch.setattr(module, "_write", write)
    matrix.set_metadata(ages(a_s1=2))
    assert matrix.samples(["age"])["age"].to_pylist() == [1, 2, None, None, None]


def test_damage_is_detected(matrix: WideMatrix) -> None:
    matrix.set_metadata(ages(a_s0=1))
    (record,) = matrix._state.metadata.values()
    path = Path(matrix.url, record.path)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CorruptChunkError, match="not that which was committed"):
        matrix.samples()
    assert "not that which was committed" in verify_matrix(matrix.url).problems[0]
    with pytest.raises(CorruptChunkError, match="not that which was committed"):
        matrix.reindex(f"{matrix.url}_copy", matrix.feature_ids)
    path.unlink()
    with pytest.raises(CorruptChunkError, match="is missing"):
        matrix.samples()


def test_a_copy_on_other_features_has_the_metadata(matrix: WideMatrix, tmp_path: Path) -> None:
    matrix.set_metadata(ages(a_s0=1))
    copy = matrix.reindex(tmp_path / "copy", FEATURES[:25])
    assert WideMatrix.open(copy.url).samples().equals(matrix.samples())


def test_loaded_with_the_cells(tmp_path: Path) -> None:
    write_long(tmp_path / "long")
    matrix = WideMatrix.create(tmp_path / "m", LONG_FEATURES)
    matrix.set_metadata(ages(s1=40))
    loader = MatrixLoader(DuckDBWarehouse(f"{tmp_path}/long/*/*.parquet"), matrix)
    cells, table = loader.load(["s3", "s1"], metadata=True)
    assert cells.shape == (2, len(LONG_FEATURES))
    assert table.select(["sample_id", "age"]).to_pylist() == [
        {"sample_id": "s3", "age": None},
        {"sample_id": "s1", "age": 40},
    ]


def test_the_command(matrix: WideMatrix, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "samples.csv"
    file.write_text("sample_id,batch_id,age\na_s0,a,3.5\nx,b,\n")
    assert main(["matrix", "metadata", matrix.url, str(file)]) == 0
    text = capsys.readouterr().out
    assert "metadata of 2 samples: age\n  rows of samples that the matrix does not hold, kept for later: 1" in text
    assert main(["matrix", "metadata", matrix.url, "--columns", "age"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["sample_id  batch_id  age", "a_s0              a  3.5"]
    assert main(["matrix", "metadata", matrix.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"][0] == {"sample_id": "a_s0", "batch_id": "a", "age": 3.5}
    assert main(["matrix", "metadata", matrix.url, "--replace"]) == 2
    assert main(["matrix", "metadata", matrix.url, str(file), "--columns", "age"]) == 2
