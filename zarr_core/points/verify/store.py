"""Whether a store holds what it should: its objects against its manifest, its arrays against their source.

``zarr-core verify STORE`` reads every chunk and checks its checksum; ``--source ROOT`` also compares every
array with the file it was made from, row by row. The stored order is known (``zarr_core.format.shuffle``), so
stored row ``i`` is held against source row ``permutation[i]``; nothing is sorted, and rows that only swapped are found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from zarr_core._util.documents import parse_json
from zarr_core._util.processes import map_in_processes
from zarr_core.errors import ManifestError, StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.moments import FieldMoments
from zarr_core.format.object_names import ATTRIBUTES_KEY, MANIFEST
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.manifest import ArrayColumn, DomainGrid, SampleEntry, StoreManifest, load_manifest
from zarr_core.points.scan import read_chunks
from zarr_core.points.verify.generations import DeepCheck
from zarr_core.sources.recorded import RecordedSource
from zarr_core.storage import Storage
from zarr_core.storage.temporary import strip_temp_suffix
from zarr_core.versioning.generations import Retention, generation_name

if TYPE_CHECKING:
    import torch

# Recorded moments carry 12 digits, and were summed in other portions than here.
_MOMENTS_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Problem:
    """Something that is not as it should be.

    Attributes:
        sample_id: the sample, "" where the store as a whole is meant.
        field: canonical field name, "" where the sample as a whole is meant.
        message: what is wrong, with chunk and object where it is about one.
        commit: the one that brought the sample, in words; "" where that was not asked for.
    """

    sample_id: str
    field: str
    message: str
    commit: str = ""

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.sample_id, self.field) if part)
        message = f"{where}: {self.message}" if where else self.message
        return f"{message}; {self.commit}" if self.commit else message


@dataclass
class FieldTally:
    """How much of one field was checked."""

    samples: int = 0
    points: int = 0
    chunks: int = 0
    bytes: int = 0

    def add(self, other: FieldTally) -> None:
        """Count the other's in."""
        self.samples += other.samples
        self.points += other.points
        self.chunks += other.chunks
        self.bytes += other.bytes


@dataclass
class VerificationReport:
    """What :func:`verify_store` found.

    Attributes:
        samples: samples checked.
        against_source: whether arrays were compared with their source.
        fields: what was read, by canonical field name.
        problems: everything that is wrong; empty means that all is well.
        generations: states whose samples were checked: the current one, and with ``deep`` all that are kept.
        unnamed: groups that nothing names, which is no problem; looked for with ``deep`` only.
    """

    samples: int = 0
    generations: int = 0
    unnamed: int = 0
    against_source: bool = False
    fields: dict[str, FieldTally] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def arrays(self) -> int:
        """Arrays read."""
        return sum(tally.samples for tally in self.fields.values())

    @property
    def chunks(self) -> int:
        """Chunks read."""
        return sum(tally.chunks for tally in self.fields.values())

    @property
    def bytes(self) -> int:
        """Bytes of the objects read."""
        return sum(tally.bytes for tally in self.fields.values())


def verify_store(
    store_root: str,
    *,
    source: str | None = None,
    sample_ids: Collection[str] | None = None,
    deep: bool = False,
    workers: int = 1,
    progress: bool = False,
) -> VerificationReport:
    """Check a store's objects, chunks and recorded numbers, and its rows against their source.

    Args:
        store_root: path or URL of the store.
        source: folder or URL of the ``.pt`` tree that it was made from; None checks the store by itself.
        sample_ids: only these samples.
        deep: check what every kept generation names, not only the current one; look for objects that belong to nothing
            (unless only some samples are asked for); and say which commit brought what is wrong.
        workers: processes.
        progress: show a progress bar.

    Returns:
        The report; a damaged chunk is a problem in it and never an exception.

    Raises:
        UnknownFieldError: a sample is asked for that the store does not hold.
        StoreError, ManifestError: there is no readable manifest.
    """
    if workers < 1:
        raise ZarrCoreError("workers must be positive")
    storage = Storage(store_root)
    manifest = load_manifest(storage)
    unknown = sorted(set(sample_ids or ()) - set(manifest.samples))
    if unknown:
        raise UnknownFieldError(f"{storage.url} holds no sample {unknown[0]!r}")
    chosen = sorted(manifest.samples if sample_ids is None else set(sample_ids))
    report = VerificationReport(against_source=source is not None)
    report.problems += _generation_problems(storage, manifest)
    files = None if source is None else RecordedSource(source)
    if not deep:
        entries = [(sample_id, manifest.samples[sample_id]) for sample_id in chosen]
        _check_samples(
            report, partial(_check_sample, storage, files, _Columns.of(manifest)), entries, workers, progress
        )
        return report
    everything = DeepCheck(storage, manifest)
    wrong: list[tuple[str, Problem]] = []
    for state, samples in everything.states():
        entries = [(i, entry) for i, entry in sorted(samples.items()) if sample_ids is None or i in chosen]
        check = partial(_check_sample, storage, files, _Columns.of(state))
        problems = _check_samples(report, check, entries, workers, progress)
        collected = everything.collected() if problems else ()
        found = [(samples[problem.sample_id].relpath, problem) for problem in problems]
        wrong += [(relpath, problem) for relpath, problem in found if relpath not in collected]
    if sample_ids is None:
        everything.look_for_strays()
        report.unnamed = everything.unnamed
    commits = everything.commits({relpath for relpath, _ in wrong})
    report.problems = [
        *(problem for problem in report.problems if not problem.sample_id),
        *(replace(problem, commit=commits.get(relpath, "")) for relpath, problem in wrong),
        *(Problem("", "", message) for message in everything.problems),
    ]
    return report


def _check_samples(
    report: VerificationReport,
    check: Callable[[tuple[str, SampleEntry]], _Findings],
    entries: Sequence[tuple[str, SampleEntry]],
    workers: int,
    progress: bool,
) -> list[Problem]:
    """Check samples of one state, count them in the report, and return what is wrong with them."""
    report.generations += 1
    problems: list[Problem] = []
    checks = map_in_processes(check, entries, workers)
    for found in tqdm(checks, total=len(entries), unit="sample", desc="verify", disable=not progress):
        report.samples += 1
        problems += found.problems
        for name, tally in found.fields.items():
            report.fields.setdefault(name, FieldTally()).add(tally)
    report.problems += problems
    return problems


def _generation_problems(storage: Storage, manifest: StoreManifest) -> list[Problem]:
    """The committed generation must be kept as it is in the manifest; published stores have none."""
    if not manifest.generation:
        return []
    name = generation_name(manifest.generation)
    try:
        kept = StoreManifest.from_json(storage.read(name), name)
    except FileNotFoundError:
        return []  # its committer is about to keep it; or has died, and the next one does so before anything else
    except ManifestError as error:
        return [Problem("", "", str(error))]
    same = kept == replace(manifest, retention=Retention())
    return [] if same else [Problem("", "", f"{name} is not equal to {MANIFEST}")]


@dataclass(frozen=True)
class _Columns:
    """What the manifest says of all samples; small, because every task of a worker process carries it."""

    shuffle_seed: int
    domains: Mapping[str, Mapping[str, ArrayColumn]]

    @classmethod
    def of(cls, manifest: StoreManifest) -> _Columns:
        return cls(manifest.shuffle_seed, {name: dict(domain.arrays) for name, domain in manifest.domains.items()})


@dataclass
class _Findings:
    """What was found in one sample."""

    sample_id: str
    problems: list[Problem] = field(default_factory=list)
    fields: dict[str, FieldTally] = field(default_factory=dict)

    def add(self, name: str, message: str) -> None:
        self.problems.append(Problem(self.sample_id, name, message))

    def read_json(self, storage: Storage, path: str, name: str) -> dict[str, Any] | None:
        """A JSON object of the store, or None and a problem."""
        try:
            document = parse_json(storage.read(path))
        except FileNotFoundError:
            self.add(name, f"{path} is missing")
        except (ValueError, OSError) as error:
            self.add(name, f"{path} is not readable: {error}")
        else:
            if isinstance(document, dict):
                return document
            self.add(name, f"{path} is not readable: it is no JSON object")
        return None


def _check_sample(
    storage: Storage, source: RecordedSource | None, columns: _Columns, item: tuple[str, SampleEntry]
) -> _Findings:
    """Everything about one sample."""
    sample_id, entry = item
    found = _Findings(sample_id)
    try:
        _examine(storage, source, columns, entry, found)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # Metadata is JSON that may say anything; what it says wrong is a finding, too.
        found.add("", f"its metadata cannot be understood: {error!r}")
    return found


def _examine(
    storage: Storage, source: RecordedSource | None, columns: _Columns, entry: SampleEntry, found: _Findings
) -> None:
    group = found.read_json(storage, f"{entry.relpath}/zarr.json", "")
    if group is None:
        return
    objects = storage.list(entry.relpath)
    recorded: Mapping[str, Any] = group.get("attributes", {}).get(ATTRIBUTES_KEY, {})
    _check_attributes(found, entry, recorded)
    files = None
    if source is not None:
        files = _SourceFiles.find(source, found, recorded, columns.shuffle_seed)
    expected = {f"{entry.relpath}/zarr.json"}
    for domain, grid in entry.domains.items():
        expected.add(f"{entry.relpath}/{domain}/zarr.json")
        if domain not in columns.domains:
            found.add("", f"the manifest lists no arrays of its domain {domain!r}")
        for name, column in columns.domains.get(domain, {}).items():
            array = _Array(storage, f"{entry.relpath}/{column.array_name}", name, column, grid, found)
            expected |= array.check(group, objects, recorded, files.rows(domain, name) if files else None)
    total = sum(tally.bytes for tally in found.fields.values())
    if entry.fingerprint and not found.problems and entry.bytes != total:
        found.add("", f"its arrays have {total:,} bytes, the manifest says {entry.bytes:,}")
    expected.add(f"{entry.relpath}/quarantine.json")  # of a time before the sample was accepted
    for path in sorted(set(objects) - expected):
        if strip_temp_suffix(path)[1]:
            continue  # a converter is at work on the same sample, or was killed; gc takes it
        found.add("", f"{path.removeprefix(entry.relpath + '/')} belongs to no array of the manifest")


def _check_attributes(found: _Findings, entry: SampleEntry, recorded: Mapping[str, Any]) -> None:
    if not entry.fingerprint:
        return  # a store of another tool: it records nothing
    said = {"sample_id": found.sample_id, "fingerprint": entry.fingerprint, "settings": entry.settings}
    for key, value in said.items():
        if recorded.get(key) != value:
            found.add("", f"its group's {key} is {recorded.get(key)!r}, the manifest says {value!r}")


@dataclass(frozen=True)
class _Array:
    """One array under examination."""

    storage: Storage
    path: str
    name: str
    column: ArrayColumn
    grid: DomainGrid
    found: _Findings

    def check(
        self,
        group: Mapping[str, Any],
        objects: Mapping[str, int],
        recorded: Mapping[str, Any],
        source: Callable[[ArrayLayout], _Comparison | None] | None,
    ) -> set[str]:
        """Examine the array; returns the objects that it consists of."""
        expected = {f"{self.path}/zarr.json"}
        layout = self._layout(group)
        if layout is None:
            return expected
        shards = [f"{self.path}/{layout.shard_key(shard)}" for shard in range(layout.n_shards)]
        size = sum(objects.get(shard, 0) for shard in shards)
        stored_bytes = recorded.get("stored_bytes", {}).get(self.name, size)
        if stored_bytes != size and all(shard in objects for shard in shards):
            self.found.add(self.name, f"its shards have {size:,} bytes, {stored_bytes:,} were recorded")
        tally = self.found.fields[self.name] = FieldTally(samples=1, bytes=size)
        moments = self._read(layout, tally, source(layout) if source is not None else None)
        if moments is not None and self.name in recorded.get("moments", {}):
            self._check_moments(moments, FieldMoments.from_json(recorded["moments"][self.name]))
        return expected | set(shards)

    def _layout(self, group: Mapping[str, Any]) -> ArrayLayout | None:
        """The layout that the array really has; None where it cannot be known."""
        own = self.found.read_json(self.storage, f"{self.path}/zarr.json", self.name)
        inlined = (group.get("consolidated_metadata") or {}).get("metadata", {}).get(self.column.array_name)
        if inlined is None:
            self.found.add(self.name, "is not in the metadata of its group")
        elif own is not None and own != inlined:
            self.found.add(self.name, "its zarr.json differs from the copy in that of its group")
        metadata = own or inlined
        if metadata is None:
            return None
        try:
            layout = ArrayLayout.from_zarr_json(metadata)
        except StoreError as error:
            self.found.add(self.name, str(error))
            return None
        pairs = {
            "points": (layout.n_points, self.grid.n_points),
            "points a chunk": (layout.chunk_points, self.grid.chunk_points),
            "points a shard": (layout.shard_points, self.grid.shard_points),
            "chunks": (layout.n_chunks, self.grid.n_chunks),
            "components": (layout.dim, self.column.dim),
            "dtype": (layout.dtype, self.column.dtype),
        }
        for what, (stored, said) in pairs.items():
            if stored != said:
                self.found.add(self.name, f"{what}: the array has {stored}, the manifest says {said}")
        return layout

    def _read(self, layout: ArrayLayout, tally: FieldTally, comparison: _Comparison | None) -> FieldMoments | None:
        """Read every chunk: checksum, decoding, finite values, the source's rows; the moments if all were sound."""
        moments: FieldMoments | None = None
        sound = True
        for chunk in read_chunks(self.storage, self.path, layout):
            tally.chunks += 1
            if chunk.rows is None or chunk.number is None:
                sound = False
                where = f"shard {chunk.shard}" if chunk.number is None else f"chunk {chunk.number}"
                place = f"{self.column.array_name}/{layout.shard_key(chunk.shard)}"
                self.found.add(self.name, f"{where}: {chunk.problem} ({place})")
                continue
            tally.points += len(chunk.rows)
            if comparison is not None:
                comparison.compare(chunk.number * layout.chunk_points, chunk.rows)
            n_bad = int(np.count_nonzero(~np.isfinite(chunk.rows)))
            if n_bad:
                sound = False
                self.found.add(self.name, f"chunk {chunk.number}: {n_bad} values are not finite")
            else:
                part = FieldMoments.of(chunk.rows)
                moments = moments.merge(part) if moments else part
        if comparison is not None and comparison.n_different:
            self.found.add(self.name, comparison.message)
        return moments if sound else None

    def _check_moments(self, taken: FieldMoments, recorded: FieldMoments) -> None:
        if taken.count != recorded.count:
            self.found.add(self.name, f"moments of {recorded.count} points were recorded, it has {taken.count}")
            return
        # A mean may be close to zero by cancellation; its error is small against the spread of the values.
        spreads = {"mean": taken.std, "log_mean": taken.log_std}
        for key in ("mean", "m2", "min", "max", "log_mean", "log_m2"):
            now, then = getattr(taken, key), getattr(recorded, key)
            if now.shape != then.shape or np.any(
                np.abs(now - then) > _MOMENTS_TOLERANCE * (np.abs(now) + spreads.get(key, 0.0))
            ):
                self.found.add(self.name, f"recorded {key} {then.tolist()} is not that of its points, {now.tolist()}")


@dataclass(frozen=True, eq=False)
class _SourceFiles:
    """The files of one sample; which of them is which field is what its conversion recorded."""

    source: RecordedSource
    found: _Findings
    folder: str
    recorded: Mapping[str, Mapping[str, Any]]
    shuffle_seed: int
    permutations: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)

    @classmethod
    def find(
        cls, source: RecordedSource, found: _Findings, recorded: Mapping[str, Any], shuffle_seed: int
    ) -> _SourceFiles | None:
        """The sample's files, or None and a problem."""
        origin = recorded.get("source", {})
        if not origin.get("files"):
            found.add("", "cannot be compared: the files that it was made from were not recorded")
            return None
        folder = source.folder(found.sample_id, origin)
        if folder is None:
            found.add("", f"cannot be compared: its folder has vanished from {source.url}")
            return None
        return cls(source, found, folder, origin["files"], recorded.get("shuffle_seed", shuffle_seed))

    def rows(self, domain: str, name: str) -> Callable[[ArrayLayout], _Comparison | None]:
        """What compares an array of that layout with its file; opened only when it is called."""
        return partial(self._comparison, domain, name)

    def _comparison(self, domain: str, name: str, layout: ArrayLayout) -> _Comparison | None:
        recorded = self.recorded.get(name)
        if recorded is None:
            self.found.add(name, "cannot be compared: the file that it was made from was not recorded")
            return None
        path = f"{self.folder}/{recorded['name']}"
        try:
            info = self.source.file(path)
            values = _as_array(self.source.load(path, info.size))
        except FileNotFoundError:
            self.found.add(name, f"cannot be compared: {recorded['name']} has vanished from the source")
            return None
        except (ValueError, OSError, ZarrCoreError) as error:
            self.found.add(name, f"cannot be compared: {recorded['name']}: {error}")
            return None
        changed = ""
        if info.size != recorded["size"]:
            changed = f"; {info.name} has changed since: {recorded['size']:,} bytes then, {info.size:,} now"
        elif info.version != recorded["version"]:
            changed = f"; {info.name} was written again since the conversion"
        if values.shape != (layout.n_points, layout.dim):
            stored = (layout.n_points, layout.dim)
            self.found.add(name, f"has shape {stored}, its source {values.shape}{changed}")
            return None
        key = (domain, layout.n_points)
        if key not in self.permutations:
            self.permutations.clear()  # one domain at a time: a permutation is as large as a field
            self.permutations[key] = shuffle_permutation(self.shuffle_seed, self.found.sample_id, *key)
        return _Comparison(values, self.permutations[key], layout.dtype, changed)


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    """A field's tensor as (points, components)."""
    import torch

    # NumPy has no bfloat16; float32 holds each of its values.
    values = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return values[:, None] if values.ndim == 1 else values


@dataclass(eq=False)
class _Comparison:
    """Stored rows against the source rows that belong in their places, portion by portion."""

    values: np.ndarray
    permutation: np.ndarray
    dtype: str
    changed: str
    n_rows: int = 0
    n_different: int = 0
    first: str = ""

    def compare(self, start: int, stored: np.ndarray) -> None:
        """Hold stored rows ``start, start + 1 ...`` against the source, cast to the stored dtype (round to nearest)."""
        of = self.permutation[start : start + len(stored)]
        with np.errstate(over="ignore"):
            belongs = self.values[of].astype(self.dtype)
        different = (stored != belongs).any(axis=1)
        self.n_rows += len(stored)
        self.n_different += int(np.count_nonzero(different))
        if not self.first and different.any():
            at = int(np.argmax(different))
            self.first = f"stored row {start + at} is {stored[at].tolist()}, source row {of[at]} {belongs[at].tolist()}"

    @property
    def message(self) -> str:
        """What differs, in one line."""
        return f"{self.n_different:,} of {self.n_rows:,} rows differ from the source: {self.first}{self.changed}"
