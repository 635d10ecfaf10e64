"""Commits, tags and collections in any order, with any clock, interrupted or interleaved anywhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.helpers.examples import examples
from tests.helpers.tiny_store import HEAD, ClockedStorage, Killed, set_item, write_group
from zarr_core.errors import CollectedError, StoreError
from zarr_core.storage import Storage
from zarr_core.versioning import archive
from zarr_core.versioning.archive import find_archive, generation_name
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.generations import load
from zarr_core.versioning.tags import delete_tag, make_tag

HOUR = 3600.0

items = st.sampled_from("xyz")
names = st.sampled_from(["p", "q", "r"])
tags = st.sampled_from(["paper", "run"])
hours = st.sampled_from([1, 30, 60])
graces = st.sampled_from([0.5, 5, 24])


class Store(RuleBasedStateMachine):
    """The model: items and replacement time of every generation, and those that a collection may have deleted."""

    @initialize()
    def start(self) -> None:
        self.storage = ClockedStorage(f"memory://{os.urandom(8).hex()}")
        self.items_of: dict[int, dict[str, str]] = {}
        self.replaced: dict[int, float] = {}
        self.tags: dict[str, int] = {}
        self.gone: set[int] = set()
        self.tombstones: frozenset[str] = frozenset()  # as the writer last saw it
        self.commit("x", write_group(self.storage, "first"))

    def teardown(self) -> None:
        Storage(self.storage.url).delete(list(self.storage.list()))

    @property
    def current(self) -> int:
        return max(self.items_of)

    def commit(self, item: str, group: str | None) -> None:
        before = max(self.items_of, default=0)
        state = set_item(self.storage, item, group)
        if state.generation != before:
            self.items_of[state.generation] = dict(state.items)
            self.replaced[before] = self.storage.time

    # --- actions of users

    @rule(amount=hours)
    def time_goes_by(self, amount: float) -> None:
        self.storage.time += amount * HOUR

    @rule()
    def a_writer_looks(self) -> None:
        self.tombstones = frozenset(load(self.storage, HEAD).retention.tombstones)

    @rule(name=names)
    def a_writer_writes(self, name: str) -> None:
        """Write a group under the first name that was free when the writer last listed, however long ago."""
        free = (again for again in range(100) if f"groups/{name}{again}" not in self.tombstones)
        write_group(self.storage, f"{name}{next(free)}")

    @rule(name=names, again=st.integers(0, 2))
    def a_writer_dies_in_the_middle(self, name: str, again: int) -> None:
        if not self.storage.exists(f"groups/{name}{again}/a"):
            self.storage.write(f"groups/{name}{again}/a", [f"{name}{again} a".encode()])

    @rule(item=items, which=st.integers(0, 5))
    def it_is_committed(self, item: str, which: int) -> None:
        groups = sorted({name.rpartition("/")[0] for name in self.storage.list("groups")})
        group = groups[which % len(groups)] if groups else ""
        if group and HEAD.is_whole(self.storage, group):
            with contextlib.suppress(CollectedError):
                self.commit(item, group)

    @rule(item=items)
    def an_item_is_retired(self, item: str) -> None:
        if item in self.items_of[self.current]:
            self.commit(item, None)

    @rule(tag=tags, back=st.integers(0, 3))
    def it_is_tagged(self, tag: str, back: int) -> None:
        number = self.current - back
        if number < 1 or tag in self.tags:
            return
        try:
            make_tag(self.storage, HEAD, tag, number)
        except StoreError:
            assert number in self.gone or number in self.being_collected
        else:
            self.tags[tag] = number
            self.gone.discard(number)

    @precondition(lambda self: self.tags)
    @rule(data=st.data())
    def a_tag_is_deleted(self, data: st.DataObject) -> None:
        tag = data.draw(st.sampled_from(sorted(self.tags)))
        assert delete_tag(self.storage, HEAD, tag) == self.tags.pop(tag)

    # --- collections

    being_collected: frozenset[int] = frozenset()

    def expired(self, grace: float) -> set[int]:
        horizon = self.storage.time - grace
        tagged = {*self.tags.values(), self.current}
        return {number for number in self.items_of if number not in tagged and self.replaced[number] < horizon}

    @rule(wait=hours, grace=graces)
    def garbage_is_collected(self, wait: float, grace: float) -> None:
        self.time_goes_by(wait)
        self.collect(grace * HOUR)

    @rule(wait=hours, grace=graces, step=st.integers(0, 12))
    def a_collection_dies(self, wait: float, grace: float, step: int) -> None:
        self.time_goes_by(wait)

        def die() -> None:
            raise Killed

        self.at_step(step, die)
        try:
            self.collect(grace * HOUR)
        except Killed:
            self.gone |= self.expired(grace * HOUR)
        finally:
            self.storage.interrupt = lambda _: None

    @rule(
        wait=hours,
        grace=graces,
        step=st.integers(0, 6),
        item=items,
        which=st.integers(0, 5),
        tag=tags,
        back=st.integers(1, 3),
        what=st.sampled_from(["commit", "tag", "collect"]),
    )
    def others_are_at_work_during_a_collection(
        self, wait: float, grace: float, step: int, item: str, which: int, tag: str, back: int, what: str
    ) -> None:
        self.time_goes_by(wait)
        self.being_collected = frozenset(self.expired(grace * HOUR))
        acts: dict[str, Callable[[], None]] = {
            "commit": lambda: self.it_is_committed(item, which),
            "tag": lambda: self.it_is_tagged(tag, back),
            "collect": lambda: self.collect(2 * HOUR),
        }
        self.at_step(step, acts[what])
        self.collect(grace * HOUR)
        self.storage.interrupt = lambda _: None
        self.being_collected = frozenset()

    def at_step(self, step: int, act: Callable[[], None]) -> None:
        count = 0

        def interrupt(_: str) -> None:
            nonlocal count
            count += 1
            if count > step:
                self.storage.interrupt = lambda _: None
                act()

        self.storage.interrupt = interrupt

    def collect(self, grace: float) -> None:
        """Collect, and compare the remaining objects with the rule."""
        collect_garbage(self.storage, HEAD, grace)
        self.gone |= self.expired(grace)
        kept = set(self.items_of) - self.gone
        assert {n for n in self.items_of if find_archive(self.storage, n)} == kept
        needed = {group for number in kept for group in self.items_of[number].values()}
        newest: dict[str, float] = {}
        for found in self.storage.objects("groups"):
            group = found.name.rpartition("/")[0]
            newest[group] = max(newest.get(group, 0), found.modified)
        old = {group for group, modified in newest.items() if modified < self.storage.time - grace}
        assert old <= needed

    # --- invariants

    @invariant()
    def what_kept_generations_name_is_there(self) -> None:
        for number in set(self.items_of) - self.gone:
            state = load(self.storage, HEAD, number)
            assert state.items == self.items_of[number]
            for group in state.items.values():
                for part in "ab":
                    assert self.storage.read(f"{group}/{part}").decode() == f"{group.partition('/')[2]} {part}"

    @invariant()
    def nothing_that_is_kept_is_tombstoned(self) -> None:
        tombstones = load(self.storage, HEAD).retention.tombstones
        for number in set(self.items_of) - self.gone:
            assert tombstones.keys().isdisjoint([*self.items_of[number].values(), generation_name(number)])


class MixedStore(Store):
    """Generations with two items or more are compressed, others are not."""

    @initialize()
    def start(self) -> None:
        self.plain = patch.object(archive, "_PLAIN_BYTES", 60)
        self.plain.start()
        super().start()

    def teardown(self) -> None:
        self.plain.stop()
        super().teardown()


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=examples(8), stateful_step_count=40)
TestMixedStore = pytest.mark.slow(MixedStore.TestCase)
TestMixedStore.settings = settings(max_examples=examples(10), stateful_step_count=40)
