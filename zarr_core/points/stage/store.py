"""Copies a store, or the part of it that a run reads, to faster storage: from a bucket to local scratch.

The copy is a store of its own. Every chunk is compared with its checksum while it is copied. Every object appears
complete or not at all, and the manifest of the copy names a sample only when all of it is there. A later run finishes
an interrupted copy: objects of the right size whose chunks are intact are not copied again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import get_args

from filelock import FileLock, Timeout
from tqdm import tqdm

from zarr_core._util.arguments import whole_number
from zarr_core._util.processes import map_in_processes
from zarr_core._util.units import format_size
from zarr_core.errors import CommitConflict, StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.format.object_names import BLACKLISTS, MANIFEST, ZARR_JSON, split_list
from zarr_core.points.stage.as_stored import FolderCopy, copy_archive
from zarr_core.points.stage.copy import Repacking, StageReport, StoreCopy
from zarr_core.points.stage.rewrite import RewrittenCopy
from zarr_core.points.stage.task import FirstPoints, Item, StagedSample, StageTask
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import DomainLayout, StoreManifest
from zarr_core.points.store.settings import Layout
from zarr_core.storage import Storage, is_local
from zarr_core.storage.temporary import strip_temp_suffix
from zarr_core.versioning.archive import GENERATIONS
from zarr_core.versioning.generations import load

__all__ = ["StageReport", "stage_store"]

# Seconds between commits of the samples copied so far.
_COMMIT_SECONDS = 60.0
_LOCK = ".stage.lock"
# Errors of the target after which no other sample can be copied either.
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


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

    A store that is staged onto itself with a layout is repacked: its samples get that layout, as if they had been
    converted again with it, and so will those that come. Generations that are kept stay as they are.

    The copy holds samples of one generation of the source. Samples of earlier calls stay in its manifest as long as
    they are unchanged in the source; the report names the others. Objects that the manifest does not name any more are
    not deleted.

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

    Examples:
        >>> report = stage_store("store", "scratch", split="train", points="50%")
    """
    workers = whole_number("workers", workers, 1)
    source, target = Storage(source_root), Storage(target_root)
    if layout is not None and layout not in get_args(Layout):
        raise ZarrCoreError(f"layout {layout!r} is not one of {', '.join(get_args(Layout))}")
    in_place = target.is_at(source.identity)
    if in_place and (layout is None or (split, fields, sample_ids, generation, points) != (None,) * 5):
        way_out = "with a layout and without a selection, it is repacked: --layout packed"
        raise StoreError(f"{source.url} cannot be staged onto itself; {way_out}")
    started = time.monotonic()
    manifest = load_manifest(source, generation)
    chosen = manifest.select(split, sample_ids)
    if not chosen:
        raise ZarrCoreError(f"{source.url}: none of the requested samples is in the store")
    domains = _chosen_domains(source.url, manifest, fields)
    form = None if points is None else FirstPoints.parse(points, domains)
    kind_of_copy = Repacking if in_place else StoreCopy
    copy = kind_of_copy(source, target, manifest, frozenset(chosen), domains, layout, form)
    with _locked(target, removes_leftovers=not in_place):
        # As it is recorded: a store that is restored from its copy is a copy of itself until it is converted.
        current = load(target, HEAD) if target.exists(MANIFEST) else None
        if current is None:
            target.check_bucket()
        task = copy.prepare(current, check)
        items = copy.items(current)
        report = StageReport(manifest)
        results = map_in_processes(partial(stage_sample, task), items, workers, not_staged, executor)
        committed_at = time.monotonic()
        with tqdm(total=len(items), unit="sample", desc="stage", dynamic_ncols=True, disable=not progress) as bar:
            for result in results:
                if result.entry is not None and executor is not None:
                    target.check_shared(f"{result.entry.relpath}/{ZARR_JSON}")
                report.samples.append(result)
                bar.set_postfix_str(f"{format_size(report.copied)} copied", refresh=False)
                bar.update()
                if time.monotonic() - committed_at > _COMMIT_SECONDS:
                    # If other writers kept coming first, the next commit has these samples.
                    with contextlib.suppress(CommitConflict):
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
        report.left = [i for i in (current.samples if current else ()) if i not in committed.samples]
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
def _locked(target: Storage, *, removes_leftovers: bool) -> Iterator[None]:
    """Lock a local target against other staging processes, and remove what dead ones left.

    The system releases the lock when the process ends. Object stores have no lock; :class:`StoreCopy` detects conflicts
    there.
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
        if removes_leftovers:
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


def stage_sample(task: StageTask, item: Item) -> StagedSample:
    """Copy one sample. Errors of the sample are reported in the result and do not stop the other samples.

    Raises StoreError if the target is full or read-only.
    """
    try:
        return _copy(task, item)
    except ZarrCoreError as error:
        problem = str(error)
    except FileNotFoundError as error:
        problem = f"an object of {item[1].relpath} is missing ({error}); if garbage collection removed it, stage again"
    except Exception as error:  # remote filesystems raise the errors of their clients, which have no common base
        if isinstance(error, OSError) and error.errno in _FATAL:
            raise StoreError(f"{task.target.url} cannot be written: {error}") from error
        problem = f"{type(error).__name__}: {error}"
    return StagedSample(item[0], None, problem=problem)


def not_staged(item: Item, error: Exception) -> StagedSample:
    """The result of a sample whose worker process died; raises the errors of :func:`stage_sample`."""
    if isinstance(error, StoreError):
        raise error
    return StagedSample(item[0], None, problem=str(error))


def _copy(task: StageTask, item: Item) -> StagedSample:
    """Copy a sample as it is where that is what the copy shall have, otherwise in another form."""
    entry = item[1]
    if task.packs(entry) == (entry.head > 0) and not task.cuts(entry):
        if not entry.head:
            return FolderCopy(task, item).copy()
        arrays = {column.array_name for column in (entry.fields or {}).values()}
        if arrays and arrays <= task.arrays.keys():
            return copy_archive(task, item)
    return RewrittenCopy(task, item).copy()
