"""Copying a store, or the part of it that a run reads, to where it is read fast: from a bucket to local scratch.

``python -m zarr_core.stage SRC DST --split train --fields surface_position surface_pressure`` makes ``DST`` a store of
its own. Every chunk is held against its checksum on the way, every object appears whole or not at all, and a sample is
named by the manifest of the copy only when all of it is there. A copy that died is taken up where it was: what is
there, of the right size and sound, is not copied again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from zarr_core._util.documents import parse_json
from zarr_core._util.processes import map_in_processes
from zarr_core._util.units import format_size
from zarr_core.errors import CorruptChunkError, StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.format.array_metadata import ArrayLayout, group_arrays
from zarr_core.format.shards import check_chunk, decode_shard_index
from zarr_core.points.group import ATTRIBUTES_KEY, SAMPLES
from zarr_core.points.manifest import HEAD, MANIFEST, DomainLayout, SampleEntry, StoreManifest, load_manifest
from zarr_core.storage import Storage, is_local
from zarr_core.versioning.generations import Retention, commit

# Chunks that lie side by side are fetched in one request up to this size.
_SPAN_BYTES = 8 << 20
# Shards of a sample that are copied at the same time in each worker.
_SHARDS_AT_A_TIME = 4
# Seconds between commits of what has been copied so far.
_COMMIT_EVERY = 60.0
# No use going on with the next sample after these.
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_STATISTICS = ("stats.yaml", "stats.json")
_BLACKLISTS = ("blacklist.txt", "blacklist2.txt")


@dataclass(frozen=True)
class StagedSample:
    """What became of one sample.

    Attributes:
        sample_id: its id.
        entry: it in the manifest of the copy; None where it could not be copied.
        copied, kept: bytes of shards that were copied, and that were there already.
        problem: why it could not be copied, or "".
    """

    sample_id: str
    entry: SampleEntry | None
    copied: int = 0
    kept: int = 0
    problem: str = ""


@dataclass
class StageReport:
    """What :func:`stage_store` did.

    Attributes:
        manifest: of the copy, as it is now.
        samples: outcome of every sample that was asked for.
        seconds: how long it took.
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
        """Bytes of shards that were there already."""
        return sum(sample.kept for sample in self.samples)

    @property
    def failed(self) -> list[StagedSample]:
        """Samples that could not be copied."""
        return [sample for sample in self.samples if sample.problem]

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for is there."""
        return not self.failed


def stage_store(
    source_root: str | os.PathLike[str],
    target_root: str | os.PathLike[str],
    *,
    split: str | None = None,
    fields: Sequence[str] | None = None,
    sample_ids: Collection[str] | None = None,
    generation: int | str | None = None,
    check: bool = False,
    workers: int = 1,
    progress: bool = False,
) -> StageReport:
    """Copy a store, or part of it, and commit the copy.

    The copy is part of one generation of the source: samples that an earlier call staged stay in its manifest as long
    as the source has them unchanged. Objects that nothing names any more are left lying, never deleted.

    Args:
        source_root: the store to copy, a local path or fsspec URL.
        target_root: where to: an empty place, or an earlier copy of the same store.
        split: only the samples of this split.
        fields: only these fields, by canonical name. Samples that have others get a group of their own.
        sample_ids: only these samples.
        generation: copy the store as that commit left it, given its number or a tag; the latest by default.
        check: read again what the manifest of the copy names already, instead of going by the sizes.
        workers: processes.
        progress: show a progress bar.

    Raises:
        StoreError: a root cannot be used; the target is no copy of the source, has other fields, is full, or is being
            written by another stage.
        UnknownFieldError: the source holds no such split, sample or field.
        ZarrCoreError: nothing is left to copy, or a worker process died.
    """
    if workers < 1:
        raise ZarrCoreError("workers must be positive")
    source, target = Storage(source_root), Storage(target_root)
    if source.identity == target.identity:
        raise StoreError(f"{source.url} cannot be staged onto itself")
    started = time.monotonic()
    manifest = load_manifest(source, generation)
    copy = _Copy.of(source, target, manifest, fields, check)
    chosen = _chosen(source, manifest, split, sample_ids)
    with _only_one(target):
        current = load_manifest(target) if target.exists(MANIFEST) else None
        copy.check_target(current, chosen)
        known = {} if current is None else {i: entry.relpath for i, entry in current.samples.items()}
        items = [(sample_id, manifest.samples[sample_id], known.get(sample_id)) for sample_id in chosen]
        if current is not None:
            copy = replace(copy, task=replace(copy.task, tombstones=frozenset(current.retention.tombstones)))
        copy.copy_small_files()
        report = StageReport(manifest)
        results = map_in_processes(partial(_stage_sample, copy.task), items, workers)
        committed_at = time.monotonic()
        with tqdm(total=len(items), unit="sample", desc="stage", dynamic_ncols=True, disable=not progress) as bar:
            for result in results:
                report.samples.append(result)
                bar.set_postfix_str(f"{format_size(report.copied)} copied", refresh=False)
                bar.update()
                if time.monotonic() - committed_at > _COMMIT_EVERY:
                    copy.commit(report.samples, chosen)
                    committed_at = time.monotonic()
        if current is None and len(report.failed) == len(items):
            first = report.failed[0]
            raise StoreError(
                f"none of {len(items)} samples could be copied, so {target.url} is no store yet; the first of them: "
                f"{first.sample_id}: {first.problem}"
            )
        report.manifest = copy.commit(report.samples, chosen)
    report.seconds = time.monotonic() - started
    return report


def _chosen(
    source: Storage, manifest: StoreManifest, split: str | None, sample_ids: Collection[str] | None
) -> list[str]:
    """The samples to copy, in the manifest's order."""
    unknown = sorted(set(sample_ids or ()) - set(manifest.samples))
    if unknown:
        raise UnknownFieldError(f"{source.url} holds no sample {unknown[0]!r}")
    chosen = set(manifest.samples)
    if split is not None:
        chosen &= set(manifest.split_ids(split))
    if sample_ids is not None:
        chosen &= set(sample_ids)
    if not chosen:
        raise ZarrCoreError(f"{source.url}: none of the samples asked for is in the store")
    return [sample_id for sample_id in manifest.samples if sample_id in chosen]


@contextlib.contextmanager
def _only_one(target: Storage) -> Iterator[None]:
    """Keep a second stage out of a local target. The lock goes with its process, however that ends."""
    if not is_local(target.root):
        yield
        return
    os.makedirs(target.location, exist_ok=True)
    lock = FileLock(f"{target.location}/.stage.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StoreError(f"another process is staging to {target.url}; wait for it, or choose another place") from None
    try:
        yield
    finally:
        lock.release()


@dataclass(frozen=True)
class _Task:
    """What a worker has to know of a copy.

    ``arrays`` are the canonical names of the chosen fields by array name, ``tombstones`` the groups that are being
    collected from the target.
    """

    source: Storage
    target: Storage
    arrays: Mapping[str, str]
    check: bool
    tombstones: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Copy:
    """A copy as a whole: which columns it has, and how its manifest comes about."""

    task: _Task
    manifest: StoreManifest
    domains: Mapping[str, DomainLayout]

    @classmethod
    def of(
        cls, source: Storage, target: Storage, manifest: StoreManifest, fields: Sequence[str] | None, check: bool
    ) -> _Copy:
        """Raises UnknownFieldError for a field that the source does not hold."""
        wanted = set(manifest.fields if fields is None else fields)
        for name in sorted(wanted - set(manifest.fields)):
            raise UnknownFieldError(f"{source.url}: no field {name!r}; fields are {', '.join(manifest.fields)}")
        domains = {}
        for domain, layout in manifest.domains.items():
            columns = {name: column for name, column in layout.arrays.items() if name in wanted}
            if columns:
                domains[domain] = DomainLayout(layout.position, columns)
        arrays = {column.array_name: name for layout in domains.values() for name, column in layout.arrays.items()}
        return cls(_Task(source, target, arrays, check), manifest, domains)

    @property
    def _origin(self) -> dict[str, Any]:
        return {"store": self.task.source.identity, "generation": self.manifest.generation}

    def check_target(self, current: StoreManifest | None, chosen: Collection[str]) -> None:
        """Raise StoreError where the target holds something that this copy does not go with."""
        if current is None:
            return
        url = self.task.target.url
        if current.origin.get("store") != self._origin["store"]:
            raise StoreError(f"{url} holds a store that is no copy of {self.task.source.url}; stage to an empty place")
        others = set(self._unchanged(current)) - set(chosen)
        if others and not self._has_these_fields(current):
            raise StoreError(
                f"{url} holds {len(others)} more samples, with the fields {', '.join(current.fields)}; all samples of "
                "a store have the same fields: ask for these, or stage to another place"
            )

    def copy_small_files(self) -> None:
        """Statistics, split lists and blacklists, where the source has them."""
        for name in (*_STATISTICS, *(f"{split}_design_ids.txt" for split in self.manifest.splits), *_BLACKLISTS):
            with contextlib.suppress(FileNotFoundError):
                self.task.target.write(name, [self.task.source.read(name)])

    def commit(self, samples: Sequence[StagedSample], chosen: Collection[str]) -> StoreManifest:
        """Name what is there. Samples with other fields go until they are copied again: all of a store have the same.

        Raises:
            StoreError: another stage, to an object store, has put there what this copy does not go with.
        """
        staged = {sample.sample_id: sample.entry for sample in samples if sample.entry is not None}

        def change(current: StoreManifest | None) -> StoreManifest:
            self.check_target(current, chosen)
            before = {} if current is None or not self._has_these_fields(current) else self._unchanged(current)
            changed = replace(
                self.manifest,
                generation=0 if current is None else current.generation,
                domains=self.domains,
                samples=before | staged,
                origin=self._origin,
                retention=Retention() if current is None else current.retention,
            )
            return current if current == changed else changed

        return commit(self.task.target, HEAD, change)

    def _has_these_fields(self, current: StoreManifest) -> bool:
        return set(current.fields) == set(self.task.arrays.values())

    def _unchanged(self, current: StoreManifest) -> dict[str, SampleEntry]:
        """Samples of the copy that the source has as they are."""

        def made_from(entry: SampleEntry | None) -> tuple[str, str] | None:
            return None if entry is None else (entry.fingerprint, entry.settings)

        return {i: e for i, e in current.samples.items() if made_from(self.manifest.samples.get(i)) == made_from(e)}


def _stage_sample(task: _Task, item: tuple[str, SampleEntry, str | None]) -> StagedSample:
    """Copy one sample; what is wrong with it is a problem in the result, and does not stop the others."""
    sample_id, entry, known = item
    try:
        return _SampleCopy.of(task, sample_id, entry, known).copy()
    except ZarrCoreError as error:
        return StagedSample(sample_id, None, problem=str(error))
    except Exception as error:  # remote filesystems pass on their clients' own errors, of which there is no common base
        if isinstance(error, OSError) and error.errno in _FATAL:
            raise StoreError(f"{task.target.url} cannot be written: {error}") from error
        return StagedSample(sample_id, None, problem=f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class _SampleCopy:
    """One sample under way.

    Attributes:
        group: ``zarr.json`` of its group in the copy.
        relpath: its group in the copy.
        layouts: layout by array name, of the arrays to copy.
        trusted: whether a manifest of the copy names the group already: it was checked then.
        source_sizes, target_sizes: bytes by object.
    """

    task: _Task
    sample_id: str
    entry: SampleEntry
    group: bytes
    relpath: str
    layouts: Mapping[str, ArrayLayout]
    trusted: bool
    source_sizes: Mapping[str, int]
    target_sizes: Mapping[str, int]

    @classmethod
    def of(cls, task: _Task, sample_id: str, entry: SampleEntry, known: str | None) -> _SampleCopy:
        """Look up what there is to copy and what is there; raises ZarrCoreError where the group cannot be read."""
        group, relpath = task.source.read(f"{entry.relpath}/zarr.json"), entry.relpath
        try:
            document = parse_json(group)
            layouts = group_arrays(document)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{relpath}/zarr.json cannot be read: {error!r}") from error
        wanted = {name: layout for name, layout in layouts.items() if name in task.arrays}
        if not wanted:
            raise StoreError(f"it has none of {', '.join(task.arrays.values())}")
        found = task.source.infos(entry.relpath)
        made_from: list[Any] = [entry.relpath, sorted(wanted)]
        if not entry.fingerprint:  # another program may write the same name again
            made_from.append([(name, info.size, info.version) for name, info in found.items()])
        if len(wanted) < len(layouts) or not entry.fingerprint:
            # Another group than the one of that name, so it must have another name: caches and pinned readers go by it.
            relpath = _other_name(sample_id, made_from)
        if len(wanted) < len(layouts):
            group = _reduced(document, {name: task.arrays[name] for name in wanted}, entry.relpath)
        # A collector that hangs may still delete what is under a tombstoned name, so that another one takes its place.
        names = [relpath, *(_other_name(sample_id, [relpath, again]) for again in range(1, 4))]
        free = (name for name in names if name not in task.tombstones)
        relpath = known if known in names else next(free, relpath)
        return cls(
            task,
            sample_id,
            entry,
            group,
            relpath,
            wanted,
            trusted=known == relpath and not task.check,
            source_sizes={name: info.size for name, info in found.items()},
            target_sizes=task.target.list(relpath),
        )

    def copy(self) -> StagedSample:
        """Copy what is missing, ``zarr.json`` of the group last."""
        self._remove_leftovers()
        shards = [(name, shard) for name, layout in self.layouts.items() for shard in range(layout.n_shards)]
        with ThreadPoolExecutor(_SHARDS_AT_A_TIME) as threads:
            results = list(threads.map(lambda place: self._copy_shard(*place), shards))
        folders = {name.rpartition("/")[0] for name in self.layouts}
        for name in sorted(folders | set(self.layouts)):
            self._put(f"{name}/zarr.json", self.task.source.read(f"{self.entry.relpath}/{name}/zarr.json"))
        self._put("zarr.json", self.group)
        copied, kept = sum(copied for copied, _ in results), sum(kept for _, kept in results)
        domains = {name.partition("/")[0] for name in self.layouts}
        entry = replace(
            self.entry,
            relpath=self.relpath,
            domains={domain: grid for domain, grid in self.entry.domains.items() if domain in domains},
            bytes=copied + kept if self.entry.bytes else 0,
        )
        return StagedSample(self.sample_id, entry, copied, kept)

    def _remove_leftovers(self) -> None:
        """Temporary files of a stage that was killed. No other is at work: this one holds the lock."""
        if is_local(self.task.target.root):
            for name in self.target_sizes:
                if name.endswith(".tmp") and name.rpartition("/")[2].startswith("."):
                    Path(self.task.target.path(name)).unlink(missing_ok=True)

    def _copy_shard(self, array: str, shard: int) -> tuple[int, int]:
        """Copy a shard unless it is there; bytes copied, and bytes that were there."""
        layout = self.layouts[array]
        name = f"{array}/{layout.shard_key(shard)}"
        original, copy = f"{self.entry.relpath}/{name}", f"{self.relpath}/{name}"
        size = self.source_sizes.get(original)
        if size is None:
            if layout.checksum:
                raise CorruptChunkError(f"{original} is missing")
            return 0, 0  # other programs leave out shards that hold nothing but zeros
        if self.target_sizes.get(copy) == size and (self.trusted or self._is_sound(copy, layout, shard, size)):
            return 0, size
        try:
            self.task.target.write(copy, _checked_pieces(self.task.source, original, layout, shard, size))
        except CorruptChunkError:  # on the way, perhaps
            self.task.target.write(copy, _checked_pieces(self.task.source, original, layout, shard, size))
        return size, 0

    def _is_sound(self, name: str, layout: ArrayLayout, shard: int, size: int) -> bool:
        try:
            for _ in _checked_pieces(self.task.target, name, layout, shard, size):
                pass
        except (CorruptChunkError, OSError):
            return False
        return True

    def _put(self, name: str, data: bytes) -> None:
        path = f"{self.relpath}/{name}"
        if self.target_sizes.get(path) != len(data) or self.task.target.read(path) != data:
            self.task.target.write(path, [data])


def _other_name(sample_id: str, made_from: Sequence[Any]) -> str:
    return f"{SAMPLES}/{sample_id}/{hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]}"


def _reduced(document: dict[str, Any], names: Mapping[str, str], relpath: str) -> bytes:
    """A group's ``zarr.json`` with only some of its arrays: canonical names by array name."""
    below = document["consolidated_metadata"]
    domains = {name.rpartition("/")[0] for name in names}
    kept = {name: metadata for name, metadata in below["metadata"].items() if name in names or name in domains}
    attributes = dict(document.get("attributes", {}))
    if ATTRIBUTES_KEY in attributes:
        recorded = dict(attributes[ATTRIBUTES_KEY])
        for key in ("moments", "stored_bytes"):
            recorded[key] = {name: of for name, of in recorded.get(key, {}).items() if name in names.values()}
        attributes[ATTRIBUTES_KEY] = recorded | {"staged_from": relpath}
    reduced = document | {"attributes": attributes, "consolidated_metadata": below | {"metadata": kept}}
    return (json.dumps(reduced, separators=(",", ":"), allow_nan=False) + "\n").encode()


def _checked_pieces(storage: Storage, name: str, layout: ArrayLayout, shard: int, size: int) -> Iterator[bytes]:
    """A shard object piece by piece, each chunk held against its checksum before it is passed on.

    Raises:
        CorruptChunkError: names object and chunk.
    """
    end = size - layout.index_bytes
    try:
        tail = _exactly(storage, name, max(end, 0), size)
        for start, stop, chunks in _spans(layout, shard, decode_shard_index(layout, tail), end):
            data = _exactly(storage, name, start, stop)
            for number, first, last in chunks:
                try:
                    check_chunk(layout, data[first - start : last - start])
                except CorruptChunkError as error:
                    raise CorruptChunkError(f"chunk {number}: {error}") from error
            yield data
        yield tail
    except CorruptChunkError as error:
        raise CorruptChunkError(f"{name}: {error}") from error


def _spans(
    layout: ArrayLayout, shard: int, index: Any, end: int
) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
    """Requests that fetch everything before the index: start, stop, and (number, start, stop) of the chunks within."""
    first = shard * layout.chunks_per_shard
    chunks = []
    for entry in range(min(layout.chunks_per_shard, layout.n_chunks - first)):
        start, length = (int(value) for value in index[entry])
        if start != 2**64 - 1:
            chunks.append((start, start + length, first + entry))
        elif layout.checksum:
            raise CorruptChunkError(f"chunk {first + entry}: not in the shard's index")
    position = last = 0
    within: list[tuple[int, int, int]] = []
    for start, stop, number in sorted(chunks):
        if start < last or stop > end:
            raise CorruptChunkError("shard index: names bytes that overlap or lie beyond the end of the object")
        if within and stop - position > _SPAN_BYTES:
            yield position, last, within
            position, within = last, []
        within.append((number, start, stop))
        last = stop
    if position < end:
        yield position, end, within


def _exactly(storage: Storage, name: str, start: int, stop: int) -> bytes:
    data = storage.read(name, start, stop)
    if len(data) != stop - start:
        raise CorruptChunkError(f"bytes {start} to {stop}: only {len(data)} came")
    return data
