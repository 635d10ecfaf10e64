"""Names of a store's objects, above all of samples whose ids contain blanks."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrays import assert_equal
from tests.helpers.described_source import FILES, Source
from tests.helpers.examples import SAMPLE_NAMES, examples
from tests.helpers.servers.clouds import GoogleServer
from tests.helpers.stores import assert_reads_equal, objects
from zarr_core import ZarrChunkReader, export_webdataset, load_manifest, stage_store, verify_store
from zarr_core.__main__ import main
from zarr_core.convert import convert
from zarr_core.exports import ShardItems
from zarr_core.format.names import check_sample_id
from zarr_core.format.object_names import sample_folder
from zarr_core.storage import Storage

SPLITS = {"train": ["Wing A/case 1", "Wing A/case 2"], "test": ["Wing B/case 1"]}


def test_folders_of_ids_without_blanks_never_change() -> None:
    assert sample_folder("run_1") == "samples/run_1"
    assert sample_folder("param0/1.a+b=c@d~e-f") == "samples/param0/1.a+b=c@d~e-f"


def test_a_blank_is_written_as_an_exclamation_mark() -> None:
    assert sample_folder("Wing A/case  2") == "samples/Wing!A/case!!2"


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(st.lists(SAMPLE_NAMES, min_size=1, max_size=3).map("/".join))
def test_the_id_follows_from_its_folder(sample_id: str) -> None:
    folder = sample_folder(check_sample_id(sample_id))
    assert " " not in folder
    assert folder.removeprefix("samples/").replace("!", " ") == sample_id


@settings(max_examples=examples(4))
@given(st.lists(SAMPLE_NAMES, min_size=1, max_size=4, unique=True))
def test_samples_of_any_id_are_converted_read_copied_and_exported(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Source(Path(folder))
        for number, name in enumerate(names):
            source.write(name, low=100.0 * number)
        ids = sorted(names)
        manifest = source.convert(workers=1).manifest
        assert (list(manifest.samples), manifest.splits["train"]) == (ids, ids)
        assert verify_store(str(source.store), source=str(source.root)).ok
        for number, name in enumerate(names):
            values = source.reader().read_sample(name, fields=["surface_temperature"])["surface_temperature"]
            assert values.min() == 100.0 * number
        copy, part, out = (Path(folder) / other for other in ("copy", "part", "out"))
        stage_store(source.store, copy)
        assert_reads_equal(copy, source.store, ids)
        stage_store(source.store, part, fields=["surface_position"], sample_ids=ids[:1])
        assert_reads_equal(part, source.store, ids[:1], ["surface_position"])
        export_webdataset(source.store, out)
        assert sorted(ShardItems(out).sample_ids) == ids
        assert not [name for name in (*objects(source.store), *objects(part)) if " " in name]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Samples in two levels of folders whose names contain blanks, listed in files of splits."""
    source = Source(tmp_path)
    files = FILES | {"design_parameters": "parameters.pt"}
    tables = [{"file": "angles.csv", "key": "name", "sample_id": "{}"}]
    source.kind.write_text(json.dumps({"name": "wings", "samples": "Wing */case *", "files": files, "tables": tables}))
    everything = [sample_id for ids in SPLITS.values() for sample_id in ids]
    for sample_id in everything:
        (source.root / sample_id).mkdir(parents=True)
        source.write(sample_id)
        torch.save({"speed": 3.0}, source.root / sample_id / "parameters.pt")
    for split, ids in SPLITS.items():
        (source.root / f"{split}_design_ids.txt").write_text("\n".join(ids) + "\n")
    rows = [f"{sample_id},4\n" for sample_id in everything]
    (source.root / "angles.csv").write_text("name,angle\n" + "".join(rows))
    return source


@pytest.mark.slow
def test_every_kind_of_location_takes_them(source: Source, any_root: str) -> None:
    """In the source's names as they are, and in the store's names without blanks."""
    storage = Storage(f"{any_root}/source")
    for name, data in objects(source.root).items():
        storage.write(name, [data])
    store = f"{any_root}/store"
    report = convert(str(source.kind), store, source_url=storage.root)
    assert report.ok, report.results
    assert report.manifest.splits == SPLITS
    assert verify_store(store, source=storage.root).ok
    expected = torch.load(source.root / "Wing A/case 2/temperature.pt", weights_only=True)
    read = ZarrChunkReader(store).read_sample("Wing A/case 2")["surface_temperature"]
    assert sorted(read[:, 0]) == expected.tolist()
    names = Storage(store).list("samples")
    assert {name.partition("/case")[0] for name in names} == {"samples/Wing!A", "samples/Wing!B"}


@pytest.mark.parametrize("engine", ["zarr", "tensorstore"])
def test_every_engine_reads_them_also_from_web_servers(
    source: Source, gs_server: GoogleServer, gs_root: str, engine: str
) -> None:
    if engine == "tensorstore":
        pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    source.convert()
    for name, data in objects(source.store).items():
        Storage(gs_root).write(name, [data])
    roots = [str(source.store)] + [gs_root.replace("gs:/", gs_server.url)] * (engine == "zarr")
    for root in roots:
        read = ZarrChunkReader(root, engine=engine).read_sample("Wing A/case 2")
        assert_equal(read, source.reader().read_sample("Wing A/case 2"))


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Output of a command that succeeds."""
    status = main([str(word) for word in words])
    printed = capsys.readouterr()
    assert status == 0, printed
    return printed.out


def test_commands_take_and_print_the_id(source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, kind = source.store, source.kind
    chosen = ["--samples", "Wing A/case 2", "Wing B/case 1"]
    run(capsys, "convert", store, "--source", source.root, "--dataset-kind", kind, *chosen)
    assert list(load_manifest(store).samples) == ["Wing A/case 2", "Wing B/case 1"]
    run(capsys, "convert", store, "--source", source.root, "--dataset-kind", kind)
    assert load_manifest(store).splits == SPLITS
    for command in (["info", store], ["verify", store, "--source", source.root], ["statistics", store], ["log", store]):
        run(capsys, *command)
    assert "samples/Wing!A/case!2/" in run(capsys, "info", store, "Wing A/case 2")
    parameters = source.reader().read_attributes("Wing A/case 2")["parameters"]
    assert parameters == {"speed": 3.0, "angle": 4}
    assert "2 samples" in run(capsys, "verify", store, *chosen)
    run(capsys, "stage", store, tmp_path / "copy", *chosen)
    assert "Wing A/case 1" in run(capsys, "diff", store, 1, 2)
    run(capsys, "export", "webdataset", store, tmp_path / "out", *chosen)
    assert sorted(ShardItems(tmp_path / "out").sample_ids) == ["Wing A/case 2", "Wing B/case 1"]
    run(capsys, "export", "croissant", store, tmp_path / "croissant.json")

    shutil.rmtree(source.root / "Wing A" / "case 1")
    (source.root / "train_design_ids.txt").write_text("Wing A/case 2\n")
    retire = ["--retire-vanished", "--max-retired-share", 1]
    run(capsys, "convert", store, "--source", source.root, "--dataset-kind", kind, *retire)
    assert load_manifest(store).retired == {"Wing A/case 1"}
    run(capsys, "gc", store, "--grace", "0s")
    assert not list((store / "samples" / "Wing!A" / "case!1").rglob("*"))
    run(capsys, "verify", store)
