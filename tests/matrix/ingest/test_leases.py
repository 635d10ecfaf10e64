"""Leases: one holder at a time, renewal, and takeover."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.waiting import wait_for
from zarr_core.matrix.ingest.leases import LEASES, Leases
from zarr_core.storage import Storage


def test_one_holder_at_a_time(any_root: str) -> None:
    storage = Storage(any_root)
    mine, theirs = Leases(storage), Leases(storage)
    assert mine.take(["a", "b"]) == ["a", "b"]
    assert theirs.take(["b", "c"]) == ["c"]
    theirs.release(["b", "c"])
    assert theirs.take(["b", "c"]) == ["c"]
    mine.release(["a", "b"])
    assert theirs.take(["a", "b"]) == ["a", "b"]


def test_a_lease_expires_unless_it_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(tmp_path)
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now, sleep=time.sleep)
    monkeypatch.setattr("zarr_core.matrix.ingest.leases.time", clock)
    silent, alive, waiting = (Leases(storage, seconds=0.4) for _ in range(3))
    assert silent.take(["silent"])
    with alive.renewing():
        assert alive.take(["alive"])
        before = (tmp_path / LEASES).read_bytes()
        assert waiting.take(["silent", "alive"]) == []
        now += 0.3
        assert waiting.take(["silent", "alive"]) == []
        wait_for(lambda: (tmp_path / LEASES).read_bytes() != before)  # a renewal, by this machine's real clock
        now += 0.3
        assert waiting.take(["silent", "alive"]) == ["silent"]
    silent.release(["silent"])  # is not its own any more
    assert Leases(storage).take(["silent"]) == []


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"a": 7}', b"\xff"])
def test_a_damaged_lease_is_taken_over(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / LEASES).write_bytes(damage)
    assert Leases(Storage(tmp_path)).take(["a"]) == ["a"]


def test_16_threads_take_16_leases(any_root: str) -> None:
    storage = Storage(any_root)
    names = [f"b{number}" for number in range(16)]
    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(lambda _: Leases(storage).take(names), range(4)))
    assert sorted(name for part in got for name in part) == sorted(names)
