"""Outputs that can only be local: a URL is refused, instead of a folder "s3:" in the working directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND, write_source
from zarr_core.__main__ import main
from zarr_core.convert import convert
from zarr_core.datasets import build_dataset
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.storage import local_path
from zarr_core.storage.disk_cache import DiskCache


def test_a_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("report") == tmp_path / "report"
    assert local_path(f"file://{tmp_path}/report") == tmp_path / "report"
    assert local_path(Path("~/report")) == Path.home() / "report"


@pytest.mark.parametrize("command", [["convert", "", "--source", "source"], ["info", ""], ["matrix", ""]])
def test_an_empty_place_is_not_the_working_directory(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_source(tmp_path / "source", ("run_1",), surface=20, volume=30)
    kind = ["--dataset-kind", KIND] if command[0] == "convert" else []
    assert main([*command, *kind]) == 1
    assert "a path or URL is empty; a variable of the environment" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("setting", ["root", "cache_dir", "statistics"])
def test_an_empty_place_of_a_dataset_is_not_the_working_directory(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_published_store(tmp_path, make_samples(1)))
    with pytest.raises(ZarrCoreError, match="a path or URL is empty; a variable of the environment"):
        build_dataset({"kind": "point", "root": ".", "split": "all", setting: ""})


@pytest.mark.parametrize(
    "line",
    [
        "benchmark store --source source --output URL",
        "shootout store --tiers a=tier --output URL",
        "quality matrix --output URL",
        "inspect source --write URL",
    ],
)
def test_commands_refuse_a_url(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    WideMatrix.create("matrix", ["a"])
    source = write_source(tmp_path / "source", ("run_1",), surface=20, volume=30)
    convert(KIND, "store", root=source, chunk_points=16)
    before = sorted(tmp_path.iterdir())
    assert main(line.replace("URL", "s3://bucket/x").split()) == 1
    assert "s3://bucket/x: a local path is needed here, not a URL" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_a_cache_is_local() -> None:
    with pytest.raises(ZarrCoreError, match="a local path is needed"):
        DiskCache("s3://bucket/cache")
