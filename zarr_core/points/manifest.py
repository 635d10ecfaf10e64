"""What a store of points holds: ``manifest.json``.

The manifest is small and data only: per sample the grid of its chunks and what it was made from. What is known per
field (moments, byte counts, source files) lies in the sample group's own attributes. The keys of the published format
(version 1) are kept, so that its readers open our stores, and its stores open here.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from zarr_core._util.documents import parse_json
from zarr_core.errors import ManifestError, SourceError, UnknownFieldError
from zarr_core.format.array_metadata import COORDS_DTYPE, MAX_CHUNKS, MAX_POINTS
from zarr_core.format.names import check_relative_path, check_sample_id
from zarr_core.points.group import SAMPLES, group_of, is_whole
from zarr_core.storage import Storage
from zarr_core.versioning.generations import MAX_GENERATION, Change, Head, Retention, load

FORMAT_VERSION = 1
MANIFEST = "manifest.json"

# Of the number formats that arrays of any writer hold, those that NumPy and torch both know.
_DTYPE = re.compile(r"float(16|32|64)|u?int(8|16|32|64)|bool")
_MAX_DIM = 10_000
_MAX_INT = 2**63 - 1

_Plain = TypeVar("_Plain", int, str, list[Any], dict[str, Any])


@dataclass(frozen=True, slots=True)
class DomainGrid:
    """How the points of one domain of one sample are cut: the same for every array of the domain."""

    n_points: int
    chunk_points: int
    shard_points: int
    n_chunks: int


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """A sample as the manifest knows it.

    Attributes:
        relpath: its Zarr group below the root.
        domains: chunk grid by domain.
        fingerprint: of the source files that it was made from ("" in published stores, as the two below).
        settings: digest of the conversion settings.
        bytes: stored bytes of its arrays.
    """

    relpath: str
    domains: Mapping[str, DomainGrid]
    fingerprint: str = ""
    settings: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A sample that was refused, and why. It is tried again when its source or the settings change, or on request."""

    fingerprint: str
    settings: str
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class ArrayColumn:
    """A field as every sample stores it."""

    array_name: str
    field: str
    dtype: str
    dim: int


@dataclass(frozen=True, slots=True)
class DomainLayout:
    """The fields of a domain, and which of them holds the coordinates."""

    position: str
    arrays: Mapping[str, ArrayColumn]


@dataclass(frozen=True)
class StoreManifest:
    """One committed state of a store. Immutable; ``versioning.generations.commit`` derives the next one.

    Attributes:
        dataset_name, shuffle_seed, coords_dtype, values_dtype, compressor: how the samples were written.
        domains: columns by domain.
        samples: entries by sample id.
        generation: 1 for a store's first commit, one more with each; 0 for published stores.
        dataset_kind: kind that the source was described by, "" where unknown.
        splits: sample ids by split as the source lists them, those that are not in the store included.
        excluded: ids that the source's blacklists take out of every split.
        quarantine: refused samples.
        origin: of a staged copy, ``store`` and ``generation`` that it was copied from; else empty.
        retention: tags, and what is being removed; of the current state only.
    """

    dataset_name: str
    shuffle_seed: int = 0
    coords_dtype: str = COORDS_DTYPE
    values_dtype: str = "float16"
    compressor: str = ""
    domains: Mapping[str, DomainLayout] = field(default_factory=dict)
    samples: Mapping[str, SampleEntry] = field(default_factory=dict)
    generation: int = 0
    dataset_kind: str = ""
    splits: Mapping[str, list[str]] = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()
    quarantine: Mapping[str, Quarantine] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    retention: Retention = field(default_factory=Retention)

    @property
    def fields(self) -> dict[str, ArrayColumn]:
        """Every column by canonical field name."""
        return {name: column for domain in self.domains.values() for name, column in domain.arrays.items()}

    def split_ids(self, split: str, *, present_only: bool = True) -> list[str]:
        """Sample ids of a split in the order of its list, blacklisted ones left out.

        Args:
            split: its name.
            present_only: leave out those that the store does not hold.

        Raises:
            UnknownFieldError: the store has no such split.
        """
        if split not in self.splits:
            known = ", ".join(self.splits) or "none"
            raise UnknownFieldError(f"store {self.dataset_name!r} has no split {split!r}; it has: {known}")
        return [
            sample_id
            for sample_id in self.splits[split]
            if sample_id not in self.excluded and (not present_only or sample_id in self.samples)
        ]

    def to_json(self) -> bytes:
        """The content of ``manifest.json``: the same state gives the same bytes."""
        domains = {
            name: {
                "position": domain.position,
                "arrays": {canonical: _plain(column) for canonical, column in domain.arrays.items()},
            }
            for name, domain in self.domains.items()
        }
        samples = {
            sample_id: {
                "relpath": entry.relpath,
                "domains": {name: _plain(grid) for name, grid in entry.domains.items()},
                "fingerprint": entry.fingerprint,
                "settings": entry.settings,
                "bytes": entry.bytes,
            }
            for sample_id, entry in sorted(self.samples.items())
        }
        document = {
            "dataset_name": self.dataset_name,
            "format_version": FORMAT_VERSION,
            "generation": self.generation,
            "dataset_kind": self.dataset_kind,
            "shuffle_seed": self.shuffle_seed,
            "coords_dtype": self.coords_dtype,
            "values_dtype": self.values_dtype,
            "compressor": self.compressor,
            "domains": domains,
            "samples": samples,
            "splits": dict(self.splits),
            "excluded": sorted(self.excluded),
            "quarantine": {sample_id: _plain(entry) for sample_id, entry in sorted(self.quarantine.items())},
        }
        if self.origin:
            document["origin"] = dict(self.origin)
        if retention := self.retention.to_document():
            document["retention"] = retention
        return (json.dumps(document, separators=(",", ":")) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, where: str = MANIFEST) -> StoreManifest:
        """Read what :meth:`to_json`, or a writer of the published format, wrote.

        A manifest is data that somebody else may have written: every type is checked, and every count is bounded, for
        readers allocate by them.

        Raises:
            ManifestError: it is not readable, of a newer format, or contradicts itself; names the sample.
        """
        try:
            document = parse_json(data)
            version = document["format_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{where} is not a store manifest: {error!r}") from error
        if type(version) is not int or version != FORMAT_VERSION:
            raise ManifestError(f"{where} has format version {version!r}; this library reads {FORMAT_VERSION}")
        try:
            return cls._from_document(document)
        except ManifestError as error:
            raise ManifestError(f"{where}: {error}") from error
        except SourceError as error:
            raise ManifestError(f"{where}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ManifestError(f"{where} is damaged: {error!r}") from error

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> StoreManifest:
        domains = {
            name: DomainLayout(
                _typed(str, domain["position"], f"{name}, position"),
                {canonical: _column(name, canonical, column) for canonical, column in domain["arrays"].items()},
            )
            for name, domain in _typed(dict, document["domains"], "domains").items()
        }
        splits = _typed(dict, document.get("splits", {}), "splits")
        quarantine = _typed(dict, document.get("quarantine", {}), "quarantine")
        return cls(
            dataset_name=_typed(str, document["dataset_name"], "dataset_name"),
            shuffle_seed=_count(document["shuffle_seed"], "shuffle_seed", -_MAX_INT),
            coords_dtype=_typed(str, document["coords_dtype"], "coords_dtype"),
            values_dtype=_typed(str, document["values_dtype"], "values_dtype"),
            compressor=str(document["compressor"]),
            domains=domains,
            samples={
                sample_id: _entry(sample_id, entry)
                for sample_id, entry in _typed(dict, document["samples"], "samples").items()
            },
            generation=_count(document.get("generation", 0), "generation", most=MAX_GENERATION),
            dataset_kind=_typed(str, document.get("dataset_kind", ""), "dataset_kind"),
            splits={split: _texts(ids, f"split {split!r}") for split, ids in splits.items()},
            excluded=frozenset(_texts(document.get("excluded", []), "excluded")),
            quarantine={sample_id: _quarantine(sample_id, entry) for sample_id, entry in quarantine.items()},
            origin=_typed(dict, document.get("origin", {}), "origin"),
            retention=Retention.from_document(_typed(dict, document.get("retention", {}), "retention")),
        )


def _plain(entry: DomainGrid | ArrayColumn | Quarantine) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__slots__}


def _typed(kind: type[_Plain], value: Any, what: str) -> _Plain:
    """The value, if it is exactly of that type: JSON's ``true`` is no number."""
    if type(value) is not kind:
        raise ManifestError(f"{what} is {reprlib.repr(value)} where {kind.__name__} belongs")
    return value


def _count(value: Any, what: str, least: int = 0, most: int = _MAX_INT) -> int:
    if not least <= _typed(int, value, what) <= most:
        raise ManifestError(f"{what} is {reprlib.repr(value)}, which is not between {least} and {most}")
    return int(value)


def _texts(value: Any, what: str) -> list[str]:
    return [_typed(str, text, what) for text in _typed(list, value, what)]


def _quarantine(sample_id: str, entry: Any) -> Quarantine:
    what = f"quarantine of {sample_id!r}"
    return Quarantine(**{name: _typed(str, text, what) for name, text in _typed(dict, entry, what).items()})


def _column(domain: str, canonical: str, column: Mapping[str, Any]) -> ArrayColumn:
    what = f"field {canonical!r} of domain {domain!r}"
    array_name = check_relative_path(_typed(str, column["array_name"], what))
    name = array_name.removeprefix(f"{domain}/")
    if (canonical, column.get("field", canonical)) != (f"{domain}_{name}", canonical) or "/" in name:
        raise ManifestError(f"{what} cannot lie in {array_name!r}")
    dtype = _typed(str, column["dtype"], what)
    if not _DTYPE.fullmatch(dtype):
        raise ManifestError(f"{what} has dtype {dtype!r}")
    return ArrayColumn(array_name, canonical, dtype, _count(column["dim"], what, 1, _MAX_DIM))


def _entry(sample_id: str, entry: Mapping[str, Any]) -> SampleEntry:
    try:
        check_sample_id(sample_id)
        relpath = check_relative_path(_typed(str, entry["relpath"], f"sample {sample_id!r}"))
    except SourceError as error:
        raise ManifestError(f"sample {sample_id!r}: {error}") from error
    grids = {}
    for domain, grid in entry["domains"].items():
        what = f"sample {sample_id!r}, {domain}"
        n_points = _count(grid["n_points"], what, 1, MAX_POINTS)
        chunk_points = _count(grid["chunk_points"], what, 1)
        shard_points = _count(grid["shard_points"], what, 1)
        n_chunks = _count(grid["n_chunks"], what, 1, MAX_CHUNKS)
        if n_chunks != -(-n_points // chunk_points):
            raise ManifestError(f"{what}: {n_chunks} chunks of {chunk_points} points do not make {n_points}")
        grids[domain] = DomainGrid(n_points, chunk_points, shard_points, n_chunks)
    what = f"sample {sample_id!r}"
    fingerprint, settings = (_typed(str, entry.get(key, ""), what) for key in ("fingerprint", "settings"))
    return SampleEntry(relpath, grids, fingerprint, settings, _count(entry.get("bytes", 0), what))


def changes(before: StoreManifest | None, after: StoreManifest) -> list[Change]:
    """What a commit did: to which samples, and by which settings."""
    then = before or StoreManifest(after.dataset_name)
    replaced = [i for i, entry in after.samples.items() if i in then.samples and then.samples[i] != entry]
    done = {
        "added": [i for i in after.samples if i not in then.samples],
        "replaced": replaced,
        "retired": [i for i in then.samples if i not in after.samples],
        "quarantined": [i for i, entry in after.quarantine.items() if then.quarantine.get(i) != entry],
        "released": [i for i in then.quarantine if i not in after.quarantine],
    }
    found = []
    for what, ids in done.items():
        settings = sorted({after.samples[i].settings for i in ids if i in after.samples} - {""})
        note = f"settings {', '.join(settings)}" if settings and what in ("added", "replaced") else ""
        found += [Change(what, tuple(sorted(ids)), note)] if ids else []
    if before is None:
        return found
    values: dict[str, Callable[[StoreManifest], Any]] = {
        "dataset name": lambda state: state.dataset_name,
        "kind": lambda state: state.dataset_kind,
        "shuffle seed": lambda state: state.shuffle_seed,
        "values dtype": lambda state: state.values_dtype,
        "codec": lambda state: state.compressor,
        "points a chunk": lambda state: _grids(state, replaced, "chunk_points"),
        "points a shard": lambda state: _grids(state, replaced, "shard_points"),
        "fields": lambda state: ", ".join(f"{name} {column.dtype}" for name, column in state.fields.items()),
        "splits": lambda state: ", ".join(f"{name} {len(ids)}" for name, ids in state.splits.items()),
        "excluded": lambda state: len(state.excluded),
    }
    pairs = {what: (value(before), value(after)) for what, value in values.items()}
    return found + [Change(what, note=f"{old} -> {new}") for what, (old, new) in pairs.items() if old != new]


def _grids(manifest: StoreManifest, sample_ids: Iterable[str], attribute: str) -> str:
    grids = (grid for i in sample_ids for grid in manifest.samples[i].domains.values())
    values = sorted({getattr(grid, attribute) for grid in grids})
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}" if values else ""


def _relpaths(manifest: StoreManifest) -> Iterable[str]:
    return (entry.relpath for entry in manifest.samples.values())


def _roots(_: StoreManifest) -> Iterable[str]:
    return (SAMPLES,)


#: Where a store of points keeps its state, and what it says.
HEAD = Head(MANIFEST, StoreManifest.from_json, _roots, _relpaths, group_of, is_whole, changes)


def load_manifest(store: Storage | str | os.PathLike[str], generation: int | str | None = None) -> StoreManifest:
    """The manifest of a store: the current one, one committed earlier, or the one that a tag names.

    Stores of the published format keep their splits in files beside the manifest; those are read too.

    Raises:
        StoreError: there is no store, or no such generation or tag.
        ManifestError: the manifest cannot be read.
    """
    storage = store if isinstance(store, Storage) else Storage(store)
    manifest = load(storage, HEAD, generation)
    return manifest if manifest.generation else _with_split_files(manifest, storage)


def _with_split_files(manifest: StoreManifest, storage: Storage) -> StoreManifest:
    def lines(name: str) -> list[str] | None:
        try:
            text = storage.read(name).decode()
        except FileNotFoundError:
            return None
        return [line.strip() for line in text.splitlines() if line.strip()]

    splits = {split: lines(f"{split}_design_ids.txt") for split in ("train", "val", "test")}
    blacklisted = [line for name in ("blacklist.txt", "blacklist2.txt") for line in lines(name) or ()]
    return replace(
        manifest,
        splits=dict(manifest.splits) | {split: ids for split, ids in splits.items() if ids is not None},
        excluded=manifest.excluded | {line.rsplit("/", 1)[-1].removesuffix(".vtk") for line in blacklisted},
    )
