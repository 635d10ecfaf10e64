"""Deep verification: samples of all kept generations, and objects that no generation names."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from zarr_core.errors import ManifestError, StoreError
from zarr_core.format.object_names import QUARANTINE, SAMPLES
from zarr_core.points.store.group import group_of
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.storage import Storage
from zarr_core.storage.backends.local import CREATE_LOCK
from zarr_core.storage.temporary import strip_temp_suffix
from zarr_core.versioning.archive import GENERATIONS, documents, generation_name
from zarr_core.versioning.gc import folders_of
from zarr_core.versioning.history import brought_by


def kept_sample_ids(storage: Storage, current: StoreManifest) -> set[str]:
    """Ids of the samples of all kept generations.

    Generations that cannot be read are left out: :meth:`GenerationCheck.states` reports them.
    """
    found = set(current.samples)
    for number in documents(storage):
        if number != current.generation:
            with suppress(ManifestError, StoreError):
                found |= load_manifest(storage, number).samples.keys()
    return found


@dataclass
class GenerationCheck:
    """Verification of all kept generations of a store.

    Attributes:
        problems: problems of the whole store; complete after :meth:`states` and :meth:`check_unnamed`.
        unnamed: groups that no generation names, of conversions that have not committed or that died. They are not
            damage; garbage collection removes them when they are old.
    """

    storage: Storage
    current: StoreManifest
    problems: list[str] = field(default_factory=list)
    unnamed: int = 0
    _named: dict[str, SampleEntry] = field(default_factory=dict)

    def states(self) -> Iterator[tuple[StoreManifest, dict[str, SampleEntry]]]:
        """All kept generations, newest first, each with the samples that no newer one has unchanged."""
        yield self.current, self._new_in(self.current)
        there = documents(self.storage)
        for tag, number in sorted(self.current.retention.tags.items()):
            if number != self.current.generation and number not in there:
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
                self.problems.append(f"{name} holds generation {state.generation}")
            yield state, self._new_in(state)

    def collected(self) -> Collection[str]:
        """Tombstoned prefixes. Garbage collection deletes them, so missing objects below them are not damage."""
        return load_manifest(self.storage).retention.tombstones

    def _new_in(self, state: StoreManifest) -> dict[str, SampleEntry]:
        new = {i: entry for i, entry in state.samples.items() if self._named.get(entry.relpath) != entry}
        self._named |= {entry.relpath: entry for entry in new.values()}
        return new

    def check_unnamed(self) -> None:
        """Check the objects outside the groups that :meth:`states` has yielded."""
        unnamed = set()
        for stored in self.storage.objects(SAMPLES):
            name, _ = strip_temp_suffix(stored.name)
            group = group_of(name)
            if group is not None and group not in self._named:
                if not name.endswith(f"/{QUARANTINE}"):  # of a refused sample, whose group has nothing else
                    unnamed.add(group)
            elif group is None and self._named.keys().isdisjoint(folders_of(name)):
                self.problems.append(f"{stored.name} is not an object that a conversion writes")
        self.unnamed = len(unnamed)
        kept = {f"{GENERATIONS}/{CREATE_LOCK}", *(found.name for found in documents(self.storage).values())}
        for stored in self.storage.objects(GENERATIONS):
            if stored.name not in kept and not strip_temp_suffix(stored.name)[1]:
                self.problems.append(f"{stored.name} is not the archive of a generation")

    def commits(self, relpaths: set[str]) -> dict[str, str]:
        """Description of the commit that added each group."""
        oldest = min(documents(self.storage), default=0)
        commits = {}
        for relpath, number in brought_by(self.storage, HEAD, relpaths).items():
            or_before = " or before" if number == oldest and number > 1 else ""
            commits[relpath] = f"committed in generation {number}{or_before}"
        return commits
