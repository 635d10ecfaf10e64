"""Garbage collection keeps everything that kept generations name, and deletes everything else that is old."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from tests.helpers.clocks import clocks_ahead
from tests.helpers.tiny_store import HEAD, ClockedStorage, Killed, set_item, write_group
from zarr_core.errors import CollectedError, StoreError, ZarrCoreError
from zarr_core.storage import Storage, StoredObject
from zarr_core.versioning.gc import TOMBSTONE_SECONDS, GcReport, collect_garbage
from zarr_core.versioning.generations import load
from zarr_core.versioning.tags import delete_tag, make_tag

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def storage(memory_root: str) -> ClockedStorage:
    return ClockedStorage(memory_root)


def collect(storage: Storage, grace: float = DAY, **options: bool) -> GcReport:
    return collect_garbage(storage, HEAD, grace, **options)


def groups(storage: Storage) -> set[str]:
    return {name.rpartition("/")[0] for name in storage.list("groups")}


def three_generations(storage: ClockedStorage) -> None:
    """Item x in three groups, one after the other, replaced 100 and 50 hours ago."""
    for name in ("one", "two", "three"):
        set_item(storage, "x", write_group(storage, name))
        storage.time += 50 * HOUR


def test_old_generations_are_deleted_and_reading_them_names_the_reason(storage: ClockedStorage) -> None:
    three_generations(storage)
    result = collect(storage)
    assert (result.expired, result.kept) == ([1, 2], [3])
    assert set(result.prefixes) == {"groups/one", "groups/two"}
    assert groups(storage) == {"groups/three"}
    assert set(storage.list("generations")) == {"generations/00000003.json"}
    with pytest.raises(StoreError, match="no generation 2; .* has been collected"):
        load(storage, HEAD, 2)
    assert load(storage, HEAD, 3).items == {"x": "groups/three"}


def test_a_generation_is_kept_for_the_grace_period_after_it_was_replaced(storage: ClockedStorage) -> None:
    three_generations(storage)
    # Replaced 100 and 50 hours ago; that the groups themselves are older does not matter.
    assert collect(storage, 101 * HOUR).expired == []
    assert collect(storage, 60 * HOUR).expired == [1]
    assert load(storage, HEAD, 2).items == {"x": "groups/two"}
    assert groups(storage) == {"groups/two", "groups/three"}


def test_a_tag_keeps_a_generation_until_it_is_deleted(storage: ClockedStorage) -> None:
    three_generations(storage)
    assert make_tag(storage, HEAD, "paper", 1) == 1
    assert collect(storage).expired == [2]
    assert load(storage, HEAD, "paper").items == load(storage, HEAD, 1).items == {"x": "groups/one"}
    assert groups(storage) == {"groups/one", "groups/three"}
    with pytest.raises(StoreError, match="no generation 2"):
        make_tag(storage, HEAD, "late", 2)
    with pytest.raises(StoreError, match="'paper' names generation 1"):
        make_tag(storage, HEAD, "paper", 3)
    assert delete_tag(storage, HEAD, "paper") == 1
    with pytest.raises(StoreError, match="no tag 'paper'; its tags are: none"):
        load(storage, HEAD, "paper")
    collect(storage)
    assert groups(storage) == {"groups/three"}


def test_generations_after_a_restored_head_are_kept_until_the_next_commit(storage: ClockedStorage) -> None:
    three_generations(storage)
    storage.write("tiny.json", [storage.read("generations/00000002.json")])  # restored from a backup
    storage.time += 2 * DAY
    assert make_tag(storage, HEAD, "lost", 3) == 3
    assert collect(storage).kept == [2, 3]
    assert delete_tag(storage, HEAD, "lost") == 3
    assert collect(storage).kept == [2, 3]
    assert groups(storage) == {"groups/two", "groups/three"}
    assert set_item(storage, "y", write_group(storage, "y")).generation == 4
    assert collect(storage).kept == [3, 4]
    storage.time += 2 * DAY
    assert collect(storage).kept == [4]
    assert groups(storage) == {"groups/two", "groups/y"}


def test_a_number_is_not_given_twice_if_generations_in_between_were_collected(storage: ClockedStorage) -> None:
    three_generations(storage)
    make_tag(storage, HEAD, "old", 1)
    make_tag(storage, HEAD, "new", 3)
    storage.time += 2 * DAY
    assert collect(storage).kept == [1, 3]
    storage.write("tiny.json", [storage.read("generations/00000001.json")])  # restored from a backup
    assert set_item(storage, "y", write_group(storage, "y")).generation == 4


def test_neither_tags_nor_collection_make_a_generation(storage: ClockedStorage) -> None:
    three_generations(storage)
    before = load(storage, HEAD)
    make_tag(storage, HEAD, "paper", 1)
    collect(storage)
    after = load(storage, HEAD)
    assert (after.generation, after.items) == (3, before.items)
    set_item(storage, "y", write_group(storage, "y"))
    assert load(storage, HEAD).retention.tags == {"paper": 1}  # a commit carries the tags on
    assert load(storage, HEAD, 3) == before  # and what is archived has none


def test_old_unnamed_groups_are_deleted_but_foreign_objects_never(storage: ClockedStorage) -> None:
    set_item(storage, "x", write_group(storage, "x"))
    write_group(storage, "old")
    for foreign in ("notes.txt", "groups/readme", "groups/old/deeper/still", "other/thing/a"):
        storage.write(foreign, [b"mine"])
    storage.time += 2 * DAY
    write_group(storage, "young")
    storage.write("groups/old2/.a.0123456789abcdef0123456789abcdef.tmp", [b"killed long ago?"])
    storage.written["groups/old2/.a.0123456789abcdef0123456789abcdef.tmp"] -= 2 * DAY
    storage.written["groups/young/a"] -= 10 * DAY  # its other object is young: a writer may be at work on it
    result = collect(storage)
    assert set(result.prefixes) == {"groups/old", "groups/old2"}
    assert (result.young, result.foreign) == (1, 2)  # objects outside "groups" are not listed
    assert {"notes.txt", "groups/readme", "groups/old/deeper/still", "other/thing/a"} <= set(storage.list())


def test_temporary_files_of_killed_writers_are_deleted(storage: ClockedStorage) -> None:
    set_item(storage, "x", write_group(storage, "x"))
    for name in ("groups/x/.a", "generations/.1", ".tiny.json", ".stats.yaml", "other/.a"):
        storage.write(f"{name}.0123456789abcdef0123456789abcdef.tmp", [b"half"])
    assert collect(storage).temporary.objects == 0
    storage.time += 1800  # each may still have a writer, which a collection without a grace period must not fail
    assert collect(storage, 0).temporary.objects == 0
    storage.time += 2 * DAY
    assert collect(storage).temporary.objects == 4
    assert set(storage.list()) == {
        "tiny.json",
        "generations/00000001.json",
        "groups/x/a",
        "groups/x/b",
        "other/.a.0123456789abcdef0123456789abcdef.tmp",  # a folder that does not belong to the store
    }


def test_a_collection_on_a_full_disk_begins_with_what_needs_no_new_head(storage: ClockedStorage) -> None:
    three_generations(storage)
    storage.write("groups/three/.a.0123456789abcdef0123456789abcdef.tmp", [b"half"])
    storage.time += 2 * DAY

    def full(operation: str) -> None:
        if operation.startswith("replace"):
            raise OSError(28, "No space left on device")

    storage.interrupt = full
    with pytest.raises(OSError, match="No space left"):
        collect(storage)
    assert groups(storage) == {"groups/one", "groups/two", "groups/three"}
    assert not [name for name in storage.list() if name.endswith(".tmp")]


def test_a_dry_run_reports_the_same_and_changes_nothing(storage: ClockedStorage) -> None:
    three_generations(storage)
    write_group(storage, "orphan")
    storage.time += 2 * DAY
    before = {name: storage.read(name) for name in storage.list()}
    would = collect(storage, dry_run=True)
    assert {name: storage.read(name) for name in storage.list()} == before
    did = collect(storage)
    assert (would.expired, would.prefixes, would.bytes) == (did.expired, did.prefixes, did.bytes)
    assert did.bytes > 0


def test_nothing_to_do_writes_nothing(storage: ClockedStorage) -> None:
    set_item(storage, "x", write_group(storage, "x"))
    changed: list[str] = []
    storage.interrupt = changed.append
    collect(storage)
    assert changed == []


def test_objects_with_future_times_are_kept(storage: ClockedStorage) -> None:
    set_item(storage, "x", write_group(storage, "x"))
    storage.time += DAY
    write_group(storage, "future")
    storage.time -= 10 * DAY  # the clock was wrong then, or is now
    assert collect(storage, 0).prefixes == {}
    assert "groups/future" in groups(storage)


def test_a_store_clock_that_runs_ahead_deletes_nothing_more(storage: ClockedStorage) -> None:
    storage.time = time.time()
    three_generations(storage)  # 150 hours go by there, none here
    write_group(storage, "orphan")
    storage.time += 1000 * DAY
    result = collect(storage)
    assert (result.expired, result.prefixes) == ([], {})


def test_a_store_of_another_program_is_refused(storage: ClockedStorage) -> None:
    storage.write("tiny.json", [b'{"items": {}, "generation": 0}'])
    with pytest.raises(StoreError, match="written by another program"):
        collect(storage)
    with pytest.raises(StoreError, match="written by another program"):
        make_tag(storage, HEAD, "t")
    with pytest.raises(ZarrCoreError, match="must not be negative"):
        collect(storage, -1)


@pytest.mark.parametrize(
    ("name", "listed"), [("run_1", "Run_1"), ("Fl\u00fcgel", "Flu\u0308gel"), ("STRASSE", "straße")]
)
def test_a_disk_that_lists_another_spelling_of_a_name_loses_nothing(memory_root: str, name: str, listed: str) -> None:
    """A disk that ignores case lists the first spelling, one that normalizes Unicode its own."""

    class Disk(ClockedStorage):
        def path(self, name_of_object: str) -> str:
            return super().path(name_of_object.replace(name, listed))

        def objects(self, prefix: str, *, recursive: bool = True) -> Iterator[StoredObject]:
            for found in Storage.objects(self, prefix, recursive=recursive):
                yield found._replace(modified=self.time - 2 * DAY)

    storage = Disk(memory_root)
    set_item(storage, "x", write_group(storage, name))
    assert collect(storage).prefixes == {}
    assert storage.read(f"groups/{name}/a")
    set_item(storage, "x", write_group(storage, "other"))
    assert set(collect(storage).prefixes) == {f"groups/{listed}"}
    with pytest.raises(CollectedError):
        set_item(storage, "y", write_group(storage, name))


# --- concurrent writers


def during(storage: ClockedStorage, moment: str, act: Callable[[], None]) -> None:
    """Run an action of another writer just before the first storage operation whose description starts so."""

    def interrupt(operation: str) -> None:
        if operation.startswith(moment):
            storage.interrupt = lambda _: None
            act()

    storage.interrupt = interrupt


def test_an_orphan_that_is_committed_just_before_its_tombstone_is_kept(storage: ClockedStorage) -> None:
    set_item(storage, "x", write_group(storage, "x"))
    write_group(storage, "orphan")
    storage.time += 2 * DAY
    during(storage, "replace tiny.json", lambda: set_item(storage, "y", "groups/orphan"))
    assert collect(storage).prefixes == {}
    assert storage.read("groups/orphan/a") == b"orphan a"


def test_an_orphan_that_was_committed_and_replaced_meanwhile_is_kept(storage: ClockedStorage) -> None:
    set_item(storage, "x", write_group(storage, "x"))
    write_group(storage, "orphan")
    storage.time += 2 * DAY

    def act() -> None:
        set_item(storage, "y", "groups/orphan")
        set_item(storage, "y", None)

    during(storage, "replace tiny.json", act)
    assert collect(storage).prefixes == {}
    assert load(storage, HEAD, 2).items["y"] == "groups/orphan"


@pytest.mark.parametrize("moment", ["delete groups/orphan/a", "delete groups/orphan/b"])
def test_a_commit_cannot_name_a_tombstoned_prefix(storage: ClockedStorage, moment: str) -> None:
    set_item(storage, "x", write_group(storage, "x"))
    write_group(storage, "orphan")
    storage.time += 2 * DAY
    refused: list[CollectedError] = []

    def act() -> None:
        with pytest.raises(CollectedError, match="garbage collection removed it") as caught:
            set_item(storage, "y", "groups/orphan")
        refused.append(caught.value)

    during(storage, moment, act)
    collect(storage)
    assert [error.names for error in refused] == [("groups/orphan",)]
    assert load(storage, HEAD).items == {"x": "groups/x"}


def test_a_writer_suspended_during_a_collection_commits_nothing_deleted(storage: ClockedStorage) -> None:
    """It found the group before the collection; half of it was written again later; the tombstone has expired."""
    set_item(storage, "x", write_group(storage, "x"))
    write_group(storage, "orphan")
    storage.time += 2 * DAY
    collect(storage)
    storage.time += 2 * TOMBSTONE_SECONDS
    collect(storage)
    assert load(storage, HEAD).retention.tombstones == {}
    storage.write("groups/orphan/b", [b"the half that was left to do"])
    with pytest.raises(CollectedError):
        set_item(storage, "y", "groups/orphan")
    write_group(storage, "orphan")
    set_item(storage, "y", "groups/orphan")  # written again after the tombstone has expired, it may be committed


def test_a_head_read_before_two_collections_is_not_mistaken_for_the_one_after(storage: ClockedStorage) -> None:
    """The head after them differs only in the number of collections."""
    set_item(storage, "x", write_group(storage, "x"))
    for name in ("first", "orphan"):
        write_group(storage, name)
        storage.time += 2 * DAY
        if name == "first":
            collect(storage)
            storage.time += 2 * TOMBSTONE_SECONDS
            collect(storage)

    def act() -> None:
        collect(storage)
        storage.time += 2 * TOMBSTONE_SECONDS
        collect(storage)

    during(storage, "replace tiny.json", act)
    with pytest.raises(CollectedError):
        set_item(storage, "y", "groups/orphan")


def test_a_tag_during_a_collection_keeps_the_generation_or_is_refused(storage: ClockedStorage) -> None:
    three_generations(storage)
    during(storage, "replace tiny.json", lambda: make_tag(storage, HEAD, "in-time", 1) and None)
    assert collect(storage).expired == [2]
    assert load(storage, HEAD, "in-time").items == {"x": "groups/one"}
    delete_tag(storage, HEAD, "in-time")

    def too_late() -> None:
        with pytest.raises(StoreError, match="generation 1"):
            make_tag(storage, HEAD, "late", 1)

    during(storage, "delete", too_late)
    assert collect(storage).expired == [1]


def test_tombstones_expire_after_a_day(storage: ClockedStorage) -> None:
    set_item(storage, "x", write_group(storage, "x"))
    write_group(storage, "orphan")
    storage.time += 2 * DAY
    collect(storage)
    storage.time += TOMBSTONE_SECONDS - HOUR
    write_group(storage, "orphan")
    collect(storage)
    with pytest.raises(CollectedError):
        set_item(storage, "y", "groups/orphan")
    storage.time += 2 * HOUR
    collect(storage)
    assert set_item(storage, "y", "groups/orphan").items["y"] == "groups/orphan"


def test_two_collections_at_once(storage: ClockedStorage) -> None:
    three_generations(storage)
    for moment in ("replace tiny.json", "delete groups"):
        write_group(storage, "orphan")
        storage.time += 2 * DAY + TOMBSTONE_SECONDS
        during(storage, moment, lambda: collect(storage) and None)
        collect(storage)
        assert groups(storage) == {"groups/three"}


def test_a_collection_killed_anywhere_is_finished_by_the_next(memory_root: str) -> None:
    survived = 0
    for dies_at in range(100):
        storage = ClockedStorage(f"{memory_root}/{dies_at}")
        three_generations(storage)
        write_group(storage, "orphan")
        storage.time += 2 * DAY
        steps = 0

        def die(_: str, dies_at: int = dies_at) -> None:
            nonlocal steps
            steps += 1
            if steps > dies_at:
                raise Killed

        storage.interrupt = die
        try:
            collect(storage)
            survived += 1
        except Killed:
            storage.interrupt = lambda _: None
            assert load(storage, HEAD).items == {"x": "groups/three"}
            collect(storage)
        assert groups(storage) == {"groups/three"}
        assert set(storage.list("generations")) == {"generations/00000003.json"}
        if survived:
            break
    assert dies_at > 8


@pytest.mark.parametrize("clock", ["time", "monotonic"])
def test_a_collection_suspended_for_half_a_day_stops_deleting(
    storage: ClockedStorage, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """One of the clocks may be set back meanwhile, the other one may have stopped."""
    three_generations(storage)
    clocks = {"time": time.time(), "monotonic": time.monotonic()}
    functions = {name: lambda name=name: clocks[name] for name in clocks}
    monkeypatch.setattr("zarr_core.versioning.gc.time", SimpleNamespace(**functions))

    def act() -> None:
        for name in clocks:
            clocks[name] += TOMBSTONE_SECONDS if name == clock else -HOUR

    during(storage, "replace tiny.json", act)
    with pytest.raises(StoreError, match="taken too long"):
        collect(storage)
    assert groups(storage) == {"groups/one", "groups/two", "groups/three"}
    collect(storage)
    assert groups(storage) == {"groups/three"}


def test_a_machine_whose_clock_is_behind_deletes_nothing_that_is_committed(
    storage: ClockedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another collection, with a right clock and a longer grace period, keeps the tombstones of the first one."""
    storage.time = time.time() - 10 * DAY
    set_item(storage, "x", write_group(storage, "x"))
    write_group(storage, "orphan")
    storage.time = time.time()
    behind = SimpleNamespace(time=lambda: time.time() - 2 * DAY, monotonic=time.monotonic)
    monkeypatch.setattr("zarr_core.versioning.gc.time", behind)

    def act() -> None:
        monkeypatch.setattr("zarr_core.versioning.gc.time", time)
        collect(storage, 30 * DAY)
        with pytest.raises(CollectedError):
            set_item(storage, "y", "groups/orphan")

    during(storage, "delete groups/orphan/a", act)
    assert set(collect(storage).prefixes) == {"groups/orphan"}
    assert load(storage, HEAD).items == {"x": "groups/x"}


@pytest.mark.slow
def test_on_every_kind_of_location(any_root: str) -> None:
    storage = Storage(any_root)
    for name in ("one", "two"):
        set_item(storage, "x", write_group(storage, name))
    write_group(storage, "orphan")
    storage.write("groups/foreign", [b"mine"])
    storage.write(".tiny.json.0123456789abcdef0123456789abcdef.tmp", [b"half"])
    with clocks_ahead(2 * 3600):
        found = collect(storage, 0)
    assert set(found.prefixes) == {"groups/one", "groups/orphan"}
    assert found.temporary.objects == 1
    assert set(storage.list()) - {"tiny.json.lock"} == {
        "tiny.json",
        "generations/00000002.json",
        "groups/two/a",
        "groups/two/b",
        "groups/foreign",
    }
