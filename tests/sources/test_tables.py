"""Tables beside the samples: each sample gets the scalars of its row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from zarr_core import ZarrChunkReader
from zarr_core.convert import convert
from zarr_core.errors import SampleError, SourceError
from zarr_core.sources import SampleTree, SourceDescription
from zarr_core.sources.survey import survey
from zarr_core.statistics import calculate_store_statistics

FORCES = "\ufeffrun, cd ,cl,note\n1, 0.3,-0.1,\n2,0.4,0.1,coarse\n7,1,1,\n"
BY_NUMBER = {"file": "forces.csv", "key": "run", "sample_id": "run_{}"}


def kind(**table: str) -> SourceDescription:
    files = {"volume_position": "xyz.npy"}
    return SourceDescription.model_validate({"name": "own", "samples": "run_*", "files": files, "tables": [table]})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in (1, 2):
        (tmp_path / f"run_{number}").mkdir()
        np.save(tmp_path / f"run_{number}" / "xyz.npy", np.eye(3, dtype=np.float32))
    return tmp_path


def parameters(root: Path, description: SourceDescription) -> dict[str, dict[str, Any]]:
    tree = SampleTree(description, root)
    return {sample_id: tree.load_parameters(sample) for sample_id, sample in tree.discover().items()}


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (BY_NUMBER, FORCES),
        (
            BY_NUMBER | {"file": "forces.json"},
            '[{"run": 1, "cd": 0.3, "cl": -0.1}, {"run": 2, "cd": 0.4, "cl": 0.1, "note": "coarse"}]',
        ),
        (
            {"file": "forces.json"},
            '{"run_1": {"cd": 0.3, "cl": -0.1}, "run_2": {"cd": 0.4, "cl": 0.1, "note": "coarse"}}',
        ),
    ],
)
def test_each_sample_has_its_row(root: Path, table: dict[str, str], text: str) -> None:
    (root / table["file"]).write_text(text)
    expected = {"run_1": {"cd": 0.3, "cl": -0.1}, "run_2": {"cd": 0.4, "cl": 0.1, "note": "coarse"}}
    assert parameters(root, kind(**table)) == expected
    assert convert(kind(**table), root / "store", root=root).ok
    recorded = ZarrChunkReader(root / "store").read_attributes("run_2")
    assert recorded["parameters"] == expected["run_2"]


def test_a_sample_changes_with_its_own_row_only(root: Path) -> None:
    (root / "forces.csv").write_text(FORCES)
    before = SampleTree(kind(**BY_NUMBER), root).discover()
    (root / "forces.csv").write_text(FORCES.replace("0.4", "0.5"))
    after = SampleTree(kind(**BY_NUMBER), root).discover()
    assert [i for i in after if after[i].fingerprint != before[i].fingerprint] == ["run_2"]


def test_what_is_absent_is_named(root: Path) -> None:
    tree = SampleTree(kind(**BY_NUMBER), root)
    assert tree.find().left_out == ("there is no forces.csv beside the samples, so they have no scalars from it",)
    (root / "forces.csv").write_text("run,cd\n2,0.4\n")
    assert tree.find().left_out == ("samples without a row in forces.csv (1): run_1",)


def test_a_table_of_other_ids_is_named_with_some_of_them(root: Path) -> None:
    (root / "forces.csv").write_text("run,cd\n1,0.5\n2,0.25\n")
    assert SampleTree(kind(**BY_NUMBER | {"sample_id": "run_0{}"}), root).find().left_out == (
        "samples without a row in forces.csv (2): run_1, run_2",
        "no row of forces.csv is of a sample, they are of run_01, run_02: see `sample_id` of the table",
    )


def test_two_different_rows_of_a_sample_are_its_problem(root: Path) -> None:
    (root / "forces.csv").write_text(FORCES + "2,0.5,0.1,\n1,0.3,-0.1,\n")
    samples = SampleTree(kind(**BY_NUMBER), root).discover()
    assert samples["run_1"].complete
    assert samples["run_2"].missing == ("one row of forces.csv, which has 2 different ones for it",)


def test_two_tables_that_contradict_each_other_are_a_problem_of_the_sample(root: Path) -> None:
    (root / "a.csv").write_text("run,cd,cl\n1,0.3,1\n2,0.4,1\n")
    (root / "b.csv").write_text("run,cd\n1,0.9\n2,0.4\n")
    both = kind(**BY_NUMBER).model_dump() | {"tables": [BY_NUMBER | {"file": "a.csv"}, BY_NUMBER | {"file": "b.csv"}]}
    found = SampleTree(SourceDescription.model_validate(both), root).discover()
    assert found["run_1"].missing == ("one value of 'cd', which a.csv and b.csv give differently",)
    assert found["run_2"].complete


def test_a_number_with_underscores_is_text(root: Path) -> None:
    (root / "forces.csv").write_text("run,baseline\n1,0012_05\n2,12\n")
    assert parameters(root, kind(**BY_NUMBER)) == {"run_1": {"baseline": "0012_05"}, "run_2": {"baseline": 12.0}}


def test_a_whole_number_that_a_float_does_not_hold_is_text(root: Path) -> None:
    (root / "forces.csv").write_text("run,job\n1,9007199254740993\n2,9007199254740992\n")
    found = parameters(root, kind(**BY_NUMBER))
    assert found == {"run_1": {"job": "9007199254740993"}, "run_2": {"job": 2.0**53}}


def test_a_quote_may_follow_a_blank(root: Path) -> None:
    (root / "forces.csv").write_text('run, mesh\n1, "coarse, old"\n2, fine\n')
    assert parameters(root, kind(**BY_NUMBER)) == {"run_1": {"mesh": "coarse, old"}, "run_2": {"mesh": "fine"}}


def test_a_column_without_a_name_is_left_out_and_named(root: Path) -> None:
    (root / "forces.csv").write_text("run,cd,\n1,0.3,coarse\n2,0.4,\n")
    assert parameters(root, kind(**BY_NUMBER)) == {"run_1": {"cd": 0.3}, "run_2": {"cd": 0.4}}
    (note,) = SampleTree(kind(**BY_NUMBER), root).find().left_out
    assert note == "values of forces.csv whose column has no name were left out (1): coarse of run_1"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("forces.csv", "run,cd,cl,note\n1,0.3,,\n2,n/a,0.1,fine\n7,,x,\n"),
        ("forces.json", '[{"run": 1, "cd": 0.3}, {"run": 2, "cd": "n/a", "cl": 0.1, "note": "fine"}]'),
    ],
)
def test_a_cell_without_a_number_where_others_have_one_is_named(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text)
    (note,) = SampleTree(kind(**(BY_NUMBER | {"file": name})), root).find().left_out
    reason = f"values of {name} that are absent or text, where other samples have numbers"
    assert note == f"{reason} (2): cl of run_1, cd of run_2 is 'n/a'"


@pytest.mark.parametrize("name", ["forces.csv", "forces.json"])
def test_a_cell_that_is_not_a_number_is_left_out_and_named(root: Path, name: str) -> None:
    text = FORCES.replace("0.4", "NaN")
    text = text + "2,NaN,0.1,coarse\n" if name.endswith("csv") else '[{"run": 2, "cd": NaN, "cl": 0.1}, {"run": 1}]'
    (root / name).write_text(text)
    description = kind(**(BY_NUMBER | {"file": name}))
    found = SampleTree(description, root).find()
    assert found.samples["run_2"].complete, found.samples["run_2"].missing
    assert any(f"values of {name} that are not a number were left out" in note for note in found.left_out)
    report = convert(description, root / "store", root=root)
    assert report.ok
    assert any("were left out" in note and "cd of run_2" in note for note in report.notes)
    recorded = ZarrChunkReader(root / "store").read_attributes("run_2")["parameters"]
    assert {key: value for key, value in recorded.items() if key != "note"} == {"cl": 0.1}


@pytest.mark.parametrize(
    ("name", "text"),
    [("own.csv", "cd,cl\nnan,0.1\n"), ("own.csv", "cd,cl\n,0.1\n"), ("params.json", '{"cd": NaN, "cl": 0.1}')],
)
def test_a_value_of_a_sample_that_is_not_a_number_is_left_out_and_named(root: Path, name: str, text: str) -> None:
    (root / "run_2" / name).write_text(text)
    document = kind(file="absent.csv", key="run").model_dump() | {"parameters": ["*.csv"]}
    report = convert(SourceDescription.model_validate(document), root / "store", root=root)
    assert report.ok
    assert f"values that are empty or not a number were left out (samples: 1): run_2 (cd of {name})" in report.notes
    assert ZarrChunkReader(root / "store").read_attributes("run_2")["parameters"] == {"cl": 0.1}


def test_an_infinite_value_is_a_problem_of_its_sample(root: Path) -> None:
    (root / "forces.csv").write_text(FORCES.replace("0.4", "inf"))
    tree = SampleTree(kind(**BY_NUMBER), root)
    samples = tree.discover()
    assert tree.load_parameters(samples["run_1"])["cd"] == 0.3
    with pytest.raises(SampleError, match=r"forces\.csv: .*'cd' is inf"):
        tree.load_parameters(samples["run_2"])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("params.json", '{"cd": 0.3, "cd": 0.4}', "has different values of 'cd' in one object"),
        ("params.json", f'{{"seed": {10**400}}}', "'seed' is too large for a floating-point number"),
        ("own.yaml", "cd: 0.3\ncl: 0.1\n", "is neither JSON nor a table; write its values as a .json file"),
    ],
)
def test_a_file_of_scalars_that_cannot_be_used_is_a_problem_of_its_sample(
    root: Path, name: str, text: str, reason: str
) -> None:
    (root / "run_1" / "params.json").write_text('{"cd": 0.3, "cd": 0.3}')
    (root / "run_2" / name).write_text(text)
    document = kind(file="absent.csv", key="run").model_dump() | {"parameters": ["*.yaml"]}
    report = convert(SourceDescription.model_validate(document), root / "store", root=root)
    assert [result.sample_id for result in report.results if result.status == "converted"] == ["run_1"]
    assert reason in report.results[1].reason
    assert calculate_store_statistics(root / "store")["cd_mean"] == 0.3


def test_samples_without_a_file_of_parameters_are_named(root: Path) -> None:
    (root / "run_1" / "forces_1.csv").write_text("cd\n0.3\n")
    document = kind(file="absent.csv", key="run").model_dump() | {"parameters": ["forces_*.csv", "geo.json"]}
    found = SampleTree(SourceDescription.model_validate(document), root).find()
    notes = "\n".join(found.left_out)
    assert "samples without a file forces_*.csv, which `parameters` of the description names (1): run_2" in notes
    assert "samples without a file geo.json, which `parameters` of the description names (2): run_1, run_2" in notes


def test_scalars_of_the_same_names_are_told_apart_by_a_prefix(root: Path) -> None:
    for number in (1, 2):
        (root / f"run_{number}" / f"force_{number}.csv").write_text("cd,cl\n0.3,0.1\n")
        (root / f"run_{number}" / f"force_ref_{number}.csv").write_text("cd,cl\n0.4,0.2\n")
    document = {
        "name": "own",
        "samples": "run_*",
        "files": {"volume_position": "xyz.npy"},
        "parameters": ["force_[0-9]*.csv", {"file": "force_ref_*.csv", "prefix": "ref_"}],
    }
    description = SourceDescription.model_validate(document)
    expected = {"cd": 0.3, "cl": 0.1, "ref_cd": 0.4, "ref_cl": 0.2}
    assert parameters(root, description) == {"run_1": expected, "run_2": expected}
    fingerprint = SampleTree(description, root).discover()["run_1"].fingerprint
    document["parameters"] = ["force_[0-9]*.csv", {"file": "force_ref_*.csv", "prefix": "constant_"}]
    other = SampleTree(SourceDescription.model_validate(document), root).discover()["run_1"]
    assert other.fingerprint != fingerprint
    document["parameters"] = ["force_*.csv"]
    assert (
        "which 2 files match"
        in SampleTree(SourceDescription.model_validate(document), root).discover()["run_1"].missing[0]
    )


def test_another_value_in_a_file_of_the_sample_is_refused(root: Path) -> None:
    (root / "forces.csv").write_text(FORCES)
    (root / "run_1" / "params.json").write_text('{"cd": 0.31}')
    with pytest.raises(SampleError, match="'cd' has another value in another file of the sample"):
        parameters(root, kind(**BY_NUMBER))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("forces.csv", "design,cd\n1,0.3\n", "has no column 'run'; it has 'design', 'cd'"),
        ("forces.csv", "run;cd\n1;0,3\n", "has semicolons between its columns; write commas"),
        ("forces.csv", "run,cd\n1\n", "has 2 columns in its header and 1 in row 1"),
        ("forces.csv", "run,cd,cd\n1,2,3\n", "has two columns with the same name"),
        ("forces.csv", 'run,cd\n1,"2\n', "unexpected end of data"),
        ("forces.json", '{"run": 3}', "expected objects in a list, or objects by key"),
        ("forces.json", "{", "EOF while parsing an object"),
        ("forces.json", '{"1": {"cd": 3}, "1": {"cd": 4}}', "has different values of '1' in one object"),
        ("forces.json", '[{"run": 1, "cd": 3, "cd": 4}]', "has different values of 'cd' in one object"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(root: Path, name: str, text: str, reason: str) -> None:
    (root / name).write_text(text)
    with pytest.raises(SourceError, match=f"{name}: .*{reason}"):
        SampleTree(kind(**(BY_NUMBER | {"file": name})), root).find()


def test_inspect_finds_the_table(root: Path) -> None:
    (root / "forces.csv").write_text(FORCES)
    (root / "notes.json").write_text(json.dumps([{"author": "run_x"}]))
    document = yaml.safe_load(survey(str(root)).to_yaml())
    assert document["tables"] == [BY_NUMBER]
    assert parameters(root, SourceDescription.model_validate(document))["run_2"]["note"] == "coarse"


@pytest.mark.parametrize("text", ["run,cd\n0001,7\n0002,7\n", "run,cd\nrun_1.npy,7\nrun_2.npy,7\n"])
def test_a_table_whose_ids_differ_from_those_of_the_samples_is_named(root: Path, text: str) -> None:
    (root / "forces.csv").write_text(text)
    found = survey(str(root))
    assert "tables" not in found.document
    description = SourceDescription.model_validate(found.document)
    for notes in (found.odd, convert(description, root / "store", root=root).notes):
        assert any("uses these files (number of folders): forces.csv (1); add" in note for note in notes)


def test_inspect_names_a_table_that_is_not_whole(root: Path) -> None:
    (root / "forces.csv").write_text("run,cd\n1,0.3\n")
    (root / "some.json").write_text('[{"run": 1}, {"run": 2}, {"cd": 1}]')
    found = survey(str(root))
    assert found.document["tables"] == [BY_NUMBER]
    assert "samples without a row in forces.csv (1): run_2" in found.odd
    (unused,) = (note for note in found.odd if "uses these files" in note)
    assert "some.json (1)" in unused
    assert "forces.csv" not in unused
