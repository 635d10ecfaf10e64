"""Features by name, by stem and by region, compared with a selection by hand."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from zarr_core.errors import MatrixError, UnknownFieldError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.read.selection import FeatureSelection, select_names, select_regions, stems
from zarr_core.matrix.store.axis import FeatureAxis

# Two array types on one axis: of the locus cg1 there are three probes of EPICv2 and one of EPIC.
EPIC = ["cg2_TC21", "cg1_TC21", "cg1_TC110", "cg3", "cg1_BO11", "cg1", "ch.5_x", "cg4_TC31", "cg5_XC21"]


def chosen(axis: Sequence[str], selection: FeatureSelection) -> dict[str, list[str]]:
    """Columns by requested name."""
    starts = range(len(selection)) if selection.starts is None else selection.starts
    parts = np.split(selection.positions, list(starts)[1:])
    names = selection.feature_ids.tolist()
    return {name: [axis[n] for n in part] for name, part in zip(names, parts, strict=True)}


def test_stems() -> None:
    expected = ["cg2", "cg1", "cg1", "cg3", "cg1", "cg1", "ch.5_x", "cg4_TC31", "cg5_XC21"]
    assert [name.decode() for name in stems(FeatureAxis(EPIC).ids)] == expected
    names = [f"cg{n}{suffix}" for n in range(50) for suffix in ("", "_TC21", "_BC199", "_TO1", "_BO112", "_bO11")]
    by_hand = [re.sub(r"_[TB][CO][12]\d{1,2}$", "", name) for name in names]
    assert [name.decode() for name in stems(FeatureAxis(names).ids)] == by_hand


def test_probes_by_their_stems() -> None:
    axis = FeatureAxis(EPIC)
    with pytest.raises(MatrixError, match="1 of 2 names have several columns, such as cg1_TC21, cg1_TC110, cg1_BO11"):
        select_names(axis, ["cg1", "cg2"], stem=True)
    mean = select_names(axis, ["cg3_TC21", "cg1", "cg2"], stem=True, duplicates="mean")
    expected = {"cg3_TC21": ["cg3"], "cg1": ["cg1_TC21", "cg1_TC110", "cg1_BO11", "cg1"], "cg2": ["cg2_TC21"]}
    assert chosen(EPIC, mean) == expected
    first = select_names(axis, ["cg3_TC21", "cg1", "cg2"], stem=True, duplicates="first")
    assert chosen(EPIC, first) == {name: columns[:1] for name, columns in expected.items()}
    cells = np.arange(9, dtype=np.float32)[None].repeat(2, axis=0)
    cells[0, [1, 2]] = np.nan
    cells[1, [1, 2, 4, 5]] = np.nan
    found = mean.combine(cells[:, mean.positions])
    np.testing.assert_array_equal(found, [[3, 4.5, 0], [3, np.nan, 0]])
    assert found.dtype == np.float32
    with pytest.raises(MatrixError, match="the same stem"):
        select_names(axis, ["cg3_BC21", "cg3_TC21"], stem=True)


def test_a_full_name_is_its_own_column_and_not_its_twins(tmp_path: Path) -> None:
    axis = FeatureAxis(EPIC)
    names = ["cg1_BO11", "cg1", "cg1_TC110", "cg3_TC21"]
    for duplicates in ("mean", "first"):
        found = chosen(EPIC, select_names(axis, names, stem=True, duplicates=duplicates))
        assert (found["cg1_BO11"], found["cg1_TC110"]) == (["cg1_BO11"], ["cg1_TC110"])
        assert found["cg3_TC21"] == ["cg3"], "on an axis without suffixes, the column of the stem"
    full = select_names(axis, ["cg1_BO11", "cg1_TC21"], stem=True)  # the stem has several columns, the names have one
    assert chosen(EPIC, full) == {"cg1_BO11": ["cg1_BO11"], "cg1_TC21": ["cg1_TC21"]}
    with pytest.raises(UnknownFieldError, match="1 of 1 features .*: cg2_BC21"):
        select_names(axis, ["cg2_BC21"], stem=True, duplicates="mean")  # cg2_TC21 is another probe
    matrix = WideMatrix.create(tmp_path / "m", EPIC, {"beta": "float32"})
    matrix.append("a", ["s"], {"beta": np.arange(9, dtype=np.float32)[None]})
    selection = matrix.select(names, stem=True, duplicates="mean")
    np.testing.assert_array_equal(matrix.read(["s"], selection), [[4, (1 + 2 + 4 + 5) / 4, 2, 3]])


def test_unknown_names_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    matrix = WideMatrix.create(tmp_path / "m", EPIC, {"beta": "float32"})
    (tmp_path / "probes.txt").write_text("cg1 cg9\ncg3 a_name_that_is_longer_than_all_others\n")
    with pytest.raises(UnknownFieldError, match="2 of 4 features are not on the axis .* cg9, a_name_that_is"):
        matrix.select(tmp_path / "probes.txt")
    found = matrix.select(tmp_path / "probes.txt", unknown="skip")
    assert found.unknown == ("cg9", "a_name_that_is_longer_than_all_others")
    assert found.feature_ids.tolist() == ["cg1", "cg3"]
    assert "2 features are not on the axis: cg9, a_name" in caplog.text
    cells = np.arange(18, dtype=np.float32).reshape(2, 9)
    matrix.append("a", ["s0", "s1"], {"beta": cells})
    np.testing.assert_array_equal(matrix.read(["s1", "s0"], found), cells[::-1, [5, 3]])
    out = np.empty((1, 2), np.float32)
    assert matrix.read(["s1"], matrix.select(["cg1", "cg2"], stem=True, duplicates="mean"), out=out) is out
    np.testing.assert_array_equal(out, [[(10 + 11 + 13 + 14) / 4, 9]])
    with pytest.raises(MatrixError, match=r"out has shape \(2, 1\) and dtype float32"):
        matrix.read(["s1"], found, out=out.T)
    for arguments, error, message in (
        ({}, MatrixError, "needs names or regions"),
        ({"names": ["cg1"], "regions": ["chr1"]}, MatrixError, "needs names or regions"),
        ({"names": ["cg1"], "manifest": "x.csv"}, MatrixError, "a manifest is for regions"),
        ({"names": ["cg1"], "duplicates": "last"}, MatrixError, "duplicates must be one of"),
        ({"names": [1]}, UnknownFieldError, "are strings, not integers"),
        ({"names": ["nothing"], "unknown": "skip"}, UnknownFieldError, "1 of 1 features"),
        ({"names": ["cg1", "cg1"]}, MatrixError, "appears twice"),
        ({"regions": ["chr1"]}, UnknownFieldError, "no chromosome chr1; there are none"),
        ({"regions": ["chr1:1-2"], "manifest": tmp_path / "none.csv"}, MatrixError, "cannot be read"),
        ({"regions": ["chr1:1-2"], "manifest": pa.table({"name": ["a"]})}, MatrixError, "no column of the chromosome"),
    ):
        with pytest.raises(error, match=message):
            matrix.select(**arguments)


@pytest.mark.parametrize("text", ["chr1:0-5", "chr1:7-5", "chr1:a-b", "chr1:5-", "", "chr1:-5"])
def test_what_is_no_region(text: str) -> None:
    with pytest.raises(MatrixError, match="region"):
        select_regions(FeatureAxis(["chr1:5"]), [text])


CHROMOSOMES = ["chr1", "chr10", "hg18:chr1", "X"]
REGIONS = st.tuples(st.sampled_from(CHROMOSOMES), st.integers(1, 60), st.integers(0, 20))


@settings(max_examples=examples(60), deadline=None)
@given(
    loci=st.sets(st.tuples(st.sampled_from(CHROMOSOMES), st.integers(1, 60)), min_size=1),
    regions=st.lists(REGIONS, min_size=1, max_size=4),
    by_manifest=st.booleans(),
    seed=st.integers(0, 9),
)
def test_regions_equal_a_selection_by_hand(
    loci: set[tuple[str, int]], regions: list[tuple[str, int, int]], by_manifest: bool, seed: int
) -> None:
    places = sorted(loci)
    np.random.default_rng(seed).shuffle(places)
    texts = [f"{name}:{start:,}-{start + more}" for name, start, more in regions]
    others = ["cg7", "chr1:7x", "chr1:", ":5", "chr2:99999999999999999999"]
    manifest: Any = None
    if by_manifest:
        names = [f"p{n}" for n in range(len(places))]
        absent = {"Probe_ID": "p", "CHR": "chr1", "MAPINFO": 3.0}  # on the manifest, but not on the axis
        control = {"Probe_ID": "ctl", "CHR": None, "MAPINFO": None}
        rows = [{"Probe_ID": name, "CHR": c, "MAPINFO": float(p)} for name, (c, p) in zip(names, places, strict=True)]
        manifest = pa.Table.from_pylist([absent, control, *rows[::-1]])
    else:
        names = [f"{name}:{position}" for name, position in places]
    axis = [*names, *others]
    hits = [
        name
        for name, (chromosome, position) in zip(names, places, strict=True)
        if any(chromosome == c and start <= position <= start + more for c, start, more in regions)
    ]
    known = {chromosome for chromosome, _ in places} | ({"chr1"} if by_manifest else set())
    if not hits or any(c not in known for c, _, _ in regions):
        with pytest.raises(UnknownFieldError):
            select_regions(FeatureAxis(axis), texts, manifest)
        return
    found = select_regions(FeatureAxis(axis), texts, manifest)
    assert found.feature_ids.tolist() == hits
    assert [axis[n] for n in found.positions] == hits


def test_regions_of_probes_with_suffixes() -> None:
    manifest = pa.table({"IlmnID": ["cg1_TC21", "cg2_TC21", "cg3_TC21"], "chr": ["1", "1", "2"], "pos": [10, 20, 10]})
    found = select_regions(FeatureAxis(EPIC), ["chr1:1-15"], manifest, stem=True, duplicates="mean")
    assert chosen(EPIC, found) == {"cg1": ["cg1_TC21", "cg1_TC110", "cg1_BO11", "cg1"]}
    found = select_regions(FeatureAxis(EPIC), ["1", "chr2"], manifest)
    assert found.feature_ids.tolist() == ["cg2_TC21", "cg1_TC21"]
    assert found.unknown == ("cg3_TC21",)


@pytest.mark.parametrize("region", ["chr3:90,729,117", "3:90729117", "CHR3", "Chr3", "CHR3:90729117-90729117"])
@pytest.mark.parametrize("axis", ["chr3:{}", "3:{}", "CHR3:{}"])
def test_one_position_and_any_case(region: str, axis: str) -> None:
    names = [axis.format(90729117), "chr4:90729117", *([axis.format(90729118)] if ":" in region else [])]
    assert select_regions(FeatureAxis(names), [region]).feature_ids.tolist() == names[:1]


def test_empty_regions_are_named(caplog: pytest.LogCaptureFixture) -> None:
    axis = FeatureAxis(["chr1:5", "chr2:7"])
    assert select_regions(axis, ["chr1:6-9", "chr2"]).feature_ids.tolist() == ["chr2:7"]
    assert "no feature is in 1 of 2 regions, such as chr1:6-9" in caplog.text


def test_manifests_in_files(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "m", EPIC, {"beta": "float32"})
    (tmp_path / "manifest.csv").write_text("IlmnID,Name,CHR,MAPINFO\ncg3,x,1,5\ncg1,y,X,7\n")
    assert matrix.select(regions=["X"], manifest=tmp_path / "manifest.csv").feature_ids.tolist() == ["cg1"]
    (tmp_path / "manifest.tsv").write_text("probe_id\tchr\tpos\ncg3\tchr1\t5\ncg1\tchr2\t7\n")
    found = matrix.select(regions=["chr1:5-5"], manifest=tmp_path / "manifest.tsv")
    assert found.feature_ids.tolist() == ["cg3"]


@pytest.mark.parametrize(
    ("name", "header", "is_zero_based"),
    [
        ("zhou.tsv", "CpG_chrm\tCpG_beg\tCpG_end\tprobe_id", True),
        ("probes.bed", "chrom\tstart\tend\tname", True),
        ("ranges.tsv", "seqnames\tstart\tend\tname", False),
    ],
)
def test_manifests_that_count_from_zero(tmp_path: Path, name: str, header: str, is_zero_based: bool) -> None:
    matrix = WideMatrix.create(tmp_path / "m", ["a", "b"], {"beta": "float32"})
    (tmp_path / name).write_text(f"{header}\nchr1\t9\t11\ta\nchr1\t10\t12\tb\n")
    found = matrix.select(regions=["chr1:10-10"], manifest=tmp_path / name)
    assert found.feature_ids.tolist() == (["a"] if is_zero_based else ["b"])


ILLUMINA = """Illumina, Inc.,,,,
[Heading],,,,
Descriptor File Name,MethylationEPIC_v-1-0_B5.csv,,,
Assay Format,Infinium 2,,,
Loci Count ,2,,,
[Assay],,,,
IlmnID,Name,CHR,MAPINFO,Forward_Sequence
cg3,cg3,1,5,"AC[CG]T, x"
cg1,cg1,X,7,AC
[Controls],,,,
21630339,STAINING,DarkBlue,DNP(20 bright)
21636400,STAINING,-99,DNP
"""
BED = "chr1\t9\t11\tcg3\t0\t+\nchrX\t9\t11\tcg1\t0\t-\n"
HEADER = "#chrom\tstart\tend\tname\tscore\tstrand\n"


@pytest.mark.parametrize(
    ("name", "text", "region"),
    [
        ("epic.csv", ILLUMINA, "X:7"),
        ("epic.csv.gz", ILLUMINA.replace("\n", "\r\n"), "X:7"),
        ("quoted.csv", '"IlmnID","CHR","MAPINFO"\n"cg3","1",5\n"cg1","X",7\n', "X:7"),
        ("marked.csv", "\ufeffIlmnID,CHR,MAPINFO\ncg3,1,5\ncg1,X,7\n", "X:7"),
        ("tabs.csv", "IlmnID\tCHR\tMAPINFO\ncg3\t1\t5\ncg1\tX\t7\n", "X:7"),
        ("plain.bed", BED, "X:10"),
        ("plain.bed.gz", BED, "X:10"),
        ("four.BED", "chr1\t9\t11\tcg3\nchrX\t9\t11\tcg1\n", "X:10"),
        ("ucsc.bed", f'browser position chr1\ntrack name="a" x=1\n# made by hand\n{HEADER}{BED}', "X:10"),
        ("names.bed", f"#chrom\tchromStart\tchromEnd\tname\tscore\tstrand\n{BED}", "X:10"),
        ("other_order.bed", "#name\tstart\tchrom\ncg3\t9\tchr1\ncg1\t9\tchrX\n", "X:10"),
        ("hash.tsv", f"{HEADER}{BED}", "X:9"),
        ("zhou.tsv.gz", "CpG_chrm\tCpG_beg\tCpG_end\tprobeID\nchr1\t9\t11\tcg3\nchrX\t9\t11\tcg1\n", "X:10"),
    ],
)
def test_manifests_as_they_are_published(tmp_path: Path, name: str, text: str, region: str) -> None:
    matrix = WideMatrix.create(tmp_path / "m", EPIC, {"beta": "float32"})
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wb") as file:
        file.write(text.encode())
    assert matrix.select(regions=[region], manifest=tmp_path / name).feature_ids.tolist() == ["cg1"]
    assert matrix.select(regions=["1", "X"], manifest=tmp_path / name).feature_ids.tolist() == ["cg3", "cg1"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("three.bed", "chr1\t9\t11\n", "no column of the name"),
        ("blanks.bed", "chr1 9 11 cg3\n", "no column of the name"),
        ("foreign.bed", "#a\tb\tc\td\nchr1\t9\t11\tcg3\n", "no column of the name.*found 'a, b, c, d'"),
        ("short.bed", f"{HEADER}chr1\t9\t11\tcg3\n", "cannot be read"),
        ("headless.csv", "cg3,1,5\ncg1,X,7\n", "no column of the name.*found 'cg3, 1, 5'"),
        ("empty.csv", "", "no column of the name"),
        ("cut.csv.gz", "", "cannot be read"),
    ],
)
def test_manifests_that_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    matrix = WideMatrix.create(tmp_path / "m", EPIC, {"beta": "float32"})
    (tmp_path / name).write_bytes(gzip.compress(b"x" * 99)[:-9] if name.endswith(".gz") else text.encode())
    with pytest.raises(MatrixError, match=message):
        matrix.select(regions=["chr1"], manifest=tmp_path / name)


@pytest.mark.parametrize("text", ["chr1:,-5", "chr1:1-,", "chr1:,-,"])
def test_regions_without_a_digit_are_refused(text: str) -> None:
    with pytest.raises(MatrixError, match="not a region"):
        select_regions(FeatureAxis(["chr1:5"]), [text])


def test_a_selection_reads_the_same_names_of_another_matrix(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "m", ["a", "b", "c"], {"beta": "float32"})
    matrix.append("batch", ["s"], {"beta": np.array([[0.1, 0.2, 0.3]], np.float32)})
    other = matrix.reindex(tmp_path / "n", ["c", "x", "long", "a"])
    selection = matrix.select(["a"])
    np.testing.assert_array_equal(other.read(["s"], selection), other.read(["s"], ["a"]))
    with pytest.raises(UnknownFieldError, match="'b'"):
        other.read(["s"], matrix.select(["b"]))
