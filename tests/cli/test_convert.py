"""The command line of convert."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch

import zarr_core.verify
from tests.helpers.small_source import write_source
from tests.helpers.stores import damage, nan, objects, write_broken
from zarr_core._util.units import format_size
from zarr_core.convert import convert, main
from zarr_core.datasets import build_dataset
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.statistics import main as statistics

SETTINGS = {"chunk_points": 32}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source")


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def test_the_command_line(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_broken(source, "run_2", "volume_cell_vorticity.pt", torch.full((237, 3), 1e5))
    common = ("--dataset-kind", "ahmedml", "--root", source, "--output", tmp_path / "store", "--chunk-points", 32)
    assert run(*common, "--dataset-name", "bodies", "--codec", "zstd:1", "--shuffle-seed", 7) == 1
    printed = capsys.readouterr()
    assert "2 converted" in printed.out
    assert "1 quarantined" in printed.out
    assert "quarantined: run_2: volume_vorticity: largest value 100000 does not fit float16" in printed.out
    assert "2 samples" in printed.out
    manifest = load_manifest(tmp_path / "store")
    assert (manifest.dataset_name, manifest.compressor, manifest.shuffle_seed) == ("bodies", "zstd:1", 7)
    assert run(*common, "--dataset-name", "bodies", "--codec", "zstd:1", "--shuffle-seed", 7) == 1
    assert run(*common, "--field-dtype", "volume_vorticity=float32", "--reconvert") == 0
    assert len(load_manifest(tmp_path / "store").samples) == 3
    assert run(*common) == 0  # all there


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--dataset-kind", "nosuch", "--root", "{source}", "--output", "{store}"), 1),
        (("--dataset-kind", "ahmedml", "--root", "{source}/nothing", "--output", "{store}"), 1),
        (("--dataset-kind", "ahmedml", "--source-url", "nosuch://x", "--output", "{store}"), 1),
        (("--dataset-kind", "ahmedml", "--root", "{source}", "--output", "{file}"), 1),
        (("--dataset-kind", "ahmedml", "--root", "{source}", "--output", "{file}/below"), 1),
        (("--dataset-kind", "ahmedml", "--root", "{source}", "--output", "{store}", "--field-dtype", "x"), 2),
        (("--dataset-kind", "ahmedml", "--root", "{source}", "--output", "{store}", "--codec", "x"), 2),
        (("--dataset-kind", "ahmedml", "--root", "{source}", "--output", "{store}", "--workers", "0"), 2),
        (("--dataset-kind", "ahmedml", "--root", "{source}", "--output", "{store}", "--limit", "0"), 2),
        (("--dataset-kind", "ahmedml", "--root", "{source}", "--output", "{damaged}"), 1),
    ],
)
def test_the_command_line_answers_with_an_error_not_a_traceback(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    places = {name: tmp_path / name for name in ("source", "store", "file", "damaged")}
    assert run(*(argument.format(**places) for argument in arguments)) == status
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    assert not (tmp_path / "store" / "manifest.json").exists()


def test_verify_prints_the_command_that_repairs(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, **SETTINGS)
    damage(store, "run_3")
    assert zarr_core.verify.main([str(store), "--source", str(source), "--quiet", "--json"]) != 0
    repair = json.loads(capsys.readouterr().out)["repair"]
    assert repair.endswith("--dataset-kind ahmedml --force --samples run_3")
    assert main([*shlex.split(repair)[2:], "--quiet"]) == 0
    assert verify_store(str(store)).ok


def test_a_run_in_which_every_sample_fails_fails(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1",))
    write_broken(source, "run_1", "surface_pressure.pt", nan(70))
    assert run("--dataset-kind", "ahmedml", "--root", source, "--output", tmp_path / "store") == 1


def test_a_dry_run_previews_a_migration_and_writes_nothing(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, sample_ids=["run_1", "run_2"], **SETTINGS)
    torch.save(torch.zeros(70), source / "run_2" / "surface_pressure.pt")
    before = objects(store)
    arguments = [str(store), "--source", str(source), "--dataset-kind", "ahmedml", "--values-dtype", "float32"]
    capsys.readouterr()
    assert main([*arguments, "--reconvert", "--dry-run"]) == 0
    sizes = {path.name: sum(file.stat().st_size for file in path.glob("*.pt")) for path in source.iterdir()}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("would convert 1 new (")
    assert f"1 stale ({format_size(sizes['run_1'])})" in lines[0]
    assert f"1 changed ({format_size(sizes['run_2'])})" in lines[0]
    assert lines[1] == "  settings: values_dtype: 'float16' -> 'float32'"
    assert main([*arguments, "--reconvert", "--dry-run", "--json", "--limit", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(map(len, document["to_convert"].values())) == 1
    assert document["remaining"] == len(sizes) - 1
    assert main([*arguments, "--reconvert", "--dry-run", "--samples", "run_2"]) == 0
    assert "\n  settings: values_dtype: 'float16' -> 'float32'\n" in capsys.readouterr().out
    assert main([*arguments, "--dry-run"]) != 0, "without --reconvert it would be refused"
    assert objects(store) == before


def test_a_dry_run_names_the_samples_that_would_be_retired(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, **SETTINGS)
    for gone in ("run_1", "run_2"):
        shutil.rmtree(source / gone)
    before = objects(store)
    arguments = [str(store), "--source", str(source), "--dataset-kind", "ahmedml", "--retire-vanished", "--dry-run"]
    too_many = "none: 2 samples are no longer at the source, more than --max-retired-share allows"
    for share, expected in (("0.5", f"{too_many}: run_1, run_2"), ("1", "2: run_1, run_2")):
        capsys.readouterr()
        assert main([*arguments, "--max-retired-share", share]) == 0
        assert f"\n  would retire {expected}\n" in capsys.readouterr().out
    assert main([*arguments, "--max-retired-share", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["retired"] == ["run_1", "run_2"]
    assert objects(store) == before


def test_changed_splits_are_named_before_and_after_a_conversion(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, kind = tmp_path / "store", tmp_path / "kind.yaml"
    files = {"surface_position": "surface_position_vtp.pt", "surface_pressure": "surface_pressure.pt"}
    rule = {"rule": "files", "filename": "{split}.txt"}
    kind.write_text(json.dumps({"name": "cars", "samples": "run_*", "files": files, "splits": rule}))

    def write_splits(train: str, val: str) -> None:
        (source / "train.txt").write_text(train)
        (source / "val.txt").write_text(val)

    write_splits("run_1\nrun_2\n", "run_3\n")
    command = [str(store), "--source", str(source), "--dataset-kind", str(kind)]
    assert main([*command, "--quiet"]) == 0
    write_splits("run_1\n", "run_2\nrun_3\n")
    write_source(source, ("run_4",))
    shutil.rmtree(source / "run_3")
    before = objects(store)
    capsys.readouterr()
    for options in (["--dry-run"], []):
        assert main([*command, *options, "--json", "--quiet"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed["split_changes"] == [
            {"what": "removed from train", "names": ["run_2"], "note": ""},
            {"what": "added to val", "names": ["run_2"], "note": ""},
        ]
        assert any("--retire-vanished removes (1): run_3" in note for note in printed["notes"])
        if options:
            assert objects(store) == before
            assert main([*command, *options]) == 0
            assert "\n  removed from train 1: run_2\n  added to val 1: run_2\n" in capsys.readouterr().out
    assert main([*command, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["split_changes"] == []


def test_datasets_can_normalize_after_a_conversion(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    common = (store, "--source", source, "--dataset-kind", "ahmedml", "--chunk-points", 32, "--quiet", "--json")

    def converted(*options: str | int) -> list[str]:
        assert run(*common, *options) == 0
        written: list[str] = json.loads(capsys.readouterr().out)["statistics"]
        return [str(Path(name).relative_to(store)) for name in written]

    folder = "statistics/00000001"
    expected = [f"{folder}/train.yaml", f"{folder}/train.json", "stats.yaml", "stats.json"]
    assert converted("--limit", 2) == expected
    recorded = (store / folder / "train.yaml").read_bytes()
    assert statistics([str(store), "--split", "train", "--quiet"]) == 0
    assert (store / folder / "train.yaml").read_bytes() == recorded
    config = {"kind": "point", "root": str(store), "split": "train", "normalizers": {"surface_pressure": "mean_std"}}
    with pytest.warns(UserWarning, match="absent"):
        build_dataset(config)
    assert converted()[0] == "statistics/00000002/train.yaml"
    with pytest.warns(UserWarning, match="absent"):
        build_dataset(config)
    assert converted() == []  # nothing was committed
    shutil.rmtree(store / "statistics")
    assert converted()[0] == "statistics/00000002/train.yaml"


def test_statistics_that_cannot_be_written_do_not_fail_a_conversion(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "stats.yaml").mkdir()
    assert run(tmp_path / "store", "--source", source, "--dataset-kind", "ahmedml", "--chunk-points", 32) == 0
    printed = capsys.readouterr().out
    assert "note: the statistics that training normalizes with were not written: " in printed
    assert "`zarr-core statistics " in printed
