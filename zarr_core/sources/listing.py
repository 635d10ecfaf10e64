"""One listing of a source: which items it holds now, in which version, and which of them are incomplete."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from zarr_core._util.digests import short_digest
from zarr_core.sources.sample import FoundSamples, SourceSample
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
        left_out: sentences that name the folders and files that are not items.
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


def list_samples(tree: SampleTree, splits: Collection[str] | None = None, found: FoundSamples | None = None) -> Listing:
    """List the samples of some splits (None: all), without those on the source's blacklists.

    ``found`` is what ``tree.find`` has just found; by default, the whole source is listed. Raises SourceError if it
    cannot be, or if a split file cannot be used.
    """
    found = tree.find() if found is None else found
    left_out = tree.excluded()
    notes = [*found.left_out, *found.unused]
    if splits is not None:
        listed = tree.splits(found.samples)
        unknown = [split for split in splits if split not in listed]
        if unknown and found.samples:
            notes.append(
                f"there is no split {', '.join(unknown)}; {tree.description.name} has: {', '.join(listed) or 'none'}"
            )
        wanted = set().union(*(listed.get(split, ()) for split in splits))
        left_out |= found.samples.keys() - wanted
    complete: dict[str, SourceSample] = {}
    incomplete: dict[str, tuple[str, ...]] = {}
    incomplete_since: dict[str, float] = {}
    details: dict[str, dict[str, Any]] = {}
    for sample_id, sample in found.samples.items():
        if sample_id in left_out:
            continue
        if sample.complete:
            complete[sample_id] = sample
            described = {"source_bytes": sample.n_bytes, "files": len(sample.files), "folder": sample.folder}
            details[sample_id] = described
            continue
        incomplete[sample_id] = sample.missing
        if sample.modified:
            incomplete_since[sample_id] = sample.modified
    documents = sorted(tree.split_documents().items())
    digest = short_digest(f"{name}\n{text}" for name, text in documents)
    return Listing(complete, incomplete, digest, details, tuple(notes), incomplete_since)
