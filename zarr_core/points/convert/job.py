"""A conversion before any sample is converted: the selected samples, and the writer of the store that gets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zarr_core.errors import SourceError, StoreError
from zarr_core.points.convert.request import ConversionRequest
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.store.head import load_if_any
from zarr_core.points.store.manifest import Quarantine, SampleEntry, StoreManifest
from zarr_core.points.store.settings import choose_settings
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
        check_dataset(storage, manifest, source.description.name, request.dataset_name)
        chosen = choose_settings(storage, manifest, request.settings, reconvert=request.reconvert)
        # Fields that the settings of the store name may be gone from the kind; those of the caller must exist.
        given = {name: request.settings.get(name, {}) for name in ("field_dtypes", "max_errors")}
        replace(chosen, **given).check_fields(source.description.fields)
        fingerprints = _choose_fingerprints(manifest, request.fingerprint)
        selection = select_samples(source, request.splits, request.sample_ids, found)
        unreadable: dict[str, str] = {}
        if fingerprints == "content":
            samples, unreadable = with_contents(source, selection.samples)
            selection = replace(selection, samples=samples)
        writer = GroupWriter(request.store_root, chosen, None if manifest is None else manifest.retention)
        return cls(request, selection, writer, manifest, fingerprints, unreadable)

    @property
    def samples(self) -> Mapping[str, SampleEntry]:
        """The samples that the store had when the job was opened, by id."""
        return self.manifest.samples if self.manifest else {}

    @property
    def refused(self) -> Mapping[str, Quarantine]:
        """The samples that the store had refused when the job was opened, by id."""
        return self.manifest.quarantine if self.manifest else {}

    def is_current(self, entry: SampleEntry | Quarantine | None, sample: SourceSample) -> bool:
        """Whether an entry of the manifest was made from these source files with these settings."""
        wanted = (sample.fingerprint, self.writer.settings.digest)
        return entry is not None and (entry.fingerprint, entry.settings) == wanted


def check_dataset(storage: Storage, manifest: StoreManifest | None, kind: str, name: str | None) -> None:
    """Raise StoreError if a store is of another kind than the dataset to be converted, or has another name."""
    if manifest is None:
        return
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


def _choose_fingerprints(manifest: StoreManifest | None, requested: str | None) -> str:
    """How the samples of a store are identified: the store's way, or for a new store the requested one."""
    if manifest is None:
        return requested or "version"
    if requested is None or requested == manifest.fingerprints:
        return manifest.fingerprints
    if manifest.samples or manifest.quarantine:
        raise SourceError(
            f"the store identifies samples by the {manifest.fingerprints} of their files, not by {requested}: leave "
            "fingerprint out, or convert to a new store"
        )
    return requested
