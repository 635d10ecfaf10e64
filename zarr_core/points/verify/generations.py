"""What a deep verification looks at beyond the current samples: earlier generations, and objects of none."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from zarr_core.errors import ManifestError, StoreError
from zarr_core.format.object_names import SAMPLES
from zarr_core.points.group import group_of
from zarr_core.points.manifest import HEAD, SampleEntry, StoreManifest, load_manifest
from zarr_core.storage import Storage
from zarr_core.storage.backends.local import CREATE_LOCK
from zarr_core.storage.temporary import strip_temp_suffix
from zarr_core.versioning.generations import GENERATIONS, documents, generation_name
from zarr_core.versioning.history import brought_by


@dataclass
class DeepCheck:
    """Everything that is kept of a store, generation by generation.

    Attributes:
        storage: the store.
        current: its manifest.
        problems: what is wrong with the store as a whole; complete when all has been gone through.
        unnamed: groups that no generation names: of a conversion that has not committed yet, or that died. They are no
            damage, and garbage collection takes them when they are old.
    """

    storage: Storage
    current: StoreManifest
    problems: list[str] = field(default_factory=list)
    unnamed: int = 0
    _named: dict[str, SampleEntry] = field(default_factory=dict)

    def states(self) -> Iterator[tuple[StoreManifest, dict[str, SampleEntry]]]:
        """Every state that is kept, newest first, with its samples that no newer one has in the same way."""
        yield self.current, self._new_in(self.current)
        there = documents(self.storage)
        for tag, number in sorted(self.current.retention.tags.items()):
            if number not in there:
                self.problems.append(f"tag {tag!r} names generation {number}, but {generation_name(number)} is missing")
        for number in sorted(there, reverse=True):
            if number >= self.current.generation:
                continue
            name = generation_name(number)
            try:
                state = load_manifest(self.storage, number)
            except (ManifestError, StoreError) as error:
                if name not in self.collected():
                    self.problems.append(str(error))
                continue
            if state.generation != number:
                self.problems.append(f"{name} says that it is generation {state.generation}")
            yield state, self._new_in(state)

    def collected(self) -> Collection[str]:
        """Prefixes that garbage collection is removing, or has lately removed: that they are not whole is no damage."""
        return load_manifest(self.storage).retention.tombstones

    def _new_in(self, state: StoreManifest) -> dict[str, SampleEntry]:
        new = {i: entry for i, entry in state.samples.items() if self._named.get(entry.relpath) != entry}
        self._named |= {entry.relpath: entry for entry in new.values()}
        return new

    def look_for_strays(self) -> None:
        """Look at every object outside the groups that :meth:`states` has gone through."""
        unnamed = set()
        for stored in self.storage.objects(SAMPLES):
            name, _ = strip_temp_suffix(stored.name)
            group = group_of(name)
            if group is not None and group not in self._named:
                unnamed.add(group)
            elif group is None and not self._is_in_a_named_group(name):
                self.problems.append(f"{stored.name} is no object that a conversion writes")
        self.unnamed = len(unnamed)
        kept = {f"{GENERATIONS}/{CREATE_LOCK}", *map(generation_name, documents(self.storage))}
        for stored in self.storage.objects(GENERATIONS):
            if stored.name not in kept and not strip_temp_suffix(stored.name)[1]:
                self.problems.append(f"{stored.name} keeps no generation")

    def _is_in_a_named_group(self, name: str) -> bool:
        """Whether an object lies in a group that has been checked, which has told what is wrong with it."""
        parts = name.split("/")
        return any("/".join(parts[:end]) in self._named for end in range(1, len(parts)))

    def commits(self, relpaths: set[str]) -> dict[str, str]:
        """By group, in words: the commit that brought it."""
        oldest = min(documents(self.storage), default=0)
        return {
            relpath: f"committed in generation {number}" + " or before" * (number == oldest and number > 1)
            for relpath, number in brought_by(self.storage, HEAD, relpaths).items()
        }
