"""The columns of a store, and which converted samples fit them: a field has one number of components in all samples.

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
from zarr_core.format.names import POSITION
from zarr_core.points.store.group import METADATA_READS, entry_of, read_group
from zarr_core.points.store.manifest import ArrayColumn, DomainLayout, Quarantine, SampleEntry, StoreManifest
from zarr_core.storage import Storage

_Result = TypeVar("_Result")


def find_misfits(committed: Mapping[str, SampleEntry], written: Mapping[str, SampleEntry]) -> dict[str, Quarantine]:
    """Refusals of the samples to be committed that do not fit the store, by sample id. All have their fields.

    Samples in ``written`` replace those in ``committed``, except refused ones, which keep their earlier group.
    """
    refused: dict[str, Quarantine] = {}
    while True:
        coming = without(written, refused)
        staying = without(committed, coming)
        expected = _expected(coming) | _expected(staying)
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


def expected_columns(manifest: StoreManifest, others: Collection[str]) -> dict[str, ArrayColumn]:
    """The columns of the samples of a store, those of some samples excepted."""
    if manifest.conversion is None:
        return manifest.fields
    return _expected(without(manifest.samples, others))


def without(results: Mapping[str, _Result], sample_ids: Collection[str]) -> dict[str, _Result]:
    """What is there for all other samples, by sample id."""
    return {sample_id: result for sample_id, result in results.items() if sample_id not in sample_ids}


def with_recorded_fields(storage: Storage, manifest: StoreManifest) -> dict[str, SampleEntry]:
    """The samples of a store with their fields. Published stores do not record them."""
    unknown = [i for i, entry in manifest.samples.items() if entry.fields is None]
    with ThreadPoolExecutor(METADATA_READS) as pool:
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


def columns_of(samples: Mapping[str, SampleEntry]) -> dict[str, DomainLayout]:
    """The columns of a store: all fields of its samples, in alphabetical order of their arrays.

    Where samples differ, the dtype and the number of components that most samples have, or the first by id of these.
    Every sample must have its ``fields``.
    """
    found: dict[str, ArrayColumn] = {}
    for column in _most_common_first(samples):
        found.setdefault(column.array_name, column)
    domains: dict[str, dict[str, ArrayColumn]] = defaultdict(dict)
    for array_name, column in sorted(found.items()):
        domains[array_name.partition("/")[0]][column.field] = column
    return {domain: DomainLayout(f"{domain}_{POSITION}", arrays) for domain, arrays in domains.items()}


def _expected(samples: Mapping[str, SampleEntry]) -> dict[str, ArrayColumn]:
    """By field, the array that most samples have. Dtypes do not matter."""
    found: dict[str, ArrayColumn] = {}
    for column in _most_common_first(samples, dtypes=False):
        found.setdefault(column.field, column)
    return found


def _most_common_first(samples: Mapping[str, SampleEntry], *, dtypes: bool = True) -> list[ArrayColumn]:
    """The arrays of samples, with or without their dtypes; of equally common ones, the first by id."""
    fields: dict[int, Mapping[str, ArrayColumn]] = {}
    shared: Counter[int] = Counter()  # most samples share one object
    for sample_id in sorted(samples):
        own = samples[sample_id].fields or {}
        fields.setdefault(id(own), own)
        shared[id(own)] += 1
    counts: Counter[ArrayColumn] = Counter()
    for number, count in shared.items():
        for column in fields[number].values():
            counts[column if dtypes else replace(column, dtype="")] += count
    return [column for column, _ in counts.most_common()]
