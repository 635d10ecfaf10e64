"""Leases: one holder at a time, renewal, and takeover."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.faults import lost_response
from tests.helpers.waiting import wait_for
from zarr_core._util.processes import start_ticks
from zarr_core.matrix.ingest.leases import LEASES, Leases, has_ended, identity
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


def test_a_lease_whose_response_is_lost_is_held(memory_root: str) -> None:
    """Another loader changes the object before it is read back: the holder must not wait for itself."""
    storage = Storage(memory_root)
    mine, theirs = Leases(storage), Leases(storage)
    with lost_response(storage, LEASES, lambda: Leases(Storage(memory_root)).take(["c"])):
        assert mine.take(["a", "b"]) == ["a", "b"]
    assert (mine.holders, theirs.take(["a", "b"])) == ({}, [])
    mine.release(["a", "b"])
    assert theirs.take(["a", "b"]) == ["a", "b"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"a": 7}', b"\xff"])
def test_a_damaged_lease_is_taken_over(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / LEASES).write_bytes(damage)
    assert Leases(Storage(tmp_path)).take(["a"]) == ["a"]


@pytest.mark.slow
def test_16_threads_take_16_leases(any_root: str) -> None:
    storage = Storage(any_root)
    names = [f"b{number}" for number in range(16)]
    with ThreadPoolExecutor(4) as threads:
        got = list(threads.map(lambda _: Leases(storage).take(names), range(4)))
    assert sorted(name for part in got for name in part) == sorted(names)


linux = pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="only Linux identifies process tables")


def ended_pid() -> int:
    """A process number that no process has."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_processes_of_this_host() -> None:
    assert not has_ended(identity())
    assert not has_ended(identity() | {"pid": os.getppid(), "started": None})
    assert has_ended(identity() | {"pid": ended_pid()})
    assert has_ended(identity() | {"pid": 10**30})


@linux
def test_a_number_that_another_process_has_now() -> None:
    assert has_ended(identity() | {"started": "1"})


@linux
def test_a_process_that_only_waits_for_its_parent() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = identity() | {"pid": process.pid, "started": start_ticks(process.pid)}
    assert not has_ended(holder)
    process.send_signal(signal.SIGKILL)
    wait_for(lambda: has_ended(holder))  # before its parent has collected it
    process.communicate()
    assert has_ended(holder)


@pytest.mark.parametrize(
    "holder",
    [
        {},
        {"host": "elsewhere", "pid": 1},  # as earlier versions recorded
        identity() | {"processes": "another container"},
        identity() | {"pid": "1"},
        identity() | {"pid": -1},
        identity() | {"pid": True},
    ],
)
def test_nothing_is_known_of_other_hosts(holder: dict[str, object]) -> None:
    assert not has_ended(holder)


def test_the_lease_of_an_ended_process_is_free_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pid = ended_pid()
    holder = identity() | {"owner": "another", "beat": 3}
    (tmp_path / LEASES).write_text(json.dumps({"a": holder | {"pid": pid}, "b": holder}))
    leases = Leases(Storage(tmp_path))
    assert leases.take(["a", "b"]) == ["a"]
    assert leases.holders == {"b": f"process {os.getpid()} on {holder['host']}"}
    assert f"takes over batch a from process {pid} on {holder['host']}, which has ended" in caplog.text
