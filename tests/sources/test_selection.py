"""Which samples a conversion selects, and the names of everything that it leaves out."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.small_source import KIND, write_source
from zarr_core.datasets import AhmedMLDataset
from zarr_core.errors import SourceError
from zarr_core.sources import SampleTree, SourceDescription
from zarr_core.sources.listing import list_samples
from zarr_core.sources.selection import select_samples, with_contents

NESTED = {"name": "own", "samples": "*/*", "files": {"surface_position": "xyz.pt"}}


def points(root: Path, *sample_ids: str) -> Path:
    """Samples of one field, which the files ``xyz.pt`` hold."""
    for sample_id in sample_ids:
        (root / sample_id).mkdir(parents=True)
        torch.save(torch.zeros(5, 3), root / sample_id / "xyz.pt")
    return root


def described(**more: object) -> SourceDescription:
    return SourceDescription.model_validate(NESTED | {"samples": "*"} | more)


def notes(kind: str | SourceDescription, root: Path) -> str:
    return "\n".join(select_samples(SampleTree(kind, root)).notes)


def test_splits_choose_and_the_rest_is_named(tmp_path: Path) -> None:
    tree = SampleTree(KIND, write_source(tmp_path, ("run_1", "run_4", "run_11")))
    selection = select_samples(tree, ["train", "moon"])
    assert sorted(selection.samples) == ["run_1"]
    assert len(selection.notes) == 2
    assert "no split moon" in selection.notes[0]
    assert "399 of the 400 ids listed for train are not at" in selection.notes[1]
    everything = select_samples(tree)
    assert sorted(everything.samples) == ["run_1", "run_11", "run_4"]
    assert "497 of the 500 ids listed for train, val, test are not at" in everything.notes[0]
    with pytest.raises(SourceError, match="no split moon"):
        select_samples(tree, ["moon"])
    with pytest.raises(SourceError, match="no sample to convert.*50 of the 50 ids listed for val"):
        select_samples(tree, ["val"])


def test_requested_ids_that_are_not_there_are_named(tmp_path: Path) -> None:
    selection = select_samples(SampleTree(KIND, write_source(tmp_path)), sample_ids=["run_1", "run_9"])
    assert list(selection.samples) == ["run_1"]
    assert "requested samples that are not at" in selection.notes[-1]
    assert "run_9" in selection.notes[-1]


@pytest.mark.parametrize("line", ["a/bad", "/meshes/x/a/bad.vtk"])
def test_a_blacklist_names_nested_ids(tmp_path: Path, line: str) -> None:
    points(tmp_path, "a/bad", "a/good", "b/bad")
    (tmp_path / "blacklist.txt").write_text(f"{line}\n")
    kind = SourceDescription.model_validate(NESTED | {"blacklists": ["blacklist.txt", "other.txt"]})
    assert sorted(select_samples(SampleTree(kind, tmp_path)).samples) == ["a/good", "b/bad"]
    assert "samples on a blacklist (1): a/bad" in notes(kind, tmp_path)
    assert "there is no other.txt" in notes(kind, tmp_path)


def test_a_blacklist_as_editors_and_ls_write_it(tmp_path: Path) -> None:
    points(tmp_path, "case_0", "case_1", "case_2")
    (tmp_path / "blacklist.txt").write_text("\ufeffcase_0\ncase_1/\ncase_9\n/\n")
    tree = SampleTree(described(blacklists=["blacklist.txt"]), tmp_path)
    selection = select_samples(tree)
    assert list(selection.samples) == ["case_2"]
    assert tree.excluded() == {"case_0", "case_1", "case_9"}
    assert "ids on a blacklist that the source does not have (1): case_9" in selection.notes


def test_a_blacklist_that_cannot_name_an_id_is_refused(tmp_path: Path) -> None:
    points(tmp_path, "a/bad")
    (tmp_path / "blacklist.txt").write_text("bad\n")
    kind = SourceDescription.model_validate(NESTED | {"blacklists": ["blacklist.txt"]})
    with pytest.raises(SourceError, match=r"blacklist\.txt lists 'bad', but ids of own have the form \*/\*"):
        select_samples(SampleTree(kind, tmp_path))


def test_split_files_of_other_names(tmp_path: Path) -> None:
    points(tmp_path, "a", "b", "c")
    (tmp_path / "train.txt").write_text("a\n")
    (tmp_path / "holdout.txt").write_text("b\nmissing\n")
    own = {"rule": "files", "filename": "{split}.txt", "names": ["train", "holdout"]}
    tree = SampleTree(described(splits=own), tmp_path)
    assert tree.splits(()) == {"train": ["a"], "holdout": ["b", "missing"]}
    assert sorted(tree.split_documents()) == ["holdout.txt", "train.txt"]
    assert "1 of the 3 ids listed for train, holdout are not at" in "\n".join(select_samples(tree).notes)
    assert "samples in no split (1): c" in select_samples(tree).notes
    with pytest.raises(SourceError, match=r"none of train_design_ids.txt, .* lies beside the samples; name them"):
        select_samples(SampleTree(described(splits={"rule": "files"}), tmp_path))
    assert "the source has no splits: there is none of train_design_ids.txt" in notes(described(), tmp_path)


def test_overlapping_splits_are_named(tmp_path: Path) -> None:
    points(tmp_path, "a", "b")
    for split in ("train", "test"):
        (tmp_path / f"{split}_design_ids.txt").write_text("a\n")
    assert "samples in more than one split (1): a (train, test)" in notes(described(), tmp_path)


def test_a_folder_without_files_is_named_whatever_the_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b" / "data").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    np.savez(tmp_path / "c" / "f.npz", x=np.zeros((5, 3)))
    kind = described(files={"surface_position": {"file": "f.npz", "array": "x"}})
    assert "left out: 'a', 'b': they match * but contain none of f.npz" in notes(kind, tmp_path)


def test_files_of_formats_that_are_not_read_are_named(tmp_path: Path) -> None:
    points(tmp_path, "a", "b")
    for name in ("labels.parquet", "out.EXO", "params.yaml", "config.yaml", "notes.txt"):
        (tmp_path / "a" / name).touch()
    (tmp_path / "b" / "params.yaml").touch()
    found = notes(described(), tmp_path)
    assert "no field or table of own uses these files (number of folders): labels.parquet (1), out.EXO (1), " in found
    assert "params.yaml (2); add them to `files`" in found
    assert found.splitlines()[0].endswith("first write other formats as .npz or .vtu files, and scalars as .json files")
    np.savez(tmp_path / "a" / "params.npz", speed=30.0)
    assert "params.npz (1), params.yaml (2); add them to `files`" in notes(described(), tmp_path)
    assert "scalars of a sample to `parameters`" in notes(described(), tmp_path)


def test_a_link_to_a_folder_above_it_makes_no_samples(tmp_path: Path) -> None:
    """Every sample below it was there again, under other ids, down to the depth where the search ends."""
    points(tmp_path / "source", "x/a", "y/b")
    (tmp_path / "source" / "x" / "up").symlink_to("..")
    (tmp_path / "source" / "x" / "other").symlink_to("../y")
    (tmp_path / "source" / "y" / "back").symlink_to("../x")
    found = SampleTree(described(samples="**"), tmp_path / "source").find()
    assert sorted(found.samples) == ["x/a", "x/other/b", "y/b", "y/back/a"]
    (links,) = found.left_out
    assert "'x/up'" in links
    assert links.endswith("they are links to a folder that contains them")


def test_folders_that_are_no_samples_are_named(tmp_path: Path) -> None:
    """Each once, with the reason and the way out; none of them may disappear in silence."""
    source = write_source(tmp_path, ("run_1", "run_(2)", ".run_3", "case_4"))
    (source / "run_5").mkdir()
    (source / "run_6" / "data").mkdir(parents=True)
    (source / "run_7").symlink_to(tmp_path / "nowhere")
    (source / "run_1" / "notes.txt").write_text("not a tensor, and of no interest")
    (source / "logs").mkdir()
    found = SampleTree(KIND, source).find()
    assert list(found.samples) == ["run_1"]
    ids, empty, elsewhere, dangling = found.left_out
    assert "'run_(2)': their names cannot be sample ids" in ids
    assert "rename them" in ids
    assert "'run_5', 'run_6': they match run_* but contain none of surface_position_vtp.pt" in empty
    assert "'.run_3', 'case_4': they contain field files but do not match run_*" in elsewhere
    assert "'run_7': they are links to nothing" in dangling
    assert found.unused == ()
    assert select_samples(SampleTree(KIND, source)).notes[:4] == found.left_out
    with pytest.warns(UserWarning, match=r"run_\(2\)"):
        AhmedMLDataset(source)


def test_a_listed_id_that_no_sample_can_have_stops_no_other(tmp_path: Path) -> None:
    points(tmp_path, "s1", "a!b")
    (tmp_path / "train_design_ids.txt").write_text("s1\na!b\n../s2\ns\x1b[31m3\n")
    selection = select_samples(SampleTree(described(), tmp_path))
    assert list(selection.samples) == ["s1"]
    (note,) = (note for note in selection.notes if "3 of the 4 ids listed for train" in note)
    assert note.endswith(r"are skipped: a!b, ../s2, 's\x1b[31m3'")


def test_a_sample_in_two_folders_is_named(tmp_path: Path) -> None:
    points(tmp_path, "a", "data/a")
    found = SampleTree(described(subfolder="data"), tmp_path).find()
    assert found.left_out == ("left out: 'a': another folder has the same sample id; remove one of the two",)
    assert found.samples["a"].folder == "data/a"


def test_tensor_files_that_no_field_uses_are_named_once(tmp_path: Path) -> None:
    source = write_source(tmp_path)
    for name in ("surface_area.pt", "Surface_Pressure.PT"):
        torch.save(torch.zeros(3), source / "run_1" / name)
    torch.save(torch.zeros(3), source / "run_2" / "surface_area.pt")
    torch.save(torch.zeros(3), source / "mean.pt")
    (source / "run_1" / "wake.csv").write_text("x,y,z\n1,2,3\n4,5,6\n")
    (unused,) = SampleTree(KIND, source).find().unused
    assert "Surface_Pressure.PT (1), mean.pt (1), surface_area.pt (2), wake.csv (1)" in unused
    assert "add them to `files`" in unused
    assert "scalars of a sample to `parameters`, " in unused
    assert "points of a CSV file by its columns, as in `{file: a.csv, array: [x, y, z]}`" in unused


def test_a_remote_source_names_the_same(tmp_path: Path, memory_root: str) -> None:
    import fsspec

    source = write_source(tmp_path, ("run_1", "run_(2)", "case_4"))
    filesystem, path = fsspec.url_to_fs(memory_root)
    filesystem.put(f"{source}/", f"{path}/", recursive=True)
    assert SampleTree(KIND, memory_root).find().left_out == SampleTree(KIND, source).find().left_out


def test_a_listing_names_what_it_leaves_out(tmp_path: Path) -> None:
    source = write_source(tmp_path, ("run_1", "run_(2)"))
    (sentence,) = list_samples(SampleTree(KIND, source)).left_out
    assert "run_(2)" in sentence
    (_, sentence) = list_samples(SampleTree(KIND, source), ["training"]).left_out
    assert sentence == "there is no split training; ahmedml has: train, val, test"


def test_content_fingerprints_are_the_same_for_copies(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1", "run_2"))
    (source / "run_1" / "params.json").write_text('{"speed": 30.5}')
    copy = shutil.copytree(source, tmp_path / "copy", copy_function=shutil.copy)
    selections = [select_samples(SampleTree(KIND, root)) for root in (source, copy)]
    by_version = [[sample.fingerprint for sample in each.samples.values()] for each in selections]
    hashed = [with_contents(each.source, each.samples)[0] for each in selections]
    by_content = [[sample.fingerprint for sample in each.values()] for each in hashed]
    assert by_version[0] != by_version[1]
    assert by_content[0] == by_content[1]
    assert by_content[0][0] != by_content[0][1]
    assert selections[0].source.is_unchanged(hashed[0]["run_1"])
    (copy / "run_1" / "params.json").write_text('{"speed": 30.6}')
    selection = select_samples(SampleTree(KIND, copy))
    changed, _ = with_contents(selection.source, selection.samples)
    assert changed["run_1"].fingerprint != by_content[0][0]


def test_a_file_that_cannot_be_hashed_concerns_one_sample(tmp_path: Path) -> None:
    source = write_source(tmp_path, ("run_1", "run_2"))
    selection = select_samples(SampleTree(KIND, source))
    (source / "run_2" / "surface_pressure.pt").unlink()
    hashed, unreadable = with_contents(selection.source, selection.samples)
    assert list(hashed) == ["run_1"]
    assert "surface_pressure.pt" in unreadable["run_2"]
