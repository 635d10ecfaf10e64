"""A disk cache that processes share: killed processes, and the lock."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers.cache_reader import ENTRY, LIMIT, OBJECTS, content, fetched, read_on
from tests.helpers.faults import Kill, is_killed
from tests.helpers.waiting import LIMIT_SECONDS
from zarr_core.storage.disk_cache import DiskCache


def is_kept(cache: DiskCache, key: str) -> bool:
    return cache.lookup(key, 0, OBJECTS.get(key, ENTRY)) is not None


def test_readers_that_are_killed_leave_a_working_cache(tmp_path: Path) -> None:
    """Some are killed before a new entry is renamed, some during an eviction; others keep running."""
    folder = str(tmp_path / "cache")
    context = multiprocessing.get_context("forkserver")
    living = [context.Process(target=read_on, args=(folder, LIMIT, seed, 200)) for seed in range(3)]
    for reader in living:
        reader.start()
    kills = [Kill("rename", number=number) for number in (1, 10, 50)]
    kills += [Kill("unlink", "/[0-9a-f]{2}/", number) for number in (1, 7)]
    for seed, kill in enumerate(kills, start=len(living)):
        assert is_killed(kill, read_on, folder, LIMIT, seed), kill
    for reader in living:
        reader.join()
    assert [reader.exitcode for reader in living] == [0, 0, 0]
    assert is_killed(Kill("rename"), read_on, folder, LIMIT, 99)
    cache = DiskCache(folder, LIMIT)
    assert cache.size() <= LIMIT
    assert (
        len(list(Path(cache.folder).rglob("*.tmp"))) == 1
    )  # the others were removed by processes that evicted entries
    for key, size in OBJECTS.items():
        assert fetched(cache, key, 0, size) == content(key, 0, size)
        assert is_kept(cache, key)
    assert cache.size() <= LIMIT
    assert cache.corrupt_evicted == 0  # a rename is atomic: a kill leaves nothing to repair
    Path(cache.folder, "lock").write_bytes(b"")  # an hour has passed: the next entry recounts and removes leftovers
    fetched(cache, "one more")
    assert not list(Path(cache.folder).rglob("*.tmp"))


def test_a_kill_while_writing_an_entry_leaves_no_entry(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    fetched(cache, "a")
    child = os.fork()
    if not child:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (ENTRY // 2, ENTRY // 2)
        )  # the kernel kills a process that writes more
        fetched(cache, "b")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ
    assert not is_kept(cache, "b")
    assert cache.corrupt_evicted == 0
    assert fetched(cache, "b") == content("b", 0, ENTRY)
    assert is_kept(cache, "a")


def _hold_the_lock(folder: str, held: Any) -> None:
    cache = DiskCache(folder)
    with cache._locked() as lock:
        assert lock is not None
        held.set()
        signal.pause()


def test_no_process_waits_long_for_the_lock_or_for_a_dead_holder(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    fetched(cache, "a")
    context = multiprocessing.get_context("forkserver")
    held = context.Event()
    holder = context.Process(target=_hold_the_lock, args=(str(tmp_path / "cache"), held))
    holder.start()
    assert held.wait(LIMIT_SECONDS)
    assert fetched(cache, "b") == content("b", 0, ENTRY)
    assert not is_kept(cache, "b")
    assert is_kept(cache, "a")
    holder.kill()
    holder.join()
    fetched(cache, "b")
    assert is_kept(cache, "b")


_FORKS_WITH_THE_LOCK = """
import os, signal, sys
from zarr_core.storage.disk_cache import DiskCache
with DiskCache(sys.argv[1])._locked():
    child = os.fork()
    if child:
        print(child, flush=True)
    signal.pause()
"""


def test_a_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    fetched(cache, "a")
    command = [sys.executable, "-c", _FORKS_WITH_THE_LOCK, str(tmp_path / "cache")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert not cache.store("b", 0, 5, b"bytes")
        parent.kill()
        parent.wait()
        assert cache.store("b", 0, 5, b"bytes")
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()
