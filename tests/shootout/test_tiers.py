"""Tiers of a shootout: copied to, emptied, and left out if they are too slow; arguments that cannot be used."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.small_shootout import run_commands, shootout
from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.shootout import candidates, run, run_shootout, tiers
from zarr_core.shootout.__main__ import _tiers, main
from zarr_core.shootout.budget import MeasurementError
from zarr_core.shootout.formats import Format
from zarr_core.shootout.measurement import Measurement
from zarr_core.shootout.request import ShootoutRequest
from zarr_core.shootout.tiers import Tier
from zarr_core.shootout.verdict import Case, judge
from zarr_core.storage import Storage

pytestmark = pytest.mark.usefixtures("quick")


def test_a_matrix_on_the_tier_is_copied_beside_itself(matrix: WideMatrix, tmp_path: Path) -> None:
    folder = Path(matrix.url).parent
    tier = {"name": "scratch", "url": str(folder), "local": True}
    options = ShootoutRequest(matrix.url, {"scratch": str(folder)}, num_features=20)
    facts = run.take_workload(options, tmp_path).facts
    rows, columns = (
        Measurement("scratch", candidates.MATRIX_ENTRIES[place].with_settings("zstd:3", 50), reads, [2.0])
        for place, reads in ((0, "samples"), (-1, "features"))
    )
    run_commands(judge(Case([rows, columns], {"scratch": tier}, facts, {}, batch_size=2))["command"])
    assert WideMatrix.open(folder / "betas-50-zstd-3").shape == matrix.shape


def test_a_budget_that_is_used_up_is_named(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ZarrCoreError, match="nothing was measured; draws: .npy, on scratch: about 3.0 s are needed"):
        shootout(store, tmp_path, budget=0.5, formats=[".npy"])
    assert list((tmp_path / "tier").iterdir()) == []


def test_folders_are_removed_after_a_failure(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        assert len(list((tmp_path / "tier").iterdir())) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(Tier, "put", failing)
    with pytest.raises(KeyboardInterrupt):
        shootout(store, tmp_path, formats=[".npy"])
    assert list((tmp_path / "tier").iterdir()) == []


def test_folders_are_removed_when_a_scheduler_ends_the_job(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # that of a worker of pytest-xdist is another
    monkeypatch.setattr(Tier, "put", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        arguments = [str(store), "--tiers", f"a={tmp_path}", "--formats", ".npy", "--output", str(tmp_path / "out")]
        assert main([*arguments, "--quiet"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert list(tmp_path.iterdir()) == []


def test_a_tier_on_a_url_is_copied_to_and_emptied(tmp_path: Path) -> None:
    (tmp_path / "copy" / "a").mkdir(parents=True)
    (tmp_path / "copy" / "a" / "b").write_bytes(b"123")
    with Tier("bucket", "memory://shootout-tier") as tier:
        tier.put("npy", tmp_path / "copy")
        assert Storage(tier.place("npy")).read("a/b") == b"123"
        assert not tier.drop_from_cache("npy")
    assert Storage("memory://shootout-tier").list() == {}


def test_a_tier_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="tier work: .*absent is not a folder"):
        Tier("work", str(tmp_path / "absent"))


def test_a_tier_without_a_name_is_named_without_its_password(tmp_path: Path) -> None:
    url = "s3://user:hunter2@bucket/t"
    ((name, place),) = _tiers([url]).items()
    assert place == url
    assert name.startswith("s3://")
    assert "hunter2" not in name
    with pytest.raises(StoreError, match="was given with a password") as refused:
        Tier(url, "memory://x")
    assert "hunter2" not in str(refused.value)


def test_a_tier_too_slow_for_a_copy_is_named_and_the_others_are_measured(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped, begun, begin_write = [0.0], [], Storage.begin_write

    def stuck(storage: Storage, name: str, data: bytes, *, for_data: bool = True) -> Future[None]:
        if not for_data:  # the object by which a tier is tested
            return begin_write(storage, name, data, for_data=False)
        begun.append(name)
        skipped[0] += 20
        return Future()

    monkeypatch.setattr(Tier, "clock", staticmethod(lambda: time.monotonic() + skipped[0]))
    monkeypatch.setattr(Storage, "begin_write", stuck)
    (tmp_path / "disk").mkdir()
    tiers = {"bucket": "memory://shootout-slow", "disk": str(tmp_path / "disk")}
    options: dict[str, Any] = {"budget": 60.0, "samples": 2, "batch_size": 2, "formats": [".npy", "pickle"]}
    report = run_shootout(str(store), tiers, tmp_path / "out", **options)
    assert {row["tier"] for row in report["measurements"]} == {"disk"}
    reasons = {each["what"]: each["reason"] for each in report["not_measured"]}
    for name in ("draws: .npy, on bucket", "draws: pickle, on bucket", "samples: .npy, on bucket"):
        assert re.fullmatch(r"bucket is too slow: .* could not be written within 15\.0 s", reasons[name])
    assert len(begun) <= 8, "no copy was begun after the first one"
    assert Storage("memory://shootout-slow").list() == {}


def test_a_local_tier_ends_within_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "_PIECE", 1)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "a").write_bytes(b"12345678")
    ticks = itertools.count()
    monkeypatch.setattr(Tier, "clock", staticmethod(lambda: float(next(ticks))))
    with Tier("disk", str(tmp_path)) as tier:
        with pytest.raises(MeasurementError, match="disk is too slow: 8 B could not be written within 5.0 s"):
            tier.put("npy", tmp_path / "copy", 5.0)
        assert next(ticks) == 6
        assert list(Storage(tier.root).list()) == ["probe"]


class Unwritable(Format):
    """A library that fails when it writes."""

    def prepare(self, samples: Any, folder: Path) -> None:
        raise KeyError("no header")


def test_a_format_that_cannot_be_written_has_the_same_reason_on_each_tier(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(MeasurementError, match="KeyError: 'no header'"):
            tiers.local_copy(None, tmp_path, candidates.Candidate("Unwritable", f"{__name__}:Unwritable"))
