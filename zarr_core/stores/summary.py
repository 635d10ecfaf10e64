"""Summary of a store of either kind, or of one of its samples, without reading an array."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import compress
from typing import Any

from zarr_core.errors import StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.matrix.store.state import MatrixState
from zarr_core.points.statistics_files import find_statistics
from zarr_core.points.store.footprint import LayoutInfo, layouts_of
from zarr_core.points.store.group import METADATA_READS
from zarr_core.points.store.head import as_its_own
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.points.store.settings import current_settings, describe_changes
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.stores.sample_group import ArrayInfo, SampleGroup
from zarr_core.versioning.archive import archive_names
from zarr_core.versioning.generations import Head, load
from zarr_core.versioning.history import commits

# Samples whose metadata is read to tell which of them can be converted again, at most.
_MOST_LOOKUPS = 100


@dataclass(frozen=True)
class FieldInfo:
    """A field of a point store, or a value table of a matrix.

    Attributes:
        dtype: stored NumPy dtype.
        components: values per point, 3 for a vector; 1 for a value table.
        units: attribute ``units`` of the array, "" if it is not recorded.
    """

    dtype: str
    components: int
    units: str = ""


@dataclass(frozen=True)
class SplitInfo:
    """A split: number of its samples in the store, and of listed samples that the store does not hold."""

    samples: int
    missing: int


@dataclass(frozen=True)
class Range:
    """Smallest and largest count per sample, and the sum over all samples."""

    least: int
    most: int
    total: int


@dataclass(frozen=True)
class StatisticsInfo:
    """The statistics that datasets of a generation of a point store normalize with.

    Attributes:
        written: seconds since 1970; None if the location does not report it.
        age: seconds since then.
        outdated: whether the generation was committed later.
    """

    written: float | None
    age: float | None
    outdated: bool


@dataclass(frozen=True)
class StoreInfo:
    """Summary of one generation of a store.

    Attributes:
        store: its URL without secrets.
        kind: "points" or "matrix".
        name: name of the dataset; "" for a matrix.
        generation: 0 in a store that another program wrote.
        committed: seconds since 1970; None if the location does not report it.
        tags: all tags of the store: generation by name.
        samples: how many.
        bytes: stored bytes of all arrays; 0 where another program wrote the store, which records none.
        fields: fields or value tables by name.
        points: points per sample by domain; empty for a matrix.
        splits: by name, as the source lists them; empty for a matrix.
        settings: how the arrays are stored.
        excluded: number of blacklisted samples.
        quarantined: reason by id of each refused sample.
        layouts: of the samples, "directory" and "packed"; empty for a matrix.
        origin: of a staged copy, the store and generation that it was copied from.
        statistics: None if there are none; always None for a matrix.
        features: number of a matrix's features.
        batches: number of samples by batch of a matrix.
        retired: ids of retired samples, without those of a matrix's retired batches.
        retired_batches: number of retired samples by retired batch of a matrix.
        column_major: number of samples in a matrix's column-major copy.
        batch_sources: state of the warehouse that a batch of a matrix was loaded from, where it was recorded.
        metadata: columns of a matrix's tables "samples" and "batches".
    """

    store: str
    kind: str
    name: str
    generation: int
    committed: float | None
    tags: Mapping[str, int]
    samples: int
    bytes: int
    fields: Mapping[str, FieldInfo]
    settings: Mapping[str, Any]
    points: Mapping[str, Range] = field(default_factory=dict)
    splits: Mapping[str, SplitInfo] = field(default_factory=dict)
    excluded: int = 0
    quarantined: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, LayoutInfo] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    statistics: StatisticsInfo | None = None
    features: int = 0
    batches: Mapping[str, int] = field(default_factory=dict)
    retired: tuple[str, ...] = ()
    retired_batches: Mapping[str, int] = field(default_factory=dict)
    column_major: int = 0
    batch_sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    metadata: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class SampleInfo:
    """Summary of one sample.

    Attributes:
        store: URL of the store, without secrets.
        sample: id.
        generation: that was read.
        bytes: stored bytes of its arrays; 0 in a store that another program wrote.
        group: prefix of its Zarr group; "" in a matrix.
        splits: splits that list it.
        fingerprint: of its source files.
        source: folder and files below the source's root that it was made from; empty for arrays, and in a matrix.
        settings: digest of its conversion settings.
        fields: its arrays by canonical field name; empty in a matrix.
        parameters: of the sample, by name; empty in a matrix.
        batch: of a matrix; "" in a point store.
        row: of a matrix.
        excluded: whether a blacklist keeps it out of all splits.
        refused: why its present source was refused, if the sample is of an earlier one; else "".
    """

    store: str
    sample: str
    generation: int
    bytes: int
    group: str = ""
    splits: tuple[str, ...] = ()
    fingerprint: str = ""
    settings: str = ""
    fields: Mapping[str, ArrayInfo] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    batch: str = ""
    row: int | None = None
    excluded: bool = False
    refused: str = ""


def store_info(store_root: str | os.PathLike[str], *, generation: int | str | None = None) -> StoreInfo:
    """Summarize a store.

    Args:
        store_root: path or URL of a point store or a wide matrix.
        generation: number or tag; the latest if None.

    Raises:
        StoreError: there is no store, or no such generation.
        ManifestError: its state cannot be read.

    Examples:
        >>> store_info("store").generation > 0
        True
    """
    storage = Storage(store_root)
    head = find_head(storage)
    state = load(storage, head, generation)
    committed = _written(storage, *archive_names(state.generation), head.name)
    about = _matrix_info(state) if isinstance(state, MatrixState) else _points_info(storage, state, committed)
    return StoreInfo(
        store=storage.url,
        generation=state.generation,
        committed=committed,
        tags=dict(sorted(load(storage, head).retention.tags.items())),
        **about,
    )


def sample_info(
    store_root: str | os.PathLike[str], sample_id: str, *, generation: int | str | None = None
) -> SampleInfo:
    """Summarize one sample; arguments as for :func:`store_info`.

    Raises:
        UnknownFieldError: the store holds no such sample.
        StoreError: there is no store, no such generation, or the metadata of the sample is damaged.

    Examples:
        >>> sample_info("store", "case_0").fields["surface_pressure"].shape
        (200, 1)
    """
    storage = Storage(store_root)
    head = find_head(storage)
    state = load(storage, head, generation)
    is_matrix = isinstance(state, MatrixState)
    if sample_id not in (state.rows if is_matrix else state.samples):
        refused = None if is_matrix else state.quarantine.get(sample_id)
        held = ", ".join(list(state.rows if is_matrix else state.samples)[:5])
        reason = f"; it was refused: {refused.explanation}" if refused else f"; the first that it holds are {held}"
        if sample_id in (state.retired.samples if is_matrix else state.retired):
            reason = f"; {_retirement(storage, head, state.generation, sample_id)}"
        raise UnknownFieldError(f"{storage.url}, generation {state.generation}, holds no sample {sample_id!r}{reason}")
    about: dict[str, Any]
    if is_matrix:
        name = state.batch_of[sample_id]
        batch = state.batches[name]
        share = sum(batch.bytes.values()) // len(batch.sample_ids)
        about = {"bytes": share, "batch": name, "row": state.rows[sample_id]}
    else:
        entry: SampleEntry = state.samples[sample_id]
        group = SampleGroup(storage, state, sample_id)
        is_excluded = sample_id in state.excluded
        refusal = state.quarantine.get(sample_id)
        about = {
            "bytes": entry.bytes,
            "group": entry.relpath,
            "splits": tuple(split for split, ids in state.splits.items() if sample_id in ids and not is_excluded),
            "excluded": is_excluded,
            "refused": refusal.explanation if refusal else "",
            "fingerprint": entry.fingerprint,
            "settings": entry.settings,
            "fields": group.arrays(),
            "parameters": group.parameters,
            "source": group.source if isinstance(group.source, dict) else {},
        }
    return SampleInfo(storage.url, sample_id, state.generation, **about)


def _retirement(storage: Storage, head: Head[Any], generation: int, sample_id: str) -> str:
    """When a sample was retired, as far as the kept generations tell it."""
    for commit in commits(storage, head):
        for change in commit.changes:
            if commit.generation <= generation and change.what == "retired" and sample_id in change.names:
                if commit.since == commit.generation - 1:
                    return f"it was retired in generation {commit.generation}"
                return f"it was retired after generation {commit.since} and by generation {commit.generation}"
    return "it was retired"


def _points_info(storage: Storage, state: StoreManifest, committed: float | None) -> dict[str, Any]:
    """What the summary of a point store has beside that of every store."""
    entries = list(state.samples.values())
    units: dict[str, str] = {}
    first: dict[str, str] = {}  # arrays of a field are alike: the first sample with it has the units of all
    for sample_id in reversed(list(state.samples)):
        first |= dict.fromkeys(state.fields_of(sample_id), sample_id)
    for sample_id in dict.fromkeys(first.values()):
        try:
            for name, array in SampleGroup(storage, state, sample_id).arrays().items():
                units[name] = units.get(name) or array.units
        except StoreError as error:
            warnings.warn(str(error), stacklevel=3)
    splits = {}
    for split in state.splits:
        listed, present = state.split_ids(split, present_only=False), state.split_ids(split)
        splits[split] = SplitInfo(len(present), len(listed) - len(present))
    counts: dict[str, list[int]] = {}
    largest_chunk = 0
    for entry in entries:
        for domain, grid in entry.domains.items():
            counts.setdefault(domain, []).append(grid.n_points)
            largest_chunk = max(largest_chunk, grid.chunk_points)
    current = current_settings(state)
    stale = [] if current is None else [i for i, entry in state.samples.items() if entry.settings != current.digest]
    # At the end of a migration, samples without a source are left. Looking at each costs a request.
    if len(stale) <= _MOST_LOOKUPS:
        with ThreadPoolExecutor(METADATA_READS) as pool:
            stale = list(compress(stale, pool.map(partial(_has_source, storage, state), stale)))
    former = {state.samples[i].settings for i in stale}
    fields = {name: FieldInfo(column.dtype, column.dim, units.get(name, "")) for name, column in state.fields.items()}
    return {
        "kind": "points",
        "name": state.dataset_name,
        "samples": len(entries),
        "bytes": sum(entry.bytes for entry in entries),
        "fields": fields,
        "settings": {
            "dataset_kind": state.dataset_kind,
            "fingerprints": state.fingerprints,
            "codec": state.compressor,
            "coords_dtype": state.coords_dtype,
            "values_dtype": state.values_dtype,
            "field_dtypes": dict(current.field_dtypes) if current else {},
            "max_errors": dict(current.max_errors) if current else {},
            "shuffle_seed": state.shuffle_seed,
            "chunk_points": current.chunk_points if current else largest_chunk,
            "settings": sorted({entry.settings for entry in entries} - {""}),
            # Samples that were converted with other settings than those of the store, and are still to be converted.
            "to_convert": len(stale),
            "migration": describe_changes(state, former, current) if current and former else "",
        },
        "points": {domain: Range(min(each), max(each), sum(each)) for domain, each in counts.items()},
        "splits": splits,
        "excluded": len(state.excluded),
        "quarantined": {sample_id: refusal.explanation for sample_id, refusal in state.quarantine.items()},
        "layouts": layouts_of(storage, state),
        "origin": as_its_own(state, storage).origin,
        "statistics": _statistics(storage, state, committed),
        "retired": tuple(sorted(state.retired)),
    }


def _has_source(storage: Storage, state: StoreManifest, sample_id: str) -> bool:
    """Whether a sample can be converted again: those of ``write_sample`` record no source."""
    try:
        return bool(SampleGroup(storage, state, sample_id).source != {})
    except StoreError:
        return True


def _matrix_info(state: MatrixState) -> dict[str, Any]:
    """What the summary of a matrix has beside that of every store."""
    stored = sum(sum(batch.bytes.values()) for batch in state.batches.values())
    stored += sum(sum(block.bytes.values()) for block in state.column_blocks)
    return {
        "kind": "matrix",
        "name": "",
        "samples": len(state.rows),
        "bytes": stored,
        "fields": {value: FieldInfo(dtype, 1) for value, dtype in state.values.items()},
        "settings": {
            "codec": state.codec,
            "column_codec": state.column_codec,
            "chunk_features": state.chunk_features,
            "shard_rows": state.shard_rows,
            "column_chunk": state.column_chunk,
            "created_at": state.created_at,
        },
        "features": state.axis.length,
        "batches": {name: len(batch.sample_ids) for name, batch in state.batches.items()},
        "retired": state.retired.samples,
        "retired_batches": {name: len(sample_ids) for name, sample_ids in state.retired.batches.items()},
        "column_major": len(state.column_copy.positions),
        "origin": {} if state.origin is None else asdict(state.origin),
        "batch_sources": {name: batch.source for name, batch in state.batches.items() if batch.source},
        "metadata": {kind: tuple(table.columns) for kind, table in state.metadata.items()},
    }


def _statistics(storage: Storage, state: StoreManifest, committed: float | None) -> StatisticsInfo | None:
    try:
        name = find_statistics(storage, state)
    except ZarrCoreError:
        return None
    written = _written(storage, f"{name}.yaml")
    if written is None:
        return StatisticsInfo(None, None, False)
    age = max(0.0, time.time() - written)  # the clock of the store may be ahead
    return StatisticsInfo(written, age, committed is not None and written < committed)


def _written(storage: Storage, *names: str) -> float | None:
    """Time of the last change of the first of these objects that exists."""
    for name in names:
        found = storage.find(name)
        if found is not None:
            return found.modified or None
    return None
