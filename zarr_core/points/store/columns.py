"""Which converted samples fit the columns of a store: a field has one number of components in all samples.

What is committed wins over what comes. Among the samples of one commit, the number of components that most of them
have wins, and that of the first sample by id if there is a tie.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from zarr_core.errors import StoreError
from zarr_core.points.store.group import entry_of, read_group
from zarr_core.points.store.manifest import ArrayColumn, Quarantine, SampleEntry, StoreManifest, different_fields
from zarr_core.storage import Storage

_Result = TypeVar("_Result")

# Metadata reads in flight.
_READS = 16


def find_misfits(committed: Mapping[str, SampleEntry], written: Mapping[str, SampleEntry]) -> dict[str, Quarantine]:
    """Refusals of the written samples that do not fit the store, by sample id.

    Args:
        committed: samples of the store with their fields. Those in ``written`` are replaced, unless they are refused:
            a refused sample keeps its earlier group.
        written: samples to be committed, with their fields.
    """
    refused: dict[str, Quarantine] = {}
    while True:
        coming = without(written, refused)
        staying = without(committed, coming)
        expected = _most_common(coming) | _most_common(staying)
        known = len(refused)
        for sample_id, entry in sorted(coming.items()):
            refusal = misfit(entry, expected)
            if refusal is not None:
                refused[sample_id] = refusal
        if len(refused) == known:
            return refused


def misfit(entry: SampleEntry, expected: Mapping[str, ArrayColumn]) -> Quarantine | None:
    """The refusal of a sample with another array for a field than expected; None if it fits."""
    for name, column in (entry.fields or {}).items():
        other = expected.get(name, column)
        if (column.dim, column.array_name) == (other.dim, other.array_name):
            continue
        reason = f"has {column.dim} components per point, the store's samples have {other.dim}"
        if column.array_name != other.array_name:
            reason = f"is stored as {column.array_name}, in the store's samples as {other.array_name}"
        way_out = "repair the sample at its source, or repair or remove the others (--retire-vanished)"
        return Quarantine(entry.fingerprint, entry.settings, name, f"{reason}; {way_out}")
    return None


def expected_columns(manifest: StoreManifest | None, others: Collection[str]) -> dict[str, ArrayColumn]:
    """The columns of the samples of a store, those of some samples excepted."""
    if manifest is None:
        return {}
    if manifest.conversion is None:
        return manifest.fields
    return _most_common(without(manifest.samples, others))


def without(results: Mapping[str, _Result], sample_ids: Collection[str]) -> dict[str, _Result]:
    """What is there for all other samples, by sample id."""
    return {sample_id: result for sample_id, result in results.items() if sample_id not in sample_ids}


def with_recorded_fields(storage: Storage, manifest: StoreManifest) -> dict[str, SampleEntry]:
    """The samples of a store with their fields. Published stores do not record them."""
    unknown = [i for i, entry in manifest.samples.items() if entry.fields is None]
    with ThreadPoolExecutor(_READS) as pool:
        read = pool.map(partial(_with_fields, storage, manifest), unknown)
        return {**manifest.samples, **dict(zip(unknown, read, strict=True))}


def _with_fields(storage: Storage, manifest: StoreManifest, sample_id: str) -> SampleEntry:
    """The entry of a sample with the fields that its group has."""
    entry = manifest.samples[sample_id]
    try:
        group = read_group(storage, entry)
        fields = entry_of(entry.relpath, group).fields
    except (OSError, ValueError, StoreError):  # damaged, or another program's: the manifest is all that is known
        fields = manifest.fields_of(sample_id)
    return replace(entry, fields=fields)


def _most_common(samples: Mapping[str, SampleEntry]) -> dict[str, ArrayColumn]:
    """By field, the array that most samples have; the first by id of equally common ones. Dtypes do not matter."""
    found: dict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    for fields, count in different_fields(samples):
        for name, column in fields.items():
            found[name][column.array_name, column.dim] += count
    common = {}
    for name, counts in found.items():
        (array_name, dim), _ = counts.most_common(1)[0]
        common[name] = ArrayColumn(array_name, name, "", dim)
    return common
