"""Copies a store, or the part of it that a run reads, to faster storage: from a bucket to local scratch.

The copy is a store of its own. Every chunk is compared with its checksum while it is copied. Every object appears
complete or not at all, and the manifest of the copy names a sample only when all of it is there. A later run finishes
an interrupted copy: objects of the right size whose chunks are intact are not copied again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

from filelock import FileLock, Timeout
from tqdm import tqdm

from zarr_core._util.arguments import whole_number
from zarr_core._util.processes import map_in_processes
from zarr_core._util.units import format_size
from zarr_core.errors import CollectedError, StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.format.object_names import (
    BLACKLISTS,
    MANIFEST,
    STATISTICS_JSON,
    STATISTICS_YAML,
    ZARR_JSON,
    split_list,
    statistics_folder,
)
from zarr_core.points.stage.sample import StagedSample, StageTask, not_staged, stage_sample
from zarr_core.points.stage.thin import FirstPoints
from zarr_core.points.statistics import find_statistics
from zarr_core.points.store.head import HEAD, load_if_any, load_manifest
from zarr_core.points.store.manifest import DomainLayout, SampleEntry, StoreManifest, columns_of
from zarr_core.points.store.settings import Layout
from zarr_core.storage import Storage, is_local
from zarr_core.storage.temporary import strip_temp_suffix
from zarr_core.versioning.archive import GENERATIONS
from zarr_core.versioning.generations import commit

# Seconds between commits of the samples copied so far.
_COMMIT_SECONDS = 60.0
_LOCK = ".stage.lock"
_COLLECTED = "garbage collection removed it from the copy before it was committed; stage again"


@dataclass
class StageReport:
    """Result of :func:`stage_store`.

    Attributes:
        manifest: of the copy, after the last commit.
        samples: result per requested sample.
        seconds: duration.
    """

    manifest: StoreManifest
    samples: list[StagedSample] = field(default_factory=list)
    seconds: float = 0.0

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


def stage_store(
    source_root: str | os.PathLike[str],
    target_root: str | os.PathLike[str],
    *,
    split: str | None = None,
    fields: Sequence[str] | None = None,
    sample_ids: Collection[str] | None = None,
    generation: int | str | None = None,
    layout: Layout | None = None,
    points: str | Mapping[str, int] | None = None,
    check: bool = False,
    workers: int = 1,
    executor: Executor | None = None,
    progress: bool = False,
) -> StageReport:
    """Copy a store, or part of it, and commit the copy.

    The copy holds samples of one generation of the source. Samples of earlier calls stay in its manifest as long as
    they are unchanged in the source. Objects that the manifest does not name any more are not deleted.

    Args:
        source_root: the store to copy, a local path or fsspec URL.
        target_root: local path or fsspec URL of the copy: empty, or an earlier copy of the same store.
        split: only the samples of this split.
        fields: only these fields, by canonical name. Samples with other fields get a new group without them.
        sample_ids: only these samples.
        generation: number or tag of the generation to copy; the latest by default.
        layout: "directory", a folder per sample with an object per field, or "packed", one object per sample; by
            default each sample as in the source. Chunks are copied as they are stored.
        points: only the first points of each sample, as "volume=65536,surface=16384", a mapping of the same, or "5%",
            rounded up to whole chunks; all points of a domain that is not named. Points are stored in random order, so
            this is a uniform subset. The statistics of the copy are those of the source, and it has no meshes.
        check: read shards that the manifest of the copy already names, instead of comparing their sizes.
        workers: processes.
        executor: works instead of processes, such as that of a cluster; it is not shut down.
        progress: show a progress bar.

    Raises:
        StoreError: a root cannot be used; the target is not a copy of the source, has other fields, is full, is not
            that of the workers, or is locked by another staging process.
        UnknownFieldError: the source holds no such split, sample or field.
        ZarrCoreError: no sample is selected.
    """
    workers = whole_number("workers", workers, 1)
    source, target = Storage(source_root), Storage(target_root)
    if source.identity == target.identity:
        raise StoreError(f"{source.url} cannot be staged onto itself")
    started = time.monotonic()
    manifest = load_manifest(source, generation)
    chosen = manifest.select(split, sample_ids)
    if not chosen:
        raise ZarrCoreError(f"{source.url}: none of the requested samples is in the store")
    if layout is not None and layout not in get_args(Layout):
        raise ZarrCoreError(f"layout {layout!r} is not one of {', '.join(get_args(Layout))}")
    domains = _chosen_domains(source.url, manifest, fields)
    form = None if points is None else FirstPoints.parse(points, domains)
    copy = _StoreCopy(source, target, manifest, frozenset(chosen), domains, layout, form)
    with _locked(target):
        current = load_if_any(target)
        task = copy.prepare(current, check)
        items = []
        for sample_id in chosen:
            known = current.samples.get(sample_id) if current is not None else None
            items.append((sample_id, manifest.samples[sample_id], known.relpath if known else None))
        report = StageReport(manifest)
        results = map_in_processes(partial(stage_sample, task), items, workers, not_staged, executor)
        committed_at, has_samples = time.monotonic(), current is not None  # no copy begins without a sample
        with tqdm(total=len(items), unit="sample", desc="stage", dynamic_ncols=True, disable=not progress) as bar:
            for result in results:
                if result.entry is not None and executor is not None:
                    target.check_shared(f"{result.entry.relpath}/{ZARR_JSON}")
                report.samples.append(result)
                bar.set_postfix_str(f"{format_size(report.copied)} copied", refresh=False)
                bar.update()
                has_samples = has_samples or not result.problem
                if has_samples and time.monotonic() - committed_at > _COMMIT_SECONDS:
                    copy.commit_present(report)
                    committed_at = time.monotonic()
        committed = copy.commit_present(report)
        if committed is None:
            first = report.failed[0]
            raise StoreError(
                f"none of {len(items)} samples could be copied, so {target.url} is not a store yet; the first problem: "
                f"{first.sample_id}: {first.problem}"
            )
        report.manifest = committed
    report.seconds = time.monotonic() - started
    return report


def _chosen_domains(url: str, manifest: StoreManifest, fields: Sequence[str] | None) -> dict[str, DomainLayout]:
    """The domains of a store with the requested fields; raises UnknownFieldError."""
    wanted = set(manifest.fields if fields is None else fields)
    for name in sorted(wanted.difference(manifest.fields)):
        raise UnknownFieldError(f"{url}: no field {name!r}; fields are {', '.join(manifest.fields)}")
    domains = {}
    for domain, layout in manifest.domains.items():
        columns = {name: column for name, column in layout.arrays.items() if name in wanted}
        if columns:
            domains[domain] = DomainLayout(layout.position, columns)
    return domains


@contextlib.contextmanager
def _locked(target: Storage) -> Iterator[None]:
    """Lock a local target against other staging processes, and remove what dead ones left.

    The system releases the lock when the process ends. Object stores have no lock; :meth:`_StoreCopy.check_target`
    detects conflicts there.
    """
    if not is_local(target.root):
        yield
        return
    os.makedirs(target.location, exist_ok=True)
    lock = FileLock(f"{target.location}/{_LOCK}")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StoreError(f"another process is staging to {target.url}; wait for it, or choose another target") from None
    try:
        _remove_leftovers(target)
        yield
    finally:
        lock.release()


def _remove_leftovers(target: Storage) -> None:
    """Delete temporary files that a killed stage left at the root and in ``generations/``.

    The caller holds the lock. Only a stage writes these files to a copy, so their writers are dead. The next commit
    deletes leftovers of the manifest, and :func:`stage_sample` those of a sample's group. Other programs write
    statistics too, so their leftovers stay until garbage collection finds them old enough.
    """
    for stored in (*target.objects("", recursive=False), *target.objects(GENERATIONS)):
        name, temporary = strip_temp_suffix(stored.name)
        if temporary and (name.startswith(f"{GENERATIONS}/") or name.endswith(split_list("")) or name in BLACKLISTS):
            target.delete([stored.name])


@dataclass(frozen=True)
class _StoreCopy:
    """The whole copy.

    Attributes:
        manifest: of the source.
        chosen: the requested samples.
        domains: the domains of the source with the requested fields.
        layout, points: as for :func:`stage_store`.
    """

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
        arrays = {}
        for layout in self.domains.values():
            for name, column in layout.arrays.items():
                arrays[column.array_name] = name
        tombstones = frozenset(current.retention.tombstones) if current is not None else frozenset()
        return StageTask(self.source, self.target, arrays, check, tombstones, self.layout, self.points)

    def _check_target(self, current: StoreManifest | None) -> None:
        """Raise StoreError if the target holds something else than a copy of this source with these fields."""
        if current is None:
            return
        url = self.target.url
        if current.origin.get("store") != self._origin["store"]:
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
        own = self.manifest.generation
        if own:
            for name in self.source.list(statistics_folder(own)):
                self._copy_small_file(name, f"{statistics_folder(generation)}/{name.rpartition('/')[2]}")
        with contextlib.suppress(ZarrCoreError):  # none that training could use: reported by datasets that need them
            used = find_statistics(self.source, self.manifest)
            for name in (STATISTICS_YAML, STATISTICS_JSON):
                self._copy_small_file(f"{used}.{name.rpartition('.')[2]}", name)

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
