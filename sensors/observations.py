"""What happened at a source since Dagster last heard of it: new, changed, vanished and half-copied samples.

A source is a tree of sample folders, or a warehouse, whose samples are then its batches. Dagster itself remembers what
it has seen: the samples are partitions, the fingerprint of each is the data version of its latest observation. Only
what is not settled yet is carried from one look to the next: a sample counts when two looks in a row saw the same
complete set of files, so that one that is still being copied is left alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import dagster as dg
from dagster import DagsterEventType, DagsterInstance

from resources.dataset import DeclaredDataset
from zarr_core.sources import SampleTree

DATA_VERSION = "dagster/data_version"
LISTS_TAG = "zarr_core/lists"
# A sample that is gone gets this version, so that its return is a change even when its files are the old ones.
ABSENT = "absent"
# An observation costs about 7 ms in SQLite, and a tick has to end within its minute.
MOST_PER_LOOK = 1000


def short_digest(parts: Iterable[str]) -> str:
    """Sixteen hex digits over some strings."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


class Watched(Protocol):
    """What is declared of a source that is watched."""

    @property
    def partitions_name(self) -> str:
        """Name under which the instance keeps the partitions."""
        ...

    @property
    def observed(self) -> dg.AssetKey:
        """Asset whose partitions are observed."""
        ...


class Arrived(Protocol):
    """A sample as a look sees it."""

    @property
    def fingerprint(self) -> str:
        """Changes with the sample's files."""
        ...


@dataclass(frozen=True)
class Look:
    """One listing of a source.

    Attributes:
        samples: those whose files are all there.
        incomplete: the others, with the fields whose files are missing.
        lists: digest of the split lists and blacklists beside the samples.
        shown: what the UI shows of each sample.
    """

    samples: Mapping[str, Arrived]
    incomplete: Mapping[str, tuple[str, ...]]
    lists: str
    shown: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def listing_version(self) -> str:
        """Data version of the listing as a whole: which samples there are, and what the lists say."""
        return short_digest([self.lists, *sorted(self.samples)])


@dataclass(frozen=True)
class Unsettled:
    """What one look leaves for the next; the sensor's cursor.

    Attributes:
        seen_once: first digits of the fingerprint of samples that wait for a second look.
        gone_once: known samples that the look did not find.
    """

    seen_once: Mapping[str, str] = field(default_factory=dict)
    gone_once: tuple[str, ...] = ()

    def to_cursor(self) -> str:
        """As the sensor keeps it."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @staticmethod
    def from_cursor(cursor: str | None) -> Unsettled:
        """Back from the cursor; one that does not parse (of an older version) is as good as none."""
        try:
            said = json.loads(cursor or "{}")
            return Unsettled(dict(said.get("seen_once", {})), tuple(said.get("gone_once", ())))
        except (ValueError, AttributeError, TypeError):
            return Unsettled()


@dataclass(frozen=True)
class Arrivals:
    """What Dagster should be told after a look."""

    new: tuple[str, ...]
    changed: tuple[str, ...]
    vanished: tuple[str, ...]
    unsettled: Unsettled

    @property
    def told(self) -> tuple[str, ...]:
        """Samples whose fingerprint is news."""
        return self.new + self.changed


def take_look(tree: SampleTree, splits: Collection[str] | None = None) -> Look:
    """List a source once: the samples of these splits (all samples if None), less those on its blacklists."""
    found = tree.discover()
    excluded = tree.excluded()
    if splits is not None:
        listed = tree.splits(found)
        wanted = {sample_id for split in splits for sample_id in listed.get(split, ())}
        excluded = excluded | (set(found) - wanted)
    found = {sample_id: sample for sample_id, sample in found.items() if sample_id not in excluded}
    complete = {sample_id: sample for sample_id, sample in found.items() if sample.complete}
    incomplete = {sample_id: sample.missing for sample_id, sample in found.items() if not sample.complete}
    documents = [f"{name}\n{text}" for name, text in sorted(tree.split_documents().items())]
    shown = {
        sample_id: {"source_bytes": sample.n_bytes, "files": len(sample.files), "folder": sample.folder}
        for sample_id, sample in complete.items()
    }
    return Look(complete, incomplete, short_digest(documents), shown)


def compare(look: Look, known: Mapping[str, str | None], before: Unsettled, most: int = MOST_PER_LOOK) -> Arrivals:
    """Compare a look with what Dagster knows.

    Args:
        look: what the source holds now.
        known: registered samples with the fingerprint last observed, None where there never was one.
        before: what the previous look left open.
        most: bound on the samples reported, and on those carried to the next look.
    """
    news = [i for i in sorted(look.samples, key=_natural) if known.get(i) != look.samples[i].fingerprint]
    settled = [i for i in news if before.seen_once.get(i) == look.samples[i].fingerprint[:12]][:most]
    taken = set(settled)
    waiting = [sample_id for sample_id in news if sample_id not in taken][:most]
    # A folder that lost one file is being copied again; only one that is gone altogether has vanished. And a source
    # without a single sample is a disk that is not mounted or a bucket that cannot be listed, not a withdrawal of all.
    anything_there = bool(look.samples or look.incomplete)
    gone = sorted(set(known) - set(look.samples) - set(look.incomplete))[:most] if anything_there else []
    vanished = tuple(sample_id for sample_id in gone if sample_id in before.gone_once)
    new = tuple(sample_id for sample_id in settled if sample_id not in known)
    unsettled = Unsettled(
        {sample_id: look.samples[sample_id].fingerprint[:12] for sample_id in waiting},
        tuple(sample_id for sample_id in gone if sample_id not in vanished),
    )
    return Arrivals(new, tuple(sample_id for sample_id in settled if sample_id in known), vanished, unsettled)


def _natural(sample_id: str) -> list[str | int]:
    """Sort key that puts run_10 after run_9: samples that arrive together are then neighbours as partitions, too."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", sample_id)]


def make_neighbours(instance: DagsterInstance, dataset: Watched, sample_ids: Collection[str]) -> None:
    """Move partitions to the end of the list, next to one another.

    A run takes a contiguous range of partitions. Without this, a hundred changed samples scattered over the list would
    become a hundred runs. What the instance knows of a partition stays with it. Call it before the change is reported:
    an automation tick that falls into the gap would not count an update of a partition that is not there.
    """
    registered = instance.get_dynamic_partitions(dataset.partitions_name)
    place = {sample_id: number for number, sample_id in enumerate(registered)}
    places = [place[sample_id] for sample_id in sample_ids]
    if not places or max(places) - min(places) == len(places) - 1:
        return
    for sample_id in sample_ids:
        instance.delete_dynamic_partition(dataset.partitions_name, sample_id)
    instance.add_dynamic_partitions(dataset.partitions_name, list(sample_ids))


def known_samples(instance: DagsterInstance, dataset: Watched) -> dict[str, str | None]:
    """Registered samples and the fingerprint each was last observed with: two queries, whatever their number."""
    registered = instance.get_dynamic_partitions(dataset.partitions_name)
    observed = instance.event_log_storage.get_latest_tags_by_partition(
        dataset.observed, DagsterEventType.ASSET_OBSERVATION, [DATA_VERSION]
    )
    return {sample_id: observed.get(sample_id, {}).get(DATA_VERSION) for sample_id in registered}


def observations(dataset: Watched, look: Look, arrivals: Arrivals) -> list[dg.AssetObservation]:
    """The events that tell Dagster which samples are there in which version."""
    key = dataset.observed
    events = []
    for sample_id in arrivals.told:
        tags = {DATA_VERSION: look.samples[sample_id].fingerprint}
        metadata = dict(look.shown.get(sample_id, {}))
        events.append(dg.AssetObservation(key, partition=sample_id, metadata=metadata, tags=tags))
    for sample_id in arrivals.vanished:
        events.append(dg.AssetObservation(key, partition=sample_id, tags={DATA_VERSION: ABSENT}))
    return events


def latest_observations(
    instance: DagsterInstance, dataset: Watched, sample_ids: Sequence[str]
) -> dict[str, tuple[str, int]]:
    """Version and storage id of the latest observation of each sample, as they are now."""
    found = {}
    for sample_id in sample_ids:
        record = instance.get_latest_data_version_record(dataset.observed, is_source=True, partition_key=sample_id)
        if record is not None:
            found[sample_id] = ((record.event_log_entry.tags or {}).get(DATA_VERSION, ""), record.storage_id)
    return found


def version_tags(
    dataset: Watched, code_version: str, data_version: str, source: tuple[str, int] | None
) -> dict[str, str]:
    """Tags by which Dagster tells whether a partition is stale; it sets them itself only on what an op returns.

    Args:
        dataset: whose partition it is.
        code_version: of the asset.
        data_version: of what was made.
        source: version and storage id of the observation that it was made from.
    """
    tags = {"dagster/code_version": code_version, DATA_VERSION: data_version}
    if source is not None:
        key = dataset.observed.to_user_string()
        tags[f"dagster/input_data_version/{key}"] = source[0]
        tags[f"dagster/input_event_pointer/{key}"] = str(source[1])
    return tags


def listing_observation(dataset: DeclaredDataset, look: Look) -> dg.AssetObservation:
    """The event that tells Dagster what the source lists as a whole."""
    metadata = {
        "samples": len(look.samples),
        "incomplete": len(look.incomplete),
        "source_bytes": sum(shown["source_bytes"] for shown in look.shown.values()),
    }
    tags = {DATA_VERSION: look.listing_version, LISTS_TAG: look.lists}
    return dg.AssetObservation(dataset.key("source_listing"), metadata=metadata, tags=tags)


def known_lists(instance: DagsterInstance, dataset: DeclaredDataset) -> str | None:
    """Digest of the split lists as last observed, None where the listing never was."""
    record = instance.get_latest_data_version_record(dataset.key("source_listing"), is_source=True)
    return (record.event_log_entry.tags or {}).get(LISTS_TAG) if record else None
