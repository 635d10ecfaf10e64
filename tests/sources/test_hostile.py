"""Hostile source files raise errors of the library. Each case was found by ``tests/attacks``."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.small_source import KIND, load_field, write_source
from zarr_core.errors import (
    SourceError,
)
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.sources import SampleTree

IDS = ("run_1", "run_2")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source", IDS)


def pressure(source: Path, sample_id: str = "run_1") -> Path:
    return source / sample_id / "surface_pressure.pt"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.zeros(70, dtype=torch.uint16), "uint16"),
        (torch.zeros(70).to(torch.float8_e4m3fn), "float8"),
        (torch.empty(70, device="meta"), "without values"),
        (torch.nested.nested_tensor([torch.zeros(3), torch.zeros(5)]), "nested"),
        (torch.zeros(70).to_sparse(), "sparse"),
    ],
)
def test_tensors_that_are_no_plain_numbers_are_refused(tmp_path: Path, source: Path, value: Any, reason: str) -> None:
    torch.save(value, pressure(source))
    report = convert(KIND, tmp_path / "store", root=source, chunk_points=16)
    assert [o.sample_id for o in report.having("converted")] == ["run_2"]
    assert reason in report.having("quarantined")[0].reason


@pytest.mark.parametrize("wrap", [torch.nn.Parameter, lambda t: t.requires_grad_()])
def test_tensors_with_gradients_are_accepted(tmp_path: Path, source: Path, wrap: Any) -> None:
    torch.save(wrap(torch.full((70,), 3.0)), pressure(source))
    assert len(convert(KIND, tmp_path / "store", root=source, chunk_points=16).having("converted")) == 2
    assert (ZarrChunkReader(tmp_path / "store").read_sample("run_1")["surface_pressure"] == 3).all()


def test_an_archive_with_packed_records_is_refused_before_it_is_unfolded(tmp_path: Path, source: Path) -> None:
    old, new = zipfile.ZipFile(pressure(source)), io.BytesIO()
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in old.namelist():
            packed.writestr(name, old.read(name) + (b"\0" * 10_000_000 if "/data/" in name else b""))
    pressure(source).write_bytes(new.getvalue())
    (refused,) = convert(KIND, tmp_path / "store", root=source, chunk_points=16).having("quarantined")
    assert "compressed records" in refused.reason


@pytest.mark.parametrize("keep_time", [False, True])
def test_a_file_that_changes_while_it_is_read_is_neither_stored_nor_refused(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, keep_time: bool
) -> None:
    """Rewritten in place with as many bytes, and with its time set back as copying tools do."""
    before = pressure(source).stat()
    whole = pressure(source).read_bytes()
    load = SampleTree.load

    def interrupted(self: SampleTree, sample: Any, canonical: str) -> torch.Tensor:
        path = pressure(source)
        if (sample.sample_id, canonical) == ("run_1", "surface_pressure"):
            path.write_bytes(b"\0" * len(whole))  # half way through
            if keep_time:
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return load(self, sample, canonical)

    with monkeypatch.context() as patched:
        patched.setattr(SampleTree, "load", interrupted)
        report = convert(KIND, tmp_path / "store", root=source, chunk_points=16)
    (failed,) = report.having("failed")
    assert "changed while they were read" in failed.reason
    assert report.manifest.quarantine == {}
    pressure(source).write_bytes(whole)
    os.utime(pressure(source), ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(convert(KIND, tmp_path / "store", root=source, chunk_points=16).manifest.samples) == 2


def test_tensor_files_may_be_links_but_text_files_must_not(tmp_path: Path, source: Path) -> None:
    """The store publishes text files, and a link could point to any file of the machine."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    pressure(source).rename(elsewhere / "p.pt")
    pressure(source).symlink_to(elsewhere / "p.pt")
    (source / "run_2").rename(elsewhere / "run_2")
    (source / "run_2").symlink_to(elsewhere / "run_2")
    (elsewhere / "run_2" / "params.json").write_text('{"speed": 1}')
    report = convert(KIND, tmp_path / "store", root=source, chunk_points=16)
    assert len(report.having("converted")) == 2
    assert len(load_field(source, "run_1", "surface_pressure")) == 70

    (elsewhere / "secret.json").write_text('{"key": "s3cr3t"}')
    (source / "run_1" / "params.json").symlink_to(elsewhere / "secret.json")
    (refused,) = convert(KIND, tmp_path / "store", root=source, chunk_points=16).having("quarantined")
    assert "it is a link" in refused.reason
    (source / "run_1" / "params.json").unlink()

    kind = tmp_path / "own.yaml"
    kind.write_text(
        "name: own\nsamples: run_*\nblacklists: [blacklist.txt]\nfiles: {surface_position: surface_position_vtp.pt}\n"
    )
    (source / "blacklist.txt").symlink_to(elsewhere / "secret.json")
    with pytest.raises(SourceError, match="blacklist.txt cannot be read: it is a link"):
        convert(str(kind), tmp_path / "own", root=source)
    assert not (tmp_path / "own" / "blacklist.txt").exists()
