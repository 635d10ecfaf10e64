"""One listing of a source: which items it holds now, in which version, and which of them are incomplete."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from zarr_core.sources.tree import SampleTree


class Fingerprinted(Protocol):
    """An item of a source: a sample, or a batch of a warehouse."""

    @property
    def fingerprint(self) -> str:
        """Changes with the item's content."""


@dataclass(frozen=True)
class Listing:
    """The items of a source at one moment.

    Attributes:
        items: complete items by id.
        incomplete: names of the missing files by id of the others.
        incomplete_since: when the newest file of each of them was written, in seconds since 1970, where that is known.
        documents_digest: digest of the split files and blacklists beside the items.
        details: plain values that describe each item, by id.
        left_out: sentences that name the folders and files that are no items.
    """

    items: Mapping[str, Fingerprinted]
    incomplete: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    documents_digest: str = ""
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    incomplete_since: Mapping[str, float] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Changes with the set of complete items and with the documents, not with the content of an item."""
        return short_digest([self.documents_digest, *sorted(self.items)])


def list_samples(
    tree: SampleTree, splits: Collection[str] | None = None, folders: Collection[str] | None = None
) -> Listing:
    """List the samples of some splits (None: all), without those on the source's blacklists.

    Args:
        tree: the source.
        splits: names of the splits.
        folders: of samples; the others are not listed. All are by default.

    Raises:
        SourceError: the source cannot be listed, or a split file cannot be used.
    """
    everything = tree.find(folders=folders)
    found = everything.samples
    excluded = tree.excluded()
    if splits is not None:
        listed = tree.splits(found)
        excluded |= found.keys() - {sample_id for split in splits for sample_id in listed.get(split, ())}
    samples = {sample_id: sample for sample_id, sample in found.items() if sample_id not in excluded}
    complete = {sample_id: sample for sample_id, sample in samples.items() if sample.complete}
    incomplete = {sample_id: sample for sample_id, sample in samples.items() if not sample.complete}
    return Listing(
        complete,
        {sample_id: sample.missing for sample_id, sample in incomplete.items()},
        short_digest(f"{name}\n{text}" for name, text in sorted(tree.split_documents().items())),
        {
            sample_id: {"source_bytes": sample.n_bytes, "files": len(sample.files), "folder": sample.folder}
            for sample_id, sample in complete.items()
        },
        (*everything.left_out, *everything.unused),
        {sample_id: sample.modified for sample_id, sample in incomplete.items() if sample.modified},
    )


def short_digest(parts: Iterable[str]) -> str:
    """The first 16 hex digits of the SHA-256 of some strings, joined by newlines."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
