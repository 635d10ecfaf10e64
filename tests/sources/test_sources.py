"""Descriptions of datasets, and what is found where they lie."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from tests.helpers.small_source import KIND, write_source
from zarr_core.errors import SampleError, SourceError, TransferError
from zarr_core.format.names import check_sample_id, field_name
from zarr_core.sources import SampleTree, SourceDescription, resolve_kind
from zarr_core.sources.left_out import collected_notes
from zarr_core.sources.recorded import folder_now
from zarr_core.sources.resolve import shipped_kinds
from zarr_core.sources.sample import FileInfo
from zarr_core.sources.selection import open_source, select_samples
from zarr_core.sources.tensors import load_pt
from zarr_core.storage import Storage
from zarr_core.storage.backends import local
from zarr_core.storage.reading import RemoteFile

OWN = """
name: own
samples: case_*
files:
  surface_position: xyz.pt
  surface_temperature: t.pt
splits: {rule: files}
"""


@pytest.mark.parametrize(
    ("attribute", "canonical", "array_name"),
    [
        ("surface_position", "surface_position", "surface/position"),
        ("volume_vorticity", "volume_vorticity", "volume/vorticity"),
        ("surface_position_stl", "surface_stl_position", "surface_stl/position"),
        ("surface_position_stl_resampled", "surface_stl_resampled_position", "surface_stl_resampled/position"),
        ("volume_distance_to_surface", "volume_sdf", "volume/sdf"),
    ],
)
def test_attributes_become_fields(attribute: str, canonical: str, array_name: str) -> None:
    name = field_name(attribute)
    assert (name.canonical, name.array_name) == (canonical, array_name)


IDS = ["run_1", "param1/1a2b", "E_S_WWC_WM_005", "a.b-c+d", "run 1", "Wing A/case 2"]
# Almost as the archive of a packed sample.
IDS += ["0123456789abcdef.zip", "a/0123456789abcdef.zipped", "a/0123456789abcde.zip", "a/x0123456789abcdef.zip"]


@pytest.mark.parametrize("sample_id", IDS)
def test_ids_that_may_be_paths(sample_id: str) -> None:
    assert check_sample_id(sample_id) == sample_id


BAD_IDS = ["", "..", "../x", "a/../b", "/a", "a/", "a//b", "a ", " a", "a /b", "a\tb", "a\u00a0b", "a!b", "a\\b", "a\n"]


@pytest.mark.parametrize("sample_id", [*BAD_IDS, "a" * 201, "a/0123456789abcdef.zip", "a/b/0123456789abcdef.zip/c"])
def test_ids_that_may_not(sample_id: str) -> None:
    with pytest.raises(SourceError, match="sample id"):
        check_sample_id(sample_id)


def test_every_kind_of_the_facts_is_shipped() -> None:
    facts = ["ahmedml", "drivaerml", "drivaernet", "emmi_wing", "shapenet_car"]
    assert [kind for kind in shipped_kinds() if not kind.endswith("_raw")] == facts
    assert len(resolve_kind("drivaernet").fields) == 8
    assert resolve_kind("emmi_wing").parameter_files == ("params.json", "design_parameters.pt")
    assert resolve_kind("zarr_core.datasets.AhmedMLDataset") == resolve_kind("ahmedml")


@pytest.mark.parametrize(
    ("kind", "sizes", "digest"),
    [
        ("ahmedml", {"train": 400, "val": 50, "test": 50}, "8736d553372867f3"),
        ("drivaerml", {"train": 400, "test": 50, "val": 34}, "790ba419e8ccd995"),
    ],
)
def test_permuted_splits_are_the_published_ones(kind: str, sizes: dict[str, int], digest: str) -> None:
    """Pinned: a torch that permutes otherwise would move samples between train and test."""
    splits = resolve_kind(kind).assign_splits((), lambda name: None)
    assert {split: len(ids) for split, ids in splits.items()} == sizes
    assert hashlib.sha256(repr(sorted(splits.items())).encode()).hexdigest()[:16] == digest
    ids = [sample_id for listed in splits.values() for sample_id in listed]
    assert len(set(ids)) == len(ids)
    if kind == "drivaerml":
        assert not {"run_167", "run_403", "run_473"} & set(ids)


def test_a_users_own_dataset_is_ten_lines_of_yaml(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(OWN)
    root = tmp_path / "data"
    for sample_id in ("case_a", "case_b"):
        (root / sample_id).mkdir(parents=True)
        torch.save(torch.zeros(5, 3), root / sample_id / "xyz.pt")
    torch.save(torch.zeros(5), root / "case_a" / "t.pt")
    (root / "train_design_ids.txt").write_text("case_a\n\ncase_b\n")
    tree = SampleTree(str(tmp_path / "own.yaml"), root)
    samples = tree.discover()
    assert {i: (s.complete, s.missing) for i, s in samples.items()} == {
        "case_a": (True, ()),
        "case_b": (False, ("t.pt",)),
    }
    assert tree.splits(samples) == {"train": ["case_a", "case_b"]}
    assert tree.load(samples["case_a"], "surface_temperature").shape == (5,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OWN.replace("  surface_temperature: t.pt", "  surface_position: other.pt"), "given twice"),
        (OWN + "  \nunknown: 1\n", "unknown"),
        (OWN.replace("surface_position: xyz.pt", "surface_pressure: xyz.pt"), "add surface_position"),
        (OWN.replace("xyz.pt", "../xyz.pt"), "must be the name of a file"),
        (OWN.replace("xyz.pt", "../xyz.npy"), "leaves the folder"),
        (OWN.replace("surface_temperature", "temperature"), "expected <domain>_<name>"),
        (OWN.replace("rule: files", "rule: moon"), "moon"),
        ("[1, 2]", "must be a mapping"),
        ("{", "own.yaml"),
        ("name: x\nsamples: '*'\nfiles: {}", "at least one point field"),
        (
            "name: x\nsamples: '*'\nfiles: {volume_position: p.pt, volume_sdf: a.pt, volume_distance_to_surface: b.pt}",
            "two files for volume_sdf",
        ),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(SourceError, match="own.yaml") as caught:
        resolve_kind(str(tmp_path / "own.yaml"))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [("xyz.npz", "the description needs one"), ({"file": "xyz*.pt", "array": "xyz"}, "a .pt file has one tensor")],
)
def test_a_file_that_a_description_names_in_the_wrong_way(tmp_path: Path, entry: object, reason: str) -> None:
    (tmp_path / "a").mkdir()
    np.savez(tmp_path / "a" / "xyz.npz", xyz=np.zeros((5, 3)))
    torch.save(torch.zeros(5, 3), tmp_path / "a" / "xyz.pt")
    description = {"name": "own", "samples": "a", "files": {"surface_position": entry}}
    tree = SampleTree(SourceDescription.model_validate(description), tmp_path)
    with pytest.raises(SampleError, match=reason):
        tree.load(tree.discover()["a"], "surface_position")


@pytest.mark.parametrize("kind", ["nosuch", "no.such.Class", "zarr_core.datasets.Nothing", "missing.yaml", "os.path"])
def test_a_kind_that_does_not_exist_is_refused(kind: str) -> None:
    with pytest.raises(SourceError):
        resolve_kind(kind)


def test_shapenet_with_and_without_its_subfolder(tmp_path: Path) -> None:
    files = resolve_kind("shapenet_car").fields
    for sample_id in ("param0/aa", "param3/bb", "other/cc"):
        folder = tmp_path / "preprocessed" / sample_id
        folder.mkdir(parents=True)
        for file in files.values():
            torch.save(torch.zeros(2, file.field.dim), folder / file.filename)
    for root in (tmp_path, tmp_path / "preprocessed"):
        tree = SampleTree("shapenet_car", root)
        samples = tree.discover()
        assert sorted(samples) == ["param0/aa", "param3/bb"]
        assert tree.splits(samples) == {"train": ["param3/bb"], "test": ["param0/aa"]}
        assert tree.load(samples["param0/aa"], "volume_sdf").shape == (2, 1)


def test_blacklists_name_ids_or_mesh_files(tmp_path: Path) -> None:
    (tmp_path / "blacklist.txt").write_text("/data/x/E_S_WWC_WM_005.vtk\n\n")
    (tmp_path / "blacklist2.txt").write_text("F_D_WM_WW_0001\n")
    assert SampleTree("drivaernet", tmp_path).excluded() == {"E_S_WWC_WM_005", "F_D_WM_WW_0001"}


def test_the_same_sample_everywhere(tmp_path: Path, s3_root: str, memory_root: str) -> None:
    source = write_source(tmp_path / "source")
    (source / "run_1" / "params.json").write_text('{"speed": 30.5}')
    for url in (s3_root, memory_root):
        filesystem, path = fsspec.url_to_fs(url)
        filesystem.put(f"{source}/", f"{path}/", recursive=True)
    for root in (str(source), s3_root, memory_root):
        tree = pickle.loads(pickle.dumps(SampleTree("ahmedml", root)))
        samples = tree.discover()
        assert sorted(samples) == ["run_1", "run_2", "run_3"]
        assert torch.equal(
            tree.load(samples["run_2"], "volume_velocity"),
            torch.load(source / "run_2" / "volume_cell_velocity.pt"),
        )
        assert tree.load_parameters(samples["run_1"]) == {"speed": 30.5}
        assert tree.is_unchanged(samples["run_1"])
        assert list(tree.discover(["run_3"])) == ["run_3"]


@pytest.mark.parametrize("kind", ["ahmedml", "shapenet_car"])
@pytest.mark.parametrize("remote", [False, True])
def test_a_few_samples_are_found_without_a_listing_of_the_others(
    tmp_path: Path, memory_root: str, monkeypatch: pytest.MonkeyPatch, kind: str, remote: bool
) -> None:
    description = resolve_kind(kind)
    ids = ("run_1", "run_2", "run_3") if kind == "ahmedml" else ("param0/a", "param1/a", "param2/b")
    write_source(tmp_path / "source" / description.subfolder, ids, kind=kind)
    root = str(tmp_path / "source")
    if remote:
        filesystem, path = fsspec.url_to_fs(memory_root)
        filesystem.put(f"{root}/", f"{path}/", recursive=True)
        root = memory_root
    tree = SampleTree(kind, root)
    everything = tree.find()
    assert everything.is_whole
    assert list(everything.samples) == list(ids)
    listed: list[str] = []
    list_below = SampleTree._list

    def keep(tree: SampleTree, below: str = "", *left_out: Any) -> Any:
        listed.append(below)
        return list_below(tree, below, *left_out)

    monkeypatch.setattr(SampleTree, "_list", keep)
    some = tree.find([ids[2], "run_9", ids[0]])
    assert "" not in listed
    assert not some.is_whole
    assert some.samples == {i: everything.samples[i] for i in (ids[0], ids[2])}
    monkeypatch.setattr("zarr_core.sources.tree.MAX_FOLDERS", 1)
    assert tree.find(ids[:2]).samples == {i: everything.samples[i] for i in ids[:2]}
    assert listed[-1] == "", "many samples are found faster by a listing of all"
    monkeypatch.undo()
    if not remote:
        (tmp_path / "source").rename(tmp_path / "unmounted")
        with pytest.raises(SourceError, match="cannot be listed: it does not exist"):
            tree.find(["run_9"])


def test_a_large_remote_file_is_fetched_in_pieces(monkeypatch: pytest.MonkeyPatch, memory_root: str) -> None:
    """Of the values; what torch has before and after them is fetched once."""
    monkeypatch.setattr("zarr_core.sources.tensors.WHOLE_BYTES", 1000)
    monkeypatch.setattr("zarr_core.storage.reading._PIECE_BYTES", 1000)
    monkeypatch.setattr("zarr_core.storage.reading._EDGE_BYTES", 1000)
    values = torch.arange(3000, dtype=torch.float32).reshape(1000, 3)
    filesystem, path = fsspec.url_to_fs(f"{memory_root}/run_1")
    for file in resolve_kind("ahmedml").required_fields.values():
        with filesystem.open(f"{path}/{file.filename}", "wb") as target:
            torch.save(values, target)
    tree = SampleTree("ahmedml", memory_root)
    sizes: list[int] = []
    fetch = type(filesystem).cat_file

    def counted(self, *args, **kwargs):
        data = fetch(self, *args, **kwargs)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(type(filesystem), "cat_file", counted)
    assert torch.equal(tree.load(tree.discover()["run_1"], "volume_velocity"), values)
    assert max(sizes) <= 1000
    assert len(sizes) <= values.nbytes / 1000 + 8


def test_a_large_file_that_cannot_be_fetched_is_no_damaged_file(
    monkeypatch: pytest.MonkeyPatch, memory_root: str
) -> None:
    """Torch reads it in pieces; an error of the network must not refuse the sample."""
    monkeypatch.setattr("zarr_core.sources.tensors.WHOLE_BYTES", 1000)
    content = io.BytesIO()
    torch.save(torch.zeros(100_000), content)
    Storage(memory_root).write("run_1/surface_pressure.pt", [content.getvalue()])
    tree = SampleTree("ahmedml", memory_root)
    sample = tree.discover()["run_1"]

    def refused(*_: object) -> None:
        raise TransferError("the connection is lost")

    monkeypatch.setattr("zarr_core.storage.reading.read_pieces", refused)  # what lies between the first and last bytes
    with pytest.raises(TransferError, match="the connection is lost"):
        tree.load(sample, "surface_pressure")


def test_a_remote_file_reads_like_a_file(memory_root: str) -> None:
    storage = Storage(memory_root)
    storage.write("x", [b"0123456789"])
    file = RemoteFile(storage, "x", 10)
    assert (file.seek(-3, 2), file.read(), file.read(), file.tell()) == (7, b"789", b"", 10)
    assert (file.seek(2), file.read(3), file.seek(1, 1), file.read(1)) == (2, b"234", 6, b"6")


def test_a_remote_file_that_has_become_shorter_is_refused(memory_root: str) -> None:
    """Where the service tells no versions. The memory of what is missing would be taken for values of the file."""
    storage = Storage(memory_root)
    storage.write("x", [bytes(300_000)])
    for first, size in ((0, 100), (90_000, 300_000), (0, 400_000)):
        file = RemoteFile(storage, "x", 400_000)
        file.seek(first)
        with pytest.raises(SourceError, match="x: it changed after the source was listed; run again"):
            file.readinto(bytearray(size))


def test_an_empty_remote_file_needs_no_request(monkeypatch: pytest.MonkeyPatch, memory_root: str) -> None:
    """Some services refuse a range without bytes."""
    monkeypatch.setattr(Storage, "begin_read", None)
    assert RemoteFile(Storage(memory_root), "x", 0).read() == b""


def test_the_fingerprint_follows_the_files(tmp_path: Path) -> None:
    source = write_source(tmp_path)
    tree = SampleTree("ahmedml", source)
    before = tree.discover()
    torch.save(torch.zeros(77), source / "run_2" / "surface_pressure.pt")
    (source / "run_3" / "params.json").write_text("{}")
    after = tree.discover()
    same = {i for i in before if before[i].fingerprint == after[i].fingerprint}
    assert same == {"run_1"}
    assert not tree.is_unchanged(before["run_2"])
    assert tree.is_unchanged(after["run_2"])


class Bomb:
    """What it does when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path(self.target),)

    def __init__(self, target: Path) -> None:
        self.target = str(target)


def test_what_no_tensor_file_may_hold(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    good = (source / "run_1" / "surface_pressure.pt").read_bytes()

    def reason(content: object) -> str:
        path = source / "run_1" / "surface_pressure.pt"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            torch.save(content, path)
        tree = SampleTree("ahmedml", source)
        with pytest.raises(SampleError) as caught:
            tree.load(tree.discover()["run_1"], "surface_pressure")
        assert "run_1, surface_pressure: surface_pressure.pt" in str(caught.value)
        return str(caught.value)

    assert "truncated" in reason(good[: len(good) // 2])
    assert "truncated" in reason(b"")
    assert "truncated" in reason(b"not a torch file at all")
    assert "could run code" in reason(Bomb(tmp_path / "boom"))
    assert not (tmp_path / "boom").exists()
    assert "dict" in reason({"a": torch.zeros(3)})
    assert "sparse" in reason(torch.eye(3).to_sparse())
    assert "more than fit into its" in reason(torch.zeros(1).expand(10**12))


def test_wherever_a_file_is_cut_it_is_the_files_fault(tmp_path: Path) -> None:
    # At about every sixth place torch's reader fails with an OSError, which is no word on the disk.
    path = tmp_path / "field.pt"
    torch.save(torch.arange(30_000, dtype=torch.float32), path)
    whole = path.read_bytes()
    for size in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="truncated or not a torch file"):
            load_pt(Storage(tmp_path), path.name, FileInfo(path.name, size, ""))


def test_parameters_are_scalars_or_lists_or_an_error(tmp_path: Path) -> None:
    for file in resolve_kind("emmi_wing").fields.values():
        (tmp_path / "run_1").mkdir(exist_ok=True)
        torch.save(torch.zeros(2, file.field.dim), tmp_path / "run_1" / file.filename)
    torch.save({"span": torch.tensor(1.5), "aoa": 2.0}, tmp_path / "run_1" / "design_parameters.pt")
    tree = SampleTree("emmi_wing", tmp_path)
    assert tree.load_parameters(tree.discover()["run_1"]) == {"span": 1.5, "aoa": 2.0}
    (tmp_path / "run_1" / "params.json").write_text('{"inflow": [1, 2.5], "left out": [0, NaN]}')
    assert tree.load_parameters(tree.discover()["run_1"]) == {"span": 1.5, "aoa": 2.0, "inflow": [1.0, 2.5]}
    for broken in ('{"a": [[1]]}', '{"a": {"b": 1}}', "[1]", "{", '{"a": -Infinity}', '{"a": 1e999}'):
        (tmp_path / "run_1" / "params.json").write_text(broken)
        with pytest.raises(SampleError, match=r"params\.json"):
            tree.load_parameters(tree.discover()["run_1"])


def test_parameters_in_a_file_of_fields(tmp_path: Path) -> None:
    """Its scalars and lists of numbers that no field uses; other arrays are named."""
    (tmp_path / "a").mkdir()
    arrays = {"x": np.zeros((5, 3), "f4"), "q": np.zeros(5), "speed": 30.0, "turns": np.arange(3), "car": "fast"}
    np.savez(tmp_path / "a" / "data.npz", **arrays, left=np.zeros((2, 2)), empty=np.zeros(0), long=np.zeros(1001))
    files = {name: {"file": "data.npz", "array": array} for name, array in (("position", "x"), ("pressure", "q"))}
    document = {"name": "own", "samples": "*", "files": {f"surface_{name}": file for name, file in files.items()}}
    parameters = [{"file": "data.npz", "prefix": "my_"}]
    tree = SampleTree(SourceDescription.model_validate(document | {"parameters": parameters}), tmp_path)
    with collected_notes() as notes:
        found = tree.load_parameters(tree.discover()["a"])
    assert found == {"my_speed": 30.0, "my_turns": [0, 1, 2], "my_car": "fast"}
    assert list(notes.values()) == ["left: float64 (2, 2), empty: float64 (0,), long: float64 (1001,)"]


@pytest.mark.parametrize("content", [b"", b"PK", None])
def test_a_damaged_file_of_parameters_is_named(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "a").mkdir()
    np.save(tmp_path / "a" / "x.npy", np.zeros((5, 3), "f4"))
    np.savez(tmp_path / "a" / "data.npz", speed=np.float64(30))
    if content is not None:
        (tmp_path / "a" / "data.npz").write_bytes(content)
    else:  # whose loading would run code
        np.savez(tmp_path / "a" / "data.npz", speed=np.array({"a": 1}, dtype=object))
    document = {"name": "own", "samples": "*", "files": {"surface_position": "x.npy"}, "parameters": "data.npz"}
    tree = SampleTree(SourceDescription.model_validate(document), tmp_path)
    with pytest.raises(SampleError, match="data.npz: (truncated|rejected)"):
        tree.load_parameters(tree.discover()["a"])


def test_blacklisted_samples_are_never_chosen(tmp_path: Path) -> None:
    for sample_id in ("A_1", "A_2"):
        (tmp_path / sample_id).mkdir()
        torch.save(torch.zeros(2, 3), tmp_path / sample_id / "surface_position.pt")
    (tmp_path / "blacklist.txt").write_text("A_1.vtk\n")
    (tmp_path / "train_design_ids.txt").write_text("A_1\nA_2\n")
    tree = SampleTree("drivaernet", tmp_path)
    assert list(select_samples(tree).samples) == list(select_samples(tree, ["train"]).samples) == ["A_2"]


def test_a_split_file_cannot_climb(tmp_path: Path) -> None:
    (tmp_path / "A_1").mkdir()
    torch.save(torch.zeros(2, 3), tmp_path / "A_1" / "surface_position.pt")
    (tmp_path / "train_design_ids.txt").write_text("A_1\n../../etc\n")
    selection = select_samples(SampleTree("drivaernet", tmp_path), ["train"])
    assert list(selection.samples) == ["A_1"]
    assert any(note.endswith("are skipped: ../../etc") for note in selection.notes)


@pytest.mark.parametrize(
    ("places", "reason"),
    [
        ({}, "either root"),
        ({"root": "x", "source_url": "x"}, "either root"),
        ({"root": "s3://bucket/x"}, "pass it as source_url"),
        ({"root": "/no/such/folder"}, "not a folder"),
        ({"source_url": "nosuch://x"}, "nosuch"),
    ],
)
def test_a_place_that_cannot_be_opened(places: dict[str, str], reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        open_source("ahmedml", **places)


def test_a_missing_location_is_an_error_not_an_empty_dataset(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nowhere cannot be listed"):
        select_samples(SampleTree("ahmedml", tmp_path / "nowhere"))


@pytest.mark.parametrize("folder", ["../elsewhere", "/etc", "a/../../elsewhere", ""])
def test_a_recorded_folder_cannot_lead_out_of_the_source(tmp_path: Path, folder: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "source" / "run_1").mkdir(parents=True)
    (tmp_path / "source" / "run_1" / "field.pt").touch()
    storage = Storage(tmp_path / "source")
    assert folder_now(storage, "run_1", {"folder": folder}) == "run_1"
    assert folder_now(storage, "run_2", {"folder": folder}) is None


def test_linked_samples_are_samples(tmp_path: Path) -> None:
    source = write_source(tmp_path / "elsewhere", ("run_1",))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "run_1").symlink_to(source / "run_1")
    (tmp_path / "linked" / "run_2").mkdir()
    for file in (source / "run_1").iterdir():
        (tmp_path / "linked" / "run_2" / file.name).symlink_to(file)
    tree = SampleTree("ahmedml", tmp_path / "linked")
    samples = tree.discover()
    assert {sample_id: sample.complete for sample_id, sample in samples.items()} == {"run_1": True, "run_2": True}
    assert (
        samples["run_1"].n_bytes
        == samples["run_2"].n_bytes
        == SampleTree("ahmedml", source).discover()["run_1"].n_bytes
    )
    os.utime(source / "run_1" / "surface_pressure.pt", (1, 1))
    assert not tree.is_unchanged(samples["run_2"])
    assert tree.discover()["run_2"].fingerprint != samples["run_2"].fingerprint


def test_a_description_is_a_value() -> None:
    description = SourceDescription(name="x", samples="*", files={"surface_position": "p.pt"})
    assert resolve_kind(description) is description
    assert pickle.loads(pickle.dumps(description)) == description


def test_a_bucket_that_is_not_there_is_named(s3_root: str) -> None:
    with pytest.raises(SourceError, match=r"s3://missing-.* cannot be listed: it does not exist"):
        SampleTree(KIND, s3_root.replace("//bucket-", "//missing-")).discover()


def test_a_sample_is_unchanged_for_another_machine_that_mounts_the_same_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device has a number of its own on each; an executor's workers may be anywhere."""
    source = SampleTree(KIND, write_source(tmp_path / "source", ("run_1",)))
    sample = source.discover()["run_1"]
    stat = os.stat

    def elsewhere(path: str, **options: bool) -> os.stat_result:
        values = list(stat(path, **options).__reduce__()[1][0])
        values[2] += 7  # st_dev
        return os.stat_result(values, stat(path, **options).__reduce__()[1][1])

    with monkeypatch.context() as patched:
        patched.setattr("zarr_core.storage.backends.local.os.stat", elsewhere)
        assert local.info(str(tmp_path)).changed
        assert source.is_unchanged(sample)
    path = tmp_path / "source" / "run_1" / "surface_pressure.pt"
    at = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(at, at))
    assert not source.is_unchanged(sample)


def test_a_description_is_written_the_same_in_every_process() -> None:
    """The order of a set of text differs from process to process."""
    names = [f"surface_scalar_{letter}" for letter in "abcdefghijkl"]
    files = {"surface_position": "xyz.pt", **{name: f"{name}.pt" for name in names}}
    described = SourceDescription.model_validate({"name": "own", "samples": "*", "files": files, "optional": names})
    assert described.model_dump(mode="json")["optional"] == names
