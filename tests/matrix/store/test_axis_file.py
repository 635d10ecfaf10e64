"""Lists of features as people have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from zarr_core.errors import MatrixError
from zarr_core.matrix.store.axis_file import read_axis_ids, read_feature_ids, read_manifest


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("probes.txt", "cg1 cg2\ncg3\n"),
        ("probes.txt", "\ufeffcg1\r\ncg2\r\ncg3"),
        ("probes.csv", "probe_id,chr\ncg1,1\ncg2,1\ncg3,X\n"),
        ("probes.csv", '"","Name"\n"1","cg1"\n"2","cg2"\n"3","cg3"\n'),
        ("probes.csv", "IlmnID\ncg1\ncg2\ncg3\n"),
        ("probes.csv", "IlmnID\rcg1\rcg2\rcg3\r"),
        ("probes.tsv", "chr\tfeature\n1\tcg1\n1\tcg2\nX\tcg3\n"),
        ("probes.bed", "chr1\t1\t2\tcg1\nchr1\t1\t2\tcg2\nchr1\t1\t2\tcg3\n"),
    ],
)
def test_names_in_text(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert read_feature_ids(str(tmp_path / name)).tolist() == [b"cg1", b"cg2", b"cg3"]


def test_a_header_of_a_list_is_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "probes.txt").write_text("Probe_ID\n17\n18\n")
    assert read_axis_ids(str(tmp_path / "probes.txt"), text=False).tolist() == [17, 18]
    assert "the first word, 'Probe_ID', is a header, not a feature; it is left out" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("probes.txt", "cg1,cg2\n", r"'cg1,cg2' has a comma or a quotation mark.* \.csv or \.tsv"),
        ("probes.txt", "cg1\n cg2, cg3\n", r"'cg2,' has a comma"),
        ("probes.txt", '"x"\n"1" "cg1"\n', r"'\"x\"' has a comma or a quotation mark"),
        ("probes.csv", "cg1,cg2,cg3\n", "no column of the name.*found 'cg1, cg2, cg3'"),
        ("probes.csv", "cg1\ncg2\n", "no column of the name"),
        ("probes.csv", "", "no column of the name"),
        ("probes.tsv", 'chr\tprobe\n1\t"cg1\n1\tcg2\nX\tcg3\n', "3 lines hold 1 rows: a quotation mark is not closed"),
        ("probes.tsv", 'probe\tnote\ncg1\t"a\ncg2\tb"\n', "2 lines hold 1 rows"),
    ],
)
def test_what_may_be_no_name_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(MatrixError, match=message):
        read_feature_ids(str(tmp_path / name))


def test_a_line_break_in_a_cell_is_refused_where_a_block_ends(tmp_path: Path) -> None:
    """pyarrow parses blocks of 1 MiB, and by default ends each at a line break, also within a cell."""
    rows = 65_535 * "cg0000000,plain\n"  # 16 bytes each: the first block ends in the cell
    (tmp_path / "probes.csv").write_text(f'name,note\n{rows}cg1,"a note of two lines\ncg2,b"\n{rows}')
    with pytest.raises(MatrixError, match="131,072 lines hold 131,071 rows"):
        read_feature_ids(str(tmp_path / "probes.csv"))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_pyarrow_gets_manifests_in_its_own_memory(tmp_path: Path, given_to_pyarrow: list[Any], kind: str) -> None:
    path = tmp_path / f"probes.{kind}"
    table = pd.DataFrame({"name": ["cg1"], "chromosome": ["chr1"], "position": [7], "other": [0]})
    if kind == "csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path)
    names, chromosomes, positions = read_manifest(path)
    assert (names.tolist(), chromosomes.tolist(), positions.tolist()) == ([b"cg1"], [b"chr1"], [7])
    assert {type(file) for file in given_to_pyarrow} == {pa.BufferReader}
