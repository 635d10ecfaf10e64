"""What a store holds: ``manifest.json``, its generations, and the one way to change it.

The manifest is small and data only: per sample the grid of its chunks and what it was made from. What is known per
field (moments, byte counts, source files) lies in the sample group's own attributes. The keys of the published format
(version 1) are kept, so that its readers open our stores, and its stores open here.
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zarr_core.encoding import COORDS_DTYPE
from zarr_core.errors import CommitConflict, ManifestError, SourceError, StoreError, UnknownFieldError
from zarr_core.names import check_relative_path, check_sample_id
from zarr_core.storage import Storage

FORMAT_VERSION = 1
MANIFEST = "manifest.json"

_COMMIT_ATTEMPTS = 20

logger = logging.getLogger(__name__)


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
    """One committed state of a store. Never changed: :func:`commit` makes the next one from it.

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
        return (json.dumps(document, separators=(",", ":")) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, where: str = MANIFEST) -> StoreManifest:
        """Read what :meth:`to_json`, or a writer of the published format, wrote.

        Raises:
            ManifestError: it is not readable, of a newer format, or contradicts itself; names the sample.
        """
        try:
            document = json.loads(data)
            version = document["format_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{where} is not a store manifest: {error!r}") from error
        if version != FORMAT_VERSION:
            raise ManifestError(f"{where} has format version {version!r}; this library reads {FORMAT_VERSION}")
        try:
            return cls._from_document(document)
        except ManifestError as error:
            raise ManifestError(f"{where}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ManifestError(f"{where} is damaged: {error!r}") from error

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> StoreManifest:
        domains = {
            name: DomainLayout(
                domain["position"],
                {canonical: _column(canonical, column) for canonical, column in domain["arrays"].items()},
            )
            for name, domain in document["domains"].items()
        }
        return cls(
            dataset_name=document["dataset_name"],
            shuffle_seed=document["shuffle_seed"],
            coords_dtype=document["coords_dtype"],
            values_dtype=document["values_dtype"],
            compressor=str(document["compressor"]),
            domains=domains,
            samples={sample_id: _entry(sample_id, entry) for sample_id, entry in document["samples"].items()},
            generation=document.get("generation", 0),
            dataset_kind=document.get("dataset_kind", ""),
            splits={split: list(ids) for split, ids in document.get("splits", {}).items()},
            excluded=frozenset(document.get("excluded", ())),
            quarantine={i: Quarantine(**entry) for i, entry in document.get("quarantine", {}).items()},
            origin=dict(document.get("origin", {})),
        )


def _plain(entry: DomainGrid | ArrayColumn | Quarantine) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__slots__}


def _column(canonical: str, column: Mapping[str, Any]) -> ArrayColumn:
    array_name = check_relative_path(column["array_name"])
    return ArrayColumn(array_name, column.get("field", canonical), column["dtype"], int(column["dim"]))


def _entry(sample_id: str, entry: Mapping[str, Any]) -> SampleEntry:
    try:
        check_sample_id(sample_id)
        relpath = check_relative_path(entry["relpath"])
    except SourceError as error:
        raise ManifestError(f"sample {sample_id!r}: {error}") from error
    grids = {}
    for domain, grid in entry["domains"].items():
        n_points, chunk_points = grid["n_points"], grid["chunk_points"]
        shard_points, n_chunks = grid["shard_points"], grid["n_chunks"]
        if min(n_points, chunk_points) <= 0 or n_chunks != -(-n_points // chunk_points):
            raise ManifestError(
                f"sample {sample_id!r}, {domain}: {n_chunks} chunks of {chunk_points} points do not make {n_points}"
            )
        grids[domain] = DomainGrid(n_points, chunk_points, shard_points, n_chunks)
    return SampleEntry(relpath, grids, entry.get("fingerprint", ""), entry.get("settings", ""), entry.get("bytes", 0))


def generation_name(generation: int) -> str:
    """Object that keeps a committed manifest for ever."""
    return f"generations/{generation:08d}.json"


def load_manifest(store: Storage | str | os.PathLike[str], generation: int | None = None) -> StoreManifest:
    """The manifest of a store: the current one, or one committed earlier.

    Stores of the published format keep their splits in files beside the manifest; those are read too.

    Raises:
        StoreError: there is no store, or no such generation.
        ManifestError: the manifest cannot be read.
    """
    storage = store if isinstance(store, Storage) else Storage(store)
    try:
        data = storage.read(MANIFEST)
    except FileNotFoundError as error:
        raise StoreError(f"{storage.url} holds no {MANIFEST}; is it the root of a converted store?") from error
    manifest = StoreManifest.from_json(data, f"{storage.url}/{MANIFEST}")
    if generation is not None and manifest.generation != generation:
        name = generation_name(generation)
        try:
            manifest = StoreManifest.from_json(storage.read(name), f"{storage.url}/{name}")
        except FileNotFoundError as error:
            raise StoreError(
                f"{storage.url} has no generation {generation}; the current one is {manifest.generation}"
            ) from error
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


def commit(storage: Storage, change: Callable[[StoreManifest | None], StoreManifest]) -> StoreManifest:
    """Make the next generation of a store, whoever else is committing.

    Args:
        storage: the store.
        change: the next state from the current one (None: there is no store yet). It runs again on the newer state when
            another commit came first, so it must only add what it knows. Returning what it was given commits nothing.

    Returns:
        The manifest as committed, or the current one where nothing changed.

    Raises:
        CommitConflict: others kept committing first.
        StoreError: the location cannot compare and swap.
    """
    for attempt in range(_COMMIT_ATTEMPTS):
        current, data, version = _current(storage)
        changed = change(current)
        if changed is current:
            return changed
        committed = replace(changed, generation=(current.generation if current else 0) + 1)
        # The state about to be replaced is kept first: should its own committer have died before it did so, it is
        # still in manifest.json now and would be lost a moment later.
        if current is not None:
            storage.create(generation_name(current.generation), data)
        storage.sync()
        try:
            storage.replace(MANIFEST, committed.to_json(), version)
        except CommitConflict:
            logger.info("%s: another commit came first, trying again on top of it", storage.url)
            time.sleep(random.uniform(0, 0.05 * 2 ** min(attempt, 6)))
            continue
        storage.create(generation_name(committed.generation), committed.to_json())
        return committed
    raise CommitConflict(f"{storage.url}: {_COMMIT_ATTEMPTS} commits in a row lost the race against other writers")


def _current(storage: Storage) -> tuple[StoreManifest | None, bytes, str | None]:
    try:
        data, version = storage.read_versioned(MANIFEST)
    except FileNotFoundError:
        return None, b"", None
    return StoreManifest.from_json(data, f"{storage.url}/{MANIFEST}"), data, version
