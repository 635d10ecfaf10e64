"""Warehouses of Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest

from tests.helpers.long_tables import FEATURES, write_long
from tests.helpers.warehouse_kinds import assert_equals_pandas, wide
from zarr_core.errors import WarehouseError
from zarr_core.matrix.ingest.scatter import WideBlock, scatter
from zarr_core.warehouses import DuckDBWarehouse
from zarr_core.warehouses.batches import list_batches


@pytest.mark.slow
def test_files_in_a_bucket(long: Path, s3_root: str) -> None:
    import s3fs

    s3fs.S3FileSystem().put(f"{long}/", f"{s3_root}/long/", recursive=True)
    assert_equals_pandas(DuckDBWarehouse(f"{s3_root}/long/*/*.parquet"), long, FEATURES)


def test_files_may_store_a_column_as_different_types(tmp_path: Path) -> None:
    """Integers or nulls in one file must not round the values of other files, or parse their texts as numbers."""
    stored: list[tuple[str, list[Any], list[Any]]] = [
        ("a", [1, 2], [1, 0]),
        ("b", ["007", "8"], [0.25, 0.75]),
        ("b", [9, 10], [None, None]),
    ]
    for number, (batch_id, samples, betas) in enumerate(stored):
        folder = tmp_path / f"batch_id={batch_id}"
        folder.mkdir(exist_ok=True)
        rows = pd.DataFrame({"sample_id": samples, "cpg_id": ["cg1", "cg1"], "beta": betas, "coverage": [3, 4]})
        rows.to_parquet(folder / f"{number}.parquet")
    warehouse = DuckDBWarehouse(f"{tmp_path}/*/*.parquet")
    samples = {"a": ["1", "2"], "b": ["007", "10", "8", "9"]}
    assert warehouse.samples(["a", "b"]) == samples
    assert warehouse.batches_of(["007", "7", "9"]) == {"007": ["b"], "9": ["b"]}
    with warehouse.unload(samples, ["beta"], ["cg1"]) as unloaded:
        for batch_id, betas in (("a", [1, 0]), ("b", [0.25, np.nan, 0.75, np.nan])):
            got = wide(unloaded, batch_id, samples[batch_id], "beta", ["cg1"]).values[:, 0]
            np.testing.assert_array_equal(got, betas)


@pytest.mark.parametrize("column", ["batch_id", "sample_id", "cpg_id"])
def test_ids_whose_text_depends_on_the_file_are_refused(tmp_path: Path, column: str) -> None:
    """DuckDB makes 7 of one file 7.0 where another file has 7.5, and rounds 2**53 + 1."""
    rows = pd.DataFrame({"batch_id": [1], "sample_id": [2], "cpg_id": [3], "beta": [0.5], "coverage": [1]})
    rows.to_parquet(tmp_path / "whole.parquet")
    rows.astype({column: float}).to_parquet(tmp_path / "float.parquet")
    assert len(DuckDBWarehouse(f"{tmp_path}/float.parquet").batch_ids()) == 1
    with pytest.raises(WarehouseError, match=f"column {column} is BIGINT and DOUBLE in different files"):
        DuckDBWarehouse(f"{tmp_path}/*.parquet").batch_ids()


def test_whole_numbers_are_not_rounded_to_the_float32_of_other_files(tmp_path: Path) -> None:
    for number, values in enumerate([pd.array([16777217], "int64"), pd.array([0.5], "float32"), None]):
        rows = pd.DataFrame({"batch_id": ["b"], "sample_id": ["s"], "cpg_id": [f"cg{number}"], "coverage": [1]})
        if values is not None:
            rows["beta"] = values
        rows.to_parquet(tmp_path / f"{number}.parquet")
    warehouse, axis = DuckDBWarehouse(f"{tmp_path}/*.parquet"), ["cg0", "cg1", "cg2"]
    with warehouse.unload({"b": ["s"]}, ["beta"], axis) as unloaded:
        block = WideBlock("b", "beta", ["s"], axis, "float64")
        found = scatter(lambda: unloaded.rows("b", "beta"), block)
    np.testing.assert_array_equal(found.values, [[16777217, 0.5, np.nan]])
    assert (found.rows, found.without_value) == (3, 1)


@pytest.mark.parametrize("inside", ["b", "c", None])
def test_a_folder_that_names_another_batch_than_its_file_is_refused(inside: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "batch_id=b"
    folder.mkdir()
    ids = {"batch_id": ["b", inside], "sample_id": ["s", "s"], "cpg_id": ["cg1", "cg2"]}
    pd.DataFrame(ids | {"beta": [0.5, 0.25], "coverage": [1, 2]}).to_parquet(folder / "1.parquet")
    warehouse = DuckDBWarehouse(f"{tmp_path}/*/*.parquet")
    unload = warehouse.unload({"b": ["s"]}, ["beta"], ["cg1", "cg2"])
    if inside == "b":
        with unload as unloaded:
            np.testing.assert_array_equal(wide(unloaded, "b", ["s"], "beta", ["cg1", "cg2"]).values, [[0.5, 0.25]])
    else:
        with pytest.raises(WarehouseError, match=f"batch_id is {inside!r} in the file, and 'b' by its folder"), unload:
            pass


def test_files_without_a_value_column_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = pd.DataFrame({"batch_id": ["a"], "sample_id": ["s"], "cpg_id": ["cg1"], "beta": [0.5], "coverage": [1]})
    rows.to_parquet(tmp_path / "a[1].parquet")
    renamed = rows.assign(batch_id="b", sample_id="t").rename(columns={"beta": "methylation", "coverage": "Coverage"})
    renamed.to_parquet(tmp_path / "b.parquet")
    warehouse = DuckDBWarehouse(f"{tmp_path}/*.parquet")
    with warehouse.unload({"b": ["t"]}, ["beta", "coverage"], ["cg1"]) as unloaded:
        assert np.isnan(wide(unloaded, "b", ["t"], "beta", ["cg1"]).values)
        assert wide(unloaded, "b", ["t"], "coverage", ["cg1"]).values == 1  # the case of a name does not matter
    (warning,) = caplog.messages
    assert "1 of 2 files have no column beta" in warning
    assert warning.endswith("b.parquet")


def test_batch_ids_with_special_characters_and_files_without_folders(tmp_path: Path) -> None:
    names = ["a b", "x/y", "a+b", "p\u00fc", "50%"]
    for number, name in enumerate(names):
        folder = tmp_path / "long" / f"batch_id={quote(name, safe='+')}"
        folder.mkdir(parents=True)
        rows = {"sample_id": [f"s{number}"], "cpg_id": ["cg1"], "beta": [0.5], "coverage": [number]}
        pd.DataFrame(rows).to_parquet(folder / "rows.parquet")
    pd.DataFrame(
        {"batch_id": ["other"], "sample_id": ["t"], "cpg_id": ["cg1"], "beta": [1.0], "coverage": [9]}
    ).to_parquet(tmp_path / "other.parquet")
    folders = DuckDBWarehouse(f"{tmp_path}/long/*/*.parquet")
    assert folders.samples(names) == {name: [f"s{number}"] for number, name in enumerate(names)}
    assert folders.samples(["absent"]) == {}
    with folders.unload(folders.samples(names), ["coverage"], ["cg1"]) as unloaded:
        assert [wide(unloaded, n, [f"s{i}"], "coverage", ["cg1"]).values[0, 0] for i, n in enumerate(names)] == [
            *range(5)
        ]
    column = DuckDBWarehouse(f"{tmp_path}/other.parquet")
    assert column.samples(["other", "absent"]) == {"other": ["t"]}
    with column.unload({"other": ["t"]}, ["coverage"], ["cg1"]) as unloaded:
        assert wide(unloaded, "other", ["t"], "coverage", ["cg1"]).values.tolist() == [[9]]


def test_folders_whose_names_are_glob_patterns(tmp_path: Path) -> None:
    names = {"a1": "s1", "a[1]": "s2", "a*": "s3"}
    for name, sample in names.items():
        (tmp_path / f"batch_id={name}").mkdir()
        rows = {"sample_id": [sample], "cpg_id": ["cg1"], "beta": [0.5], "coverage": [1]}
        pd.DataFrame(rows).to_parquet(tmp_path / f"batch_id={name}" / "rows.parquet")
    warehouse = DuckDBWarehouse(f"{tmp_path}/*/*.parquet")
    assert sorted(warehouse.batch_ids()) == sorted(names)
    for name, sample in names.items():
        assert warehouse.samples([name]) == {name: [sample]}


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(WarehouseError, match="no file matches"):
        DuckDBWarehouse(f"{tmp_path}/*.parquet").batch_ids()


def test_links_to_folders_and_files_are_followed(tmp_path: Path, long: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "batch_id=b-1").symlink_to(long / "batch_id=b-1")
    (linked / "batch_id=001").mkdir()
    (linked / "batch_id=001" / "rows.parquet").symlink_to(long / "batch_id=001" / "part-0.parquet")
    warehouse = DuckDBWarehouse(f"{linked}/*/*.parquet")
    assert warehouse.batch_ids() == list(list_batches(warehouse)) == ["001", "b-1"]
    assert_equals_pandas(warehouse, long, FEATURES)
    sizes = {name: batch.n_bytes for name, batch in list_batches(DuckDBWarehouse(f"{long}/*/*.parquet")).items()}
    assert {name: batch.n_bytes for name, batch in list_batches(warehouse).items()} == sizes


@pytest.mark.parametrize("link", ["batch_id=lost", "batch_id=b-1/lost.parquet"])
def test_a_link_without_a_target_is_named(long: Path, link: str) -> None:
    (long / link).symlink_to(long / "nothing")
    warehouse = DuckDBWarehouse(f"{long}/*/*.parquet")
    for query in (warehouse.batch_ids, lambda: list_batches(warehouse)):
        with pytest.raises(WarehouseError, match=rf"{link} .*cannot be read.*: No such file or directory"):
            query()


def test_patterns_of_any_depth(tmp_path: Path, long: Path) -> None:
    elsewhere = tmp_path / "a" / "b" / "elsewhere"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.symlink_to(long)
    assert DuckDBWarehouse(f"{tmp_path}/a/**/*.parquet").batch_ids() == ["001", "b-1"]


def test_a_damaged_file_is_named(long: Path) -> None:
    file = next((long / "batch_id=b-1").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(WarehouseError, match=r"b-1/part-0.parquet"):
        DuckDBWarehouse(f"{long}/*/*.parquet").samples(["b-1"])


def test_only_the_files_of_the_batch_are_read(long: Path) -> None:
    damaged = long / "batch_id=b-1" / "part-0.parquet"  # not the first, which the columns are taken from
    damaged.write_bytes(b"no Parquet" * 10)
    with DuckDBWarehouse(f"{long}/*/*.parquet").unload({"001": ["s2"]}, ["beta"], FEATURES) as unloaded:
        assert wide(unloaded, "001", ["s2"], "beta", FEATURES).rows


@pytest.mark.parametrize("what", ["replaced", "removed"])
def test_files_that_change_while_their_rows_are_read(tmp_path: Path, what: str) -> None:
    """Values of several tables are read one after another: all must come from the files that were listed."""
    warehouse = DuckDBWarehouse(write_long(tmp_path / "long"))
    batches = warehouse.samples(["b-1"])
    with warehouse.unload(batches, ["beta", "coverage"], FEATURES) as unloaded:
        assert sum(len(rows) for rows in unloaded.rows("b-1", "beta"))
        rows = unloaded.rows("b-1", "coverage")
        next(rows)
        file = tmp_path / "long" / "batch_id=b-1" / "part-0.parquet"
        if what == "replaced":
            table = pd.read_parquet(file)
            file.unlink()
            table.iloc[1:].to_parquet(file)
        else:
            file.unlink()
        with pytest.raises(WarehouseError, match=rf"part-0.parquet was {what} while its rows were read"):
            list(rows)
