"""What error bounds save, as ``zarr-core inspect --error-bounds`` shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.small_source import KIND, write_source
from zarr_core import __main__ as command
from zarr_core.convert import convert
from zarr_core.points.convert.savings import savings_of_source
from zarr_core.points.read.reader import ZarrChunkReader


def test_the_sizes_are_those_of_a_conversion(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1",), surface=16_384, volume=20_000)
    found = savings_of_source(KIND, str(source))
    sizes = found["fields"]
    assert found["sample"] == "run_1"
    assert sizes["surface_position"][0] == 12
    assert sizes["surface_pressure"][0] == 2
    default, coarse, fine = sizes["volume_velocity"]
    assert coarse < fine < 12
    assert default == 6
    convert(KIND, tmp_path / "store", root=source, max_errors={"volume_velocity": "1e-3std"})
    stored = ZarrChunkReader(tmp_path / "store").read_attributes("run_1")["stored_bytes"]["volume_velocity"]
    assert coarse == pytest.approx(stored / 20_000, rel=0.01)
    points = {"surface": 16_384, "volume": 20_000}
    for number, total in enumerate(found["bytes"]):
        sums = [size[number] * points[name.partition("_")[0]] for name, size in sizes.items()]
        assert total == pytest.approx(sum(sums), rel=0.01)


def test_inspect_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_source(tmp_path / "source")
    assert command.main(["inspect", str(source), "--error-bounds"]) == 0
    out = capsys.readouterr().out
    assert "bytes per point of run_1: by default, then with --max-error FIELD=ERROR for 1e-3std, 1e-4std" in out
    assert "  volume_velocity: 6, " in out
    assert "  all fields of the sample: " in out
    assert command.main(["inspect", str(source), "--error-bounds", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["error_bounds"]
    assert found["bounds"] == [None, "1e-3std", "1e-4std"]
    assert found["fields"]["volume_velocity"][0] == 6
    assert command.main(["inspect", str(source), "--json"]) == 0
    assert "error_bounds" not in json.loads(capsys.readouterr().out)


def test_without_a_usable_pcodec_inspect_names_the_extra_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "source")
    monkeypatch.delattr("pcodec.ChunkConfig")  # as in a later version
    assert command.main(["inspect", str(source), "--error-bounds", "--write", str(tmp_path / "new.yaml")]) == 1
    assert "pip install 'zarr-core[pcodec]'" in capsys.readouterr().err
    assert not (tmp_path / "new.yaml").exists()
