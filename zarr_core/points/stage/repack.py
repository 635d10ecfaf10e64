"""Repacks a store in place: its samples get another layout, from their own stored chunks, as if converted with it.

First a commit of the new settings alone, as that of a migration, so that conversions continue in the new layout; then
samples are committed as they are written. Their groups have the names and the bytes that a conversion gives them, so no
sample is converted again. Readers keep the generation that they opened, and garbage collection frees the old groups.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from zarr_core._util.cached import cached_property
from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.points.stage.copy import StoreCopy
from zarr_core.points.stage.task import Item, StagedSample, StageTask
from zarr_core.points.statistics import record_training_statistics
from zarr_core.points.store.head import HEAD
from zarr_core.points.store.manifest import Conversion, SampleEntry, StoreManifest
from zarr_core.points.store.settings import ConversionSettings, current_settings
from zarr_core.versioning.generations import commit


class Repacking(StoreCopy):
    """A store whose samples get another layout."""

    def prepare(self, current: StoreManifest | None, check: bool) -> StageTask:
        """Commit the settings with the new layout; returns what the workers need."""
        if self.manifest.origin:
            origin = self.manifest.origin.get("store")
            raise StoreError(f"{self.target.url} is a copy of {origin}: stage it again from there, with --layout")
        if current_settings(self.manifest) is None:
            reason = "its manifest does not record the settings of its samples, because an earlier version wrote it"
            raise StoreError(f"{self.target.url}: {reason}: convert into it once, then repack it")
        return self._task(self._commit([]), check, self._settings)

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

        A repacking that died after a commit has left that generation without. The last commit records them.
        """
        committed = commit(self.target, HEAD, self._with_samples(samples))
        if _content(committed) == _content(self.manifest):
            self.copy_statistics(committed.generation)
        if all(map(self._has_layout, committed.samples.values())):
            with contextlib.suppress(ZarrCoreError, OSError):  # reported by datasets that need them
                record_training_statistics(self.target.root, committed)
        return committed

    def _has_layout(self, entry: SampleEntry) -> bool:
        return (entry.head > 0) == (self.layout == "packed")

    def _with_samples(self, samples: Sequence[StagedSample]) -> Callable[[StoreManifest | None], StoreManifest]:
        """A change that names the new groups of samples, except those that were converted again meanwhile."""

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

        return change

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
        current = conversion.current
        if current == before.current:
            current = self._settings[current].digest
        named = {current, *(entry.settings for entry in state.samples.values())}
        named.update(refusal.settings for refusal in refused.values())
        kept = {digest: known[digest] for digest in sorted(named & known.keys())}
        return replace(state, quarantine=refused, conversion=Conversion(current, kept))


def _content(state: StoreManifest) -> tuple[object, ...]:
    """What the statistics of a store are made of."""
    samples = {sample_id: (entry.fingerprint, entry.content) for sample_id, entry in state.samples.items()}
    return samples, state.splits, state.excluded
