"""What a staged copy is made of, and the commits that name its samples."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from zarr_core._util.cached import cached_property
from zarr_core.errors import CollectedError, StoreError, ZarrCoreError
from zarr_core.format.object_names import (
    BLACKLISTS,
    MANIFEST,
    spelled_alike,
    split_list,
    statistics_folder,
    statistics_name,
)
from zarr_core.points.stage.task import FirstPoints, Item, StagedSample, StageTask
from zarr_core.points.statistics import publish_statistics, record_training_statistics
from zarr_core.points.statistics_files import find_statistics, training_split
from zarr_core.points.store.columns import columns_of
from zarr_core.points.store.head import HEAD
from zarr_core.points.store.manifest import Conversion, DomainLayout, SampleEntry, StoreManifest
from zarr_core.points.store.settings import ConversionSettings, Layout, current_settings, recorded_conversion
from zarr_core.storage import Storage
from zarr_core.versioning.generations import commit

_COLLECTED = "garbage collection removed it from the copy before it was committed; stage again"


@dataclass
class StageReport:
    """Result of :func:`zarr_core.points.stage.store.stage_store`.

    Attributes:
        manifest: of the copy, after the last commit.
        samples: result per requested sample.
        seconds: duration.
        left: samples that the copy had and its manifest does not name any more, because the source has changed or
            dropped them, or never had them.
    """

    manifest: StoreManifest
    samples: list[StagedSample] = field(default_factory=list)
    seconds: float = 0.0
    left: list[str] = field(default_factory=list)

    @property
    def copied(self) -> int:
        """Bytes of shards that were copied."""
        return sum(sample.copied for sample in self.samples)

    @property
    def kept(self) -> int:
        """Bytes of shards that the copy already had."""
        return sum(sample.kept for sample in self.samples)

    @property
    def failed(self) -> list[StagedSample]:
        """Samples that could not be copied."""
        return [sample for sample in self.samples if sample.problem]

    @property
    def ok(self) -> bool:
        """Whether every requested sample is in the copy."""
        return not self.failed


@dataclass(frozen=True)
class StoreCopy:
    """The whole copy: the requested samples of a generation of the source, its domains with the requested fields."""

    source: Storage
    target: Storage
    manifest: StoreManifest
    chosen: Set[str]
    domains: Mapping[str, DomainLayout]
    layout: Layout | None
    points: FirstPoints | None

    @property
    def _origin(self) -> dict[str, Any]:
        origin: dict[str, Any] = {"store": self.source.identity, "generation": self.manifest.generation}
        if self.target.is_at(self.manifest.origin.get("store")):  # a lost store is restored from its copy
            origin |= {"store": self.target.identity, "generation": self.manifest.origin["generation"]}
        points = [str(self.points)] if self.points is not None else []
        if "points" in self.manifest.origin:  # of a thin copy
            points.append(str(self.manifest.origin["points"]))
        if points:
            origin["points"] = " of ".join(points)
        return origin

    def prepare(self, current: StoreManifest | None, check: bool) -> StageTask:
        """Check the target, and copy split lists and blacklists to it; returns what the workers need."""
        self._check_target(current)
        for name in (*map(split_list, self.manifest.splits), *BLACKLISTS):
            self._copy_small_file(name, name)
        if current is not None:
            self._remove_former_lists(current)
        return self._task(current, check)

    def _remove_former_lists(self, current: StoreManifest) -> None:
        """Delete copies of split lists and blacklists that the source no longer has."""
        former = [split_list(split) for split in current.splits if split not in self.manifest.splits]
        if current.excluded:
            former += BLACKLISTS
        self.target.delete([name for name in former if self.target.exists(name) and not self.source.exists(name)])

    def _task(self, current: StoreManifest | None, check: bool) -> StageTask:
        arrays = {}
        for layout in self.domains.values():
            for name, column in layout.arrays.items():
                arrays[column.array_name] = name
        tombstones = frozenset(map(spelled_alike, current.retention.tombstones if current is not None else ()))
        return StageTask(self.source, self.target, arrays, check, tombstones, self.layout, self.points)

    def items(self, current: StoreManifest | None) -> list[Item]:
        """The samples to copy."""
        items: list[Item] = []
        for sample_id, entry in self.manifest.samples.items():
            if sample_id in self.chosen:
                known = current.samples.get(sample_id) if current is not None else None
                items.append((sample_id, entry, known.relpath if known else None))
        return items

    def _check_target(self, current: StoreManifest | None) -> None:
        """Raise StoreError if the target holds something else than a copy of this source with these fields."""
        if current is None:
            return
        url = self.target.url
        origin = current.origin.get("store")
        if origin != self._origin["store"] and not self.source.is_at(origin):
            raise StoreError(f"{url} holds a store that is not a copy of {self.source.url}; use an empty target")
        others = self._unchanged(current).keys() - self.chosen
        if others and not self._has_these_points(current):
            held = f"{len(others)} more samples, with {current.origin.get('points', 'all')} points"
            way_out = "all samples of a copy have the same points: request these, or choose another target"
            raise StoreError(f"{url} holds {held}; {way_out}")
        if others and not self._has_these_fields(current):
            raise StoreError(
                f"{url} holds {len(others)} more samples, with the fields {', '.join(current.fields)}; all samples of "
                "a store have the same fields: request these fields, or choose another target"
            )

    def copy_statistics(self, generation: int) -> None:
        """Copy the statistics of the source's generation as those of a generation of the copy.

        They are of the source's samples, also in a partial copy.
        """
        for name in self.source.list(statistics_folder(self.manifest.generation)):
            self._copy_small_file(name, f"{statistics_folder(generation)}/{name.rpartition('/')[2]}")
        with contextlib.suppress(ZarrCoreError):  # none that training could use: reported by datasets that need them
            used = find_statistics(self.source, self.manifest)
            recorded = statistics_name(generation, training_split(self.manifest))
            for suffix in ("json", "yaml"):
                self._copy_small_file(f"{used}.{suffix}", f"{recorded}.{suffix}")
            publish_statistics(self.target)

    def _copy_small_file(self, original: str, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.target.write(name, [self.source.read(original)])

    def commit_present(self, report: StageReport) -> StoreManifest | None:
        """Commit the samples copied so far, without those that garbage collection of the copy removed meanwhile.

        These fail. Returns None if no sample is left, and the copy is not a store yet.
        """
        while len(report.failed) < len(report.samples) or self.target.exists(MANIFEST):
            try:
                return self._commit(report.samples)
            except CollectedError as error:
                gone = [sample for sample in report.samples if sample.entry and sample.entry.relpath in error.names]
                if not gone:
                    raise
                for sample in gone:
                    report.samples[report.samples.index(sample)] = replace(sample, entry=None, problem=_COLLECTED)
        return None

    def _commit(self, samples: Sequence[StagedSample]) -> StoreManifest:
        """Commit the samples copied so far, and the source's statistics.

        Samples with other fields or points are dropped until they are copied again.

        Raises:
            StoreError: another staging process has written something else to the same object store.
        """
        staged = {sample.sample_id: sample.entry for sample in samples if sample.entry is not None}

        def change(current: StoreManifest | None) -> StoreManifest:
            self._check_target(current)
            samples: dict[str, SampleEntry] = {}
            if current is not None and self._has_these_fields(current) and self._has_these_points(current):
                samples = self._unchanged(current)
            samples |= staged
            domains = self.domains if self.manifest.conversion is None else columns_of(samples)
            return replace(self.manifest, domains=domains, samples=samples, origin=self._origin)

        committed = commit(self.target, HEAD, change)
        self.copy_statistics(committed.generation)
        return committed

    def _has_these_points(self, current: StoreManifest) -> bool:
        """Whether the samples of a copy have the requested points."""
        return bool(current.origin.get("points") == self._origin.get("points"))

    def _has_these_fields(self, current: StoreManifest) -> bool:
        """Whether the samples of a copy have the requested fields, except those that the source lacks."""
        wanted = {name for layout in self.domains.values() for name in layout.arrays}
        unchanged = self._unchanged(current)
        if any(entry.fields is None for entry in unchanged.values()):
            return set(current.fields) == wanted
        return all(set(current.fields_of(i)) == wanted & set(self.manifest.fields_of(i)) for i in unchanged)

    def _unchanged(self, current: StoreManifest) -> dict[str, SampleEntry]:
        """Samples of the copy that are unchanged in the source."""
        own = self.manifest.samples
        return {i: entry for i, entry in current.samples.items() if i in own and own[i].version == entry.version}


class Repacking(StoreCopy):
    """A store whose samples get another layout in place, from their own stored chunks, as if converted with it.

    First a commit of the new settings alone, as that of a migration, so that conversions continue in the new layout;
    then samples are committed as they are written. Their groups have the names and the bytes that a conversion gives
    them, so no sample is converted again. Readers keep the generation that they opened, and garbage collection frees
    the old groups.
    """

    def prepare(self, current: StoreManifest | None, check: bool) -> StageTask:
        """Commit the settings with the new layout; returns what the workers need."""
        if self.manifest.origin:
            origin = self.manifest.origin.get("store")
            raise StoreError(f"{self.target.url} is a copy of {origin}: stage it again from there, with --layout")
        if current_settings(self.manifest) is None:
            reason = "its manifest does not record the settings of its samples, because an earlier version wrote it"
            raise StoreError(f"{self.target.url}: {reason}: convert into it once, then repack it")
        committed = self._commit([])
        settings = current_settings(committed)
        if settings is None or settings.layout != self.layout:
            raise StoreError(f"{self.target.url}: a conversion has committed other settings meanwhile: repack it again")
        return replace(self._task(committed, check), repacked=self._settings)

    def items(self, current: StoreManifest | None) -> list[Item]:
        """The samples with the other layout."""
        return [item for item in super().items(current) if not self._has_layout(item[1])]

    @cached_property
    def _settings(self) -> Mapping[str, ConversionSettings]:
        """Recorded settings with the new layout, by the digest of the recorded ones."""
        assert self.manifest.conversion is not None
        assert self.layout is not None
        settings = {}
        for digest, document in self.manifest.conversion.settings.items():
            settings[digest] = replace(ConversionSettings(**document), layout=self.layout)
        return settings

    def _commit(self, samples: Sequence[StagedSample]) -> StoreManifest:
        """Commit the samples written so far, with the statistics of the same samples before.

        Samples that were converted again meanwhile stay. A repacking that died after a commit has left that generation
        without statistics. The last commit records them.
        """

        def change(current: StoreManifest | None) -> StoreManifest:
            if current is None:
                raise StoreError(f"{self.target.url}: the store was deleted")
            held = dict(current.samples)
            for sample in samples:
                now = held.get(sample.sample_id)
                before = self.manifest.samples[sample.sample_id]
                if sample.entry is not None and now is not None and not now.differs(before):
                    held[sample.sample_id] = sample.entry
            return self._with_settings(replace(current, samples=held))

        committed = commit(self.target, HEAD, change)
        if _content(committed) == _content(self.manifest):
            self.copy_statistics(committed.generation)
        if all(map(self._has_layout, committed.samples.values())):
            with contextlib.suppress(ZarrCoreError, OSError):  # reported by datasets that need them
                record_training_statistics(self.target.root, committed)
        return committed

    def _has_layout(self, entry: SampleEntry) -> bool:
        return entry.layout == self.layout

    def _with_settings(self, state: StoreManifest) -> StoreManifest:
        """A state with the settings of the new layout, unless other settings were committed meanwhile."""
        conversion, before = state.conversion, self.manifest.conversion
        assert conversion is not None
        assert before is not None
        refused = {}
        for sample_id, refusal in state.quarantine.items():
            own = self._settings.get(refusal.settings)
            refused[sample_id] = refusal if own is None else replace(refusal, settings=own.digest)
        known = dict(conversion.settings)
        for settings in self._settings.values():
            known[settings.digest] = settings.to_document()
        state = replace(state, quarantine=refused, conversion=Conversion(conversion.current, known))
        current = current_settings(state)
        if conversion.current == before.current:
            current = self._settings[before.current]
        assert current is not None
        return replace(state, conversion=recorded_conversion(state, current))


def _content(state: StoreManifest) -> tuple[object, ...]:
    """What the statistics of a store are made of."""
    samples = {sample_id: (entry.fingerprint, entry.content) for sample_id, entry in state.samples.items()}
    return samples, state.splits, state.excluded
