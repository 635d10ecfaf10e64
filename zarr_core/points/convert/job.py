"""A conversion before any sample is converted: the selected samples, the writer of their store, what is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zarr_core._util.cached import cached_property
from zarr_core.errors import SourceError, StoreError
from zarr_core.points.convert.request import ConversionRequest
from zarr_core.points.convert.sample import ConversionResult, quarantined
from zarr_core.points.convert.writer import GroupWriter, Repair
from zarr_core.points.store.head import load_if_any
from zarr_core.points.store.manifest import Quarantine, SampleEntry, StoreManifest
from zarr_core.points.store.settings import choose_settings
from zarr_core.sources.formats import require_libraries
from zarr_core.sources.parts import Part
from zarr_core.sources.sample import FoundSamples, SourceSample
from zarr_core.sources.selection import Selection, select_samples, with_contents
from zarr_core.storage import Storage


@dataclass(frozen=True)
class ConversionJob:
    """A request that was compared with its store, and the samples that its source has.

    Attributes:
        selection: the samples. Their fingerprints are those that the store identifies samples by.
        writer: of the store, with its settings and its retention.
        manifest: of the store; None if there is no store yet.
        fingerprints: how the store identifies source files: "version" or "content".
        unreadable: reason by id of each sample that was left out because its files could not be read.
    """

    request: ConversionRequest
    selection: Selection
    writer: GroupWriter
    manifest: StoreManifest | None = None
    fingerprints: str = "version"
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, request: ConversionRequest, found: FoundSamples | None = None) -> ConversionJob:
        """Compare a request with its store, then list its source, unless that was just done (``found``).

        Raises:
            SourceError: the source cannot be used, or holds nothing to convert; a setting is invalid.
            StoreError: the store is another dataset's, or has other settings; its bucket does not exist.
        """
        source = request.open_source()
        storage = Storage(request.store_root)
        manifest = load_if_any(storage)
        if manifest is None:
            storage.check_bucket()
        held = manifest or StoreManifest(request.dataset_name or "")
        check_dataset(storage, held, source.description.name, request.dataset_name)
        chosen = choose_settings(storage, held, request.settings, reconvert=request.reconvert)
        # Fields that the settings of the store name may be gone from the kind; those of the caller must exist.
        given = {name: request.settings.get(name, {}) for name in ("field_dtypes", "max_errors")}
        replace(chosen, **given).check_fields(source.description.fields)
        fingerprints = _choose_fingerprints(held, request.fingerprint)
        selection = select_samples(source, request.splits, request.sample_ids, found)
        unreadable: dict[str, str] = {}
        if fingerprints == "content":
            samples, unreadable = with_contents(source, selection.samples)
            selection = replace(selection, samples=samples)
        writer = GroupWriter(request.store_root, chosen, held.retention)
        return cls(request, selection, writer, manifest, fingerprints, unreadable)

    @cached_property
    def held(self) -> StoreManifest:
        """What the store held when the job was opened; an empty state if there is no store yet."""
        return self.manifest or StoreManifest("")

    def is_current(self, entry: SampleEntry | Quarantine | None, sample: SourceSample) -> bool:
        """Whether an entry of the manifest was made from these source files with these settings."""
        wanted = (sample.fingerprint, self.writer.settings.digest)
        return entry is not None and (entry.fingerprint, entry.settings) == wanted

    def is_converted(self, sample_id: str, entry: SampleEntry) -> bool:
        """Whether a conversion with these settings wrote a group, or would write it as it is."""
        return entry.relpath in self.writer.relpaths(sample_id, entry.fingerprint, entry.content)

    def content_of(self, sample: SourceSample) -> str:
        """Digest in the store of a sample whose files have had other content under the same version; else "".

        A group that is found by that version, as one of earlier settings, may hold any of these contents.
        """
        entry = self.held.samples.get(sample.sample_id)
        return entry.content if entry is not None and entry.fingerprint == sample.fingerprint else ""


def check_dataset(storage: Storage, manifest: StoreManifest, kind: str, name: str | None) -> None:
    """Raise StoreError if a store is of another kind than the dataset to be converted, or has another name."""
    if manifest.dataset_kind not in ("", kind):
        raise StoreError(
            f"{storage.url} holds a dataset of the kind {manifest.dataset_kind!r}, not {kind!r}; convert into another "
            "store, or give the kind the same name if its samples are of the same dataset"
        )
    if name is not None and name != manifest.dataset_name:
        raise StoreError(
            f"{storage.url} holds the dataset {manifest.dataset_name!r}, not {name!r}; convert into another store, or "
            f"leave out the name (or give dataset_name {manifest.dataset_name!r})"
        )


def _choose_fingerprints(manifest: StoreManifest, requested: str | None) -> str:
    """How the samples of a store are identified: the store's way, or for a new store the requested one."""
    if requested is None or requested == manifest.fingerprints:
        return manifest.fingerprints
    if manifest.samples or manifest.quarantine:
        raise SourceError(
            f"the store identifies samples by the {manifest.fingerprints} of their files, not by {requested}: leave "
            "fingerprint out, or convert to a new store"
        )
    return requested


#: A sample to convert, and the group that it is compared with; None: a new group.
Task = tuple[SourceSample, Repair | None]


@dataclass(frozen=True)
class Plan:
    """Results of the samples that need no conversion; the samples to convert now; how many ``limit`` leaves to do."""

    done: list[ConversionResult]
    todo: list[Task]
    remaining: int


def plan(job: ConversionJob) -> Plan:
    """What a conversion does with the selected samples; raises SourceError if a library that it needs is missing."""
    part = job.request.part or Part(0, 1)
    done = [ConversionResult(i, "failed", reason=why) for i, why in job.unreadable.items() if part.has(i)]
    todo: list[Task] = []
    for sample_id, sample in job.selection.samples.items():
        if part.has(sample_id):
            step = _step(job, sample)
            if isinstance(step, ConversionResult):
                done.append(step)
            else:
                todo.append(step)
    if todo:  # a missing library is one error, not one per sample
        fields = job.selection.source.description.fields.values()
        require_libraries([file.filename for file in fields if file.choice is not None])
    limit = len(todo) if job.request.limit is None else job.request.limit
    return Plan(done, todo[:limit], max(len(todo) - limit, 0))


def _step(job: ConversionJob, sample: SourceSample) -> ConversionResult | Task:
    """The result of a sample that needs no conversion, or the sample with the group that it is compared with."""
    request, sample_id = job.request, sample.sample_id
    entry, refusal = job.held.samples.get(sample_id), job.held.quarantine.get(sample_id)
    is_current = job.is_current(entry, sample)
    if refusal is not None and not job.is_current(refusal, sample):
        refusal = None
    # It has both if it was refused after its files had changed under the same version.
    retried = is_current and refusal is not None and request.retry_quarantined
    content = job.content_of(sample)
    if request.force or retried:
        # A staged copy may have another form of it, such as its first points: a group that no conversion repairs.
        if entry is not None and is_current and job.is_converted(sample_id, entry):
            return sample, Repair(entry.relpath, entry.head)
        return sample, Repair(content=content)
    if is_current and refusal is None:
        return ConversionResult(sample_id, "up to date")
    if refusal is None or request.retry_quarantined:
        return sample, Repair(content=content) if content else None
    # A sample that was converted, but did not fit the columns of the store, may fit them now.
    if not is_current and isinstance(job.writer.find(sample_id, sample.fingerprint), SampleEntry):
        return sample, None
    return quarantined(sample_id, refusal)
