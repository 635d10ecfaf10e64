"""The disk cache: counters, eviction, corrupt entries, and full disks."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cache_reader import BLOCK, ENTRY, content, fetched, files
from zarr_core._util.units import format_size, parse_size
from zarr_core.datasets import build_dataset
from zarr_core.errors import ZarrCoreError
from zarr_core.storage.disk_cache import DiskCache


def is_kept(cache: DiskCache, key: str, start: int = 0, stop: int = ENTRY) -> bool:
    return cache.lookup(key, start, stop) is not None


# --- keeping ------------------------------------------------------------------------------------------------------


def test_a_range_is_fetched_once_and_counted(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    assert fetched(cache, "a") == content("a", 0, ENTRY)
    assert cache.lookup("a", 0, ENTRY) == content("a", 0, ENTRY)
    assert DiskCache(tmp_path / "cache").lookup("a", 0, ENTRY) == content("a", 0, ENTRY)
    assert fetched(cache, "a", 5, 15) == content("a", 5, 15)
    assert fetched(cache, "b") != content("a", 0, ENTRY)
    for start, data in ((-7, b"the end"), (0, b"all of it")):
        assert cache.lookup("a", start, None) is None
        assert cache.store("a", start, None, data)
        assert cache.lookup("a", start, None) == data
    assert (cache.hits, cache.misses, cache.corrupt_evicted, cache.evicted) == (3, 5, 0, 0)
    assert cache.size() == (3 + 3 + 1 + 1 + 1) * BLOCK
    cache.discard("a", 0, ENTRY)
    cache.discard("a", 5, 15)
    cache.discard("a", -7, None)
    cache.discard("a", 0, None)
    assert [is_kept(cache, "a"), is_kept(cache, "a", 5, 15), is_kept(cache, "b")] == [False, False, True]
    cache.discard("b", 0, ENTRY)
    assert not files(cache)


def test_short_and_empty_answers_are_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    assert not cache.store("a", 0, 10, b"short")
    assert not cache.store("a", 0, None, b"")
    assert not files(cache)
    assert cache.store("a", 0, 10, bytes(10))
    assert cache.lookup("a", 0, 10) == bytes(10)


@pytest.mark.parametrize(
    ("text", "size"),
    [("200GB", 200 * 10**9), ("1.5 TiB", 3 * 2**39), ("4096", 4096), ("512 mib", 2**29), ("3k", 3000), (7, 7)],
)
def test_sizes(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "1 XB", "1GBs", "1,5GB", 0, -4])
def test_sizes_that_make_no_sense(text: int | str, tmp_path: Path) -> None:
    with pytest.raises(ZarrCoreError, match="size"):
        DiskCache(tmp_path, text)
    with pytest.raises(ZarrCoreError, match="cache_limit"):
        build_dataset({"kind": "point", "root": "x", "split": "train", "cache_limit": text})


def test_sizes_are_written_with_units() -> None:
    assert [format_size(n) for n in (5, 1234, 2.5e9, 7e15)] == ["5 B", "1.23 kB", "2.5 GB", "7,000 TB"]


# --- the limit ----------------------------------------------------------------------------------------------------


def test_the_least_recently_used_go_first_and_the_limit_holds(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 10 * 3 * BLOCK)
    for key in "abcdefghij":
        fetched(cache, key)
    assert cache.size() == cache.limit
    assert is_kept(cache, "a")  # used again: b and c are the oldest now
    fetched(cache, "k")
    assert [key for key in "abcdefghijk" if not is_kept(cache, key)] == ["b", "c"]
    assert cache.evicted == 2
    for number in range(100):
        fetched(cache, str(number))
        assert cache.size() <= cache.limit
    assert len(files(cache)) >= 8


def test_a_smaller_limit_applies_from_the_next_opening_on(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    for key in "abcdefghij":
        fetched(cache, key)
    assert DiskCache(tmp_path / "cache").size() == cache.size()
    smaller = DiskCache(tmp_path / "cache", limit=cache.size() // 2)
    assert 0 < smaller.size() <= smaller.limit
    assert is_kept(smaller, "j")
    assert not is_kept(smaller, "a")


def test_what_is_larger_than_the_limit_is_not_kept_and_one_warning_says_so(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 30 * BLOCK)
    fetched(cache, "small")
    with pytest.warns(UserWarning, match="its limit is 123 kB; use a larger cache_limit"):
        assert len(fetched(cache, "large", 0, 40 * BLOCK)) == 40 * BLOCK
    with warnings.catch_warnings(action="error"):
        fetched(cache, "large too", 0, 40 * BLOCK)
    assert [is_kept(cache, "small"), is_kept(cache, "large", 0, 40 * BLOCK)] == [True, False]
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").touch()
    with pytest.warns(UserWarning, match="reads continue without it"):  # of something else
        fetched(cache, "other")


def test_foreign_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x" * 100_000)
    cache = DiskCache(tmp_path, 4 * 3 * BLOCK)
    fetched(cache, "a")
    note = files(cache)[0].parent / "note"
    note.write_text("mine")
    for number in range(50):
        fetched(cache, str(number))
    assert (tmp_path / "thesis.tex").exists()
    assert note.exists()


def test_a_wrong_sum_of_sizes_is_corrected(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", 10 * 3 * BLOCK)
    for key in "abcdefgh":
        fetched(cache, key)
    lock = Path(cache.folder, "lock")
    for record in (b"", b"\0" * 20, b"garbage", b"\xff" * 20):
        lock.write_bytes(record)
        for number in range(5):
            fetched(cache, f"{record!r} {number}")
            assert cache.size() <= cache.limit
    for file in files(cache)[
        1:
    ]:  # entries were deleted by hand: the sum is too large now, which is noticed at the limit
        file.unlink()
    before = cache.evicted
    for key in "tuvwxyz":
        fetched(cache, key)
    assert all(is_kept(cache, key) for key in "tuvwxyz")
    assert cache.evicted == before


def test_an_entry_that_is_evicted_while_it_is_read_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path / "cache")
    fetched(cache, "a")
    utime = os.utime

    def evict_meanwhile(*arguments: Any, **options: Any) -> None:  # the entry is open here, and nothing read yet
        utime(*arguments, **options)
        shutil.rmtree(cache.folder)

    monkeypatch.setattr("zarr_core.storage.disk_cache.os.utime", evict_meanwhile)
    monkeypatch.setattr("zarr_core.storage.disk_cache.os.supports_fd", {evict_meanwhile})
    assert cache.lookup("a", 0, ENTRY) == content("a", 0, ENTRY)
    monkeypatch.undo()
    fetched(cache, "a")  # and the folder is made again
    assert cache.lookup("a", 0, ENTRY) == content("a", 0, ENTRY)


# --- damage -------------------------------------------------------------------------------------------------------


def damaged(whole: bytes) -> Iterator[bytes]:
    """An entry's file with a bit flipped, every byte of its header among them; torn, too long, all zeros."""
    for at in (*range(60), *range(60, len(whole), 997), len(whole) - 1):
        yield whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    for size in (0, 1, 20, 51, 52, 53, 1000, len(whole) - 1):
        yield whole[:size]
    yield whole + b"x"
    yield bytes(len(whole))


def test_a_flipped_byte_and_a_torn_entry_are_evicted_and_fetched_again(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    fetched(cache, "a")
    (file,) = files(cache)
    for evicted, data in enumerate(damaged(file.read_bytes()), start=1):
        file.write_bytes(data)
        assert fetched(cache, "a") == content("a", 0, ENTRY)
        assert cache.corrupt_evicted == evicted
        assert cache.lookup("a", 0, ENTRY) == content("a", 0, ENTRY)


def test_an_entry_under_the_name_of_another_is_evicted(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    fetched(cache, "a")
    (first,) = files(cache)
    fetched(cache, "b")
    (second,) = (file for file in files(cache) if file != first)
    shutil.copy(first, second)
    assert fetched(cache, "b") == content("b", 0, ENTRY)
    assert cache.corrupt_evicted == 1


def test_temporary_files_of_dead_processes_are_removed_by_the_next_count(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    fetched(cache, "a")
    half = files(cache)[0].parent / "0123456789abcdef0123456789abcdef.tmp"
    half.write_bytes(bytes(1000))
    record = bytearray(Path(cache.folder, "lock").read_bytes())
    fetched(cache, "b")
    assert half.exists()
    record[0] ^= 1  # the sum is no longer valid
    Path(cache.folder, "lock").write_bytes(record)
    fetched(cache, "c")
    assert not half.exists()
    assert [is_kept(cache, key) for key in "abc"] == [True] * 3


def test_an_unreadable_entry_is_a_miss(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    fetched(cache, "a")
    (file,) = files(cache)
    file.unlink()
    file.mkdir()
    with pytest.warns(UserWarning, match="cannot be written"):
        assert fetched(cache, "a") == content("a", 0, ENTRY)


# --- full and read-only disks -------------------------------------------------------------------------------------


def test_a_full_disk_means_plain_reads_and_one_warning(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    fetched(cache, "before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))  # the system's own refusal; Python ignores the signal
    try:
        with pytest.warns(UserWarning, match="reads continue without it"):
            assert fetched(cache, "a") == content("a", 0, ENTRY)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert fetched(cache, "a") == content("a", 0, ENTRY)
        assert cache.lookup("before", 0, ENTRY) == content("before", 0, ENTRY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(files(cache)) == 1
    assert not list(Path(cache.folder).rglob("*.tmp"))


@pytest.mark.parametrize("folder", ["/proc/zarr_core", "/sys/zarr_core"])
def test_a_folder_that_cannot_be_made_means_plain_reads_and_one_warning(folder: str) -> None:
    cache = DiskCache(folder)
    with pytest.warns(UserWarning, match="cannot be written"):
        assert fetched(cache, "a") == content("a", 0, ENTRY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fetched(cache, "a") == content("a", 0, ENTRY)


def test_a_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ZarrCoreError, match="is a file"):
        DiskCache(tmp_path / "file")


def test_repr_counts_hits_and_misses(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", "1GB")
    for _ in range(3):
        fetched(cache, "a")
    assert repr(cache) == f"<DiskCache {tmp_path / 'cache'}, limit 1 GB: 2 hits, 1 misses>"


def test_a_pickled_cache_is_the_same_cache(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache", "1GB")
    fetched(cache, "a")
    other = pickle.loads(pickle.dumps(cache))
    assert other.lookup("a", 0, ENTRY) == content("a", 0, ENTRY)
    assert other.limit == 10**9
