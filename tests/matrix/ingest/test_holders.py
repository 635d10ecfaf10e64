"""Whether the process that holds a lease has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.waiting import wait_for
from zarr_core._util.processes import start_ticks
from zarr_core.matrix.ingest.holders import has_ended, identity
from zarr_core.matrix.ingest.leases import LEASES, Leases
from zarr_core.storage import Storage

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
