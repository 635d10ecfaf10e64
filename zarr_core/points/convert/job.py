"""A conversion before any sample is converted: the selected samples, and the writer of the store that gets them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from zarr_core._util.redaction import refuse_credentials
from zarr_core.errors import SourceError, StoreError
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.store.head import load_if_any
from zarr_core.points.store.manifest import Quarantine, SampleEntry, StoreManifest
from zarr_core.points.store.recorded_settings import choose_settings
from zarr_core.sources.sample import SampleSource, SourceSample
from zarr_core.sources.selection import Selection, hash_samples, select_samples
from zarr_core.storage import Storage

#: How source files can be identified: by name, size and etag or modification time, or by name, size and SHA-256.
FINGERPRINTS = ("version", "content")


@dataclass(frozen=True)
class ConversionJob:
    """Which samples of a source are converted to which store, and how.

    Attributes:
        selection: the samples. Their fingerprints are those that the store identifies samples by.
        writer: of the store, with its settings and its retention.
        manifest: of the store; None if there is no store yet.
        dataset_name: requested name of the store; None for the store's own, or that of the kind if the store is new.
        reconvert: whether the writer's settings replace those of the store.
        fingerprints: one of ``FINGERPRINTS``.
        unreadable: reason by id of each sample that was left out because its files could not be read.
    """

    selection: Selection
    writer: GroupWriter
    manifest: StoreManifest | None = None
    dataset_name: str | None = None
    reconvert: bool = False
    fingerprints: str = FINGERPRINTS[0]
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        source: SampleSource,
        store_root: str | os.PathLike[str],
        settings: Mapping[str, Any],
        *,
        splits: Sequence[str] | None = None,
        sample_ids: Collection[str] | None = None,
        dataset_name: str | None = None,
        reconvert: bool = False,
        fingerprint: str | None = None,
    ) -> ConversionJob:
        """Compare the arguments of a conversion with its store, then list its source.

        Raises:
            SourceError: the source cannot be used, or holds nothing to convert; a setting is invalid.
            StoreError: the store is another dataset's, or has other settings.
        """
        storage = Storage(store_root)
        manifest = load_if_any(storage)
        check_dataset(storage, manifest, source.description.name, dataset_name)
        chosen = choose_settings(storage, manifest, settings, reconvert=reconvert)
        # Fields that the store has a dtype for may have been removed from the kind; those of the caller must exist.
        replace(chosen, field_dtypes=settings.get("field_dtypes", {})).check_fields(source.description.fields)
        fingerprints = _choose_fingerprints(manifest, fingerprint)
        selection = select_samples(source, splits, sample_ids)
        unreadable: dict[str, str] = {}
        if fingerprints == "content":
            selection, unreadable = hash_samples(selection)
        writer = GroupWriter(store_root, chosen, None if manifest is None else manifest.retention)
        return cls(selection, writer, manifest, dataset_name, reconvert, fingerprints, unreadable)

    def is_current(self, entry: SampleEntry | Quarantine | None, sample: SourceSample) -> bool:
        """Whether an entry of the manifest was made from these source files with these settings."""
        wanted = (sample.fingerprint, self.writer.settings.digest)
        return entry is not None and (entry.fingerprint, entry.settings) == wanted


def check_dataset(storage: Storage, manifest: StoreManifest | None, kind: str, name: str | None) -> None:
    """Raise StoreError if a store is of another kind than the dataset to be converted, or has another name."""
    refuse_credentials(name)
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
    if requested not in (None, *FINGERPRINTS):
        raise SourceError(f"fingerprint {requested!r} is not one of {', '.join(FINGERPRINTS)}")
    if manifest is None or not (manifest.samples or manifest.quarantine):
        return requested or (manifest.fingerprints if manifest else FINGERPRINTS[0])
    if requested not in (None, manifest.fingerprints):
        raise SourceError(
            f"the store identifies samples by the {manifest.fingerprints} of their files, not by {requested}: leave "
            "fingerprint out, or convert to a new store"
        )
    return manifest.fingerprints
