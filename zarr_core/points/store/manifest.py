"""The content of a point store: ``manifest.json``.

The manifest is small. Per sample it holds the chunk grids and the fingerprint of the source files. Records per field
(moments, byte counts, source files) are attributes of the sample's group. The keys of the published format (version 1)
are kept, so its readers can open these stores, and this library can open its stores.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.types import GetPydanticSchema

from zarr_core._util.arguments import check_names
from zarr_core._util.cached import cached_property
from zarr_core._util.documents import DocumentError, checked_by, describe_problems, expect, parse_json
from zarr_core.errors import ManifestError, UnknownFieldError, ZarrCoreError
from zarr_core.format.array_metadata import COORDS_DTYPE, MAX_CHUNKS, MAX_COMPONENTS, MAX_POINTS, VALUES_DTYPE
from zarr_core.format.names import check_relative_path, check_sample_id
from zarr_core.format.object_names import MANIFEST
from zarr_core.format.packed import MAX_HEAD
from zarr_core.storage.archives import is_archive
from zarr_core.versioning.generations import MAX_GENERATION, Retention

FORMAT_VERSION = 1

_MAX_INT = 2**63 - 1


# Types of a document's values; it is parsed into the classes below, and other keys are ignored.
_Count = Annotated[int, Field(strict=True, ge=1, le=_MAX_INT)]
_Components = Annotated[_Count, Field(le=MAX_COMPONENTS)]
_Path = Annotated[str, checked_by(check_relative_path)]
# Dtypes of Zarr arrays that NumPy and torch both support.
_Dtype = Annotated[str, Field(pattern=r"^(float(16|32|64)|u?int(8|16|32|64)|bool)$")]


@dataclass(frozen=True, slots=True)
class DomainGrid:
    """Chunk grid of one domain of one sample. All arrays of the domain share it."""

    n_points: Annotated[_Count, Field(le=MAX_POINTS)]
    chunk_points: _Count
    shard_points: _Count
    n_chunks: Annotated[_Count, Field(le=MAX_CHUNKS)]


@dataclass(frozen=True, slots=True)
class ArrayColumn:
    """The array that stores a field."""

    array_name: _Path
    field: str
    dtype: _Dtype
    dim: _Components


def _check_chunks(grid: DomainGrid) -> DomainGrid:
    if grid.n_chunks != -(-grid.n_points // grid.chunk_points):
        held = f"{grid.n_chunks} chunks of {grid.chunk_points} points"
        raise DocumentError(f"{held} cannot hold {grid.n_points} points")
    return grid


# A document's entry lists its fields as {name: [dtype, components]}; from_json makes columns of them.
_ListedFields = GetPydanticSchema(lambda _, handler: handler(dict[str, tuple[_Dtype, _Components]] | None))


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """The manifest's entry for one sample.

    Attributes:
        relpath: path of its Zarr group below the root: of a folder, or of the object of a packed sample.
        domains: chunk grid by domain.
        fingerprint: digest of the source files' names, sizes and versions; "" in published stores.
        settings: digest of the conversion settings; "" in published stores.
        bytes: stored bytes of its arrays; 0 in published stores.
        fields: its arrays by canonical name; None if the manifest does not record them (published stores).
        content: digest of its content, if the content of its source files was replaced under the same sizes and times;
            else "".
        head: bytes at the beginning of a packed sample that tell where its fields are; 0 for a folder.
        size: bytes of the object of a packed sample; 0 if the manifest does not record them.
    """

    relpath: _Path
    domains: Mapping[str, Annotated[DomainGrid, AfterValidator(_check_chunks)]]
    fingerprint: str = ""
    settings: str = ""
    bytes: Annotated[int, Field(strict=True, ge=0, le=_MAX_INT)] = 0
    fields: Annotated[Mapping[str, ArrayColumn] | None, _ListedFields] = None
    content: str = ""
    head: Annotated[int, Field(strict=True, ge=0, le=MAX_HEAD)] = 0
    size: Annotated[int, Field(strict=True, ge=0, le=_MAX_INT)] = 0

    @property
    def is_ours(self) -> bool:
        """Whether this library wrote the sample. Other programs record no fingerprint."""
        return bool(self.fingerprint)

    @property
    def layout(self) -> str:
        """How the sample is stored: "directory" or "packed"."""
        return "packed" if self.head else "directory"

    def differs(self, other: SampleEntry) -> bool:
        """Whether two entries are of different groups. A commit may add the records of fields and size to an entry."""
        return self != other and replace(self, fields=None, size=0) != replace(other, fields=None, size=0)

    @property
    def version(self) -> tuple[str, str, str]:
        """Digests of what the sample is made of. Samples of other programs have none: they are empty."""
        return self.fingerprint, self.settings, self.content


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A refused sample and the reason. It is converted again when its source or the settings change, or on request."""

    fingerprint: str
    settings: str
    field: str
    reason: str

    @property
    def explanation(self) -> str:
        """The reason, after the field, where it is of one."""
        return f"{self.field}: {self.reason}" if self.field else self.reason


def _with_names(arrays: Any) -> Any:
    """Columns of a document with their names, which the document may leave out."""
    columns = expect(dict, arrays, "arrays")
    return {name: {"field": name} | expect(dict, column, f"field {name!r}") for name, column in columns.items()}


@dataclass(frozen=True, slots=True)
class DomainLayout:
    """The fields of a domain. ``position`` is the canonical name of the field that holds the coordinates."""

    position: str
    arrays: Annotated[Mapping[str, ArrayColumn], BeforeValidator(_with_names)]


def _check_columns(domains: Mapping[str, DomainLayout]) -> Mapping[str, DomainLayout]:
    for domain, layout in domains.items():
        for canonical, column in layout.arrays.items():
            name = column.array_name.removeprefix(f"{domain}/")
            if (canonical, column.field) != (f"{domain}_{name}", canonical) or "/" in name:
                where = f"field {canonical!r} of domain {domain!r}"
                raise DocumentError(f"{where} cannot be stored as {column.array_name!r}")
    return domains


@dataclass(frozen=True)
class Conversion:
    """The settings that a store's samples were and will be converted with.

    Attributes:
        current: digest of the settings of the store. Samples with other settings are still to be converted.
        settings: JSON documents of settings by digest, of the current ones and of all that samples name.
    """

    current: str
    settings: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class StoreManifest:
    """One committed state of a store. Immutable; ``versioning.generations.commit`` derives the next one.

    Attributes:
        dataset_name: name of the dataset.
        shuffle_seed, coords_dtype, values_dtype, compressor: settings of the last conversion.
        domains: columns by domain: the fields of the samples. Where samples differ, the dtype and the number of
            components that most samples have.
        samples: entries by sample id.
        generation: number of the commit, 1 for a store's first; 0 for published stores.
        dataset_kind: kind of the source's description, "" if unknown.
        splits: sample ids by split as the source lists them, including ids that the store does not hold.
        excluded: ids that the source's blacklists exclude from every split.
        quarantine: refused samples by id.
        retired: ids of samples that a commit removed because they vanished from the source.
        conversion: settings of the conversions; None if they are not recorded (published stores).
        fingerprints: "version" if samples are identified by the names, sizes and versions (etag or modification time)
            of their source files, "content" if by the SHA-256 of each file.
        origin: for a staged copy, the ``store`` and ``generation`` it was copied from; else empty.
        retention: tags and pending deletions; part of the current state only.

    Examples:
        >>> list(load_manifest("store").samples)
        ['case_0', 'case_1', 'case_2', 'case_3']
    """

    dataset_name: str
    shuffle_seed: Annotated[int, Field(strict=True, ge=-_MAX_INT, le=_MAX_INT)] = 0
    coords_dtype: str = COORDS_DTYPE
    values_dtype: str = VALUES_DTYPE
    compressor: Annotated[str, BeforeValidator(str)] = ""
    domains: Annotated[Mapping[str, DomainLayout], AfterValidator(_check_columns)] = field(default_factory=dict)
    samples: Mapping[Annotated[str, checked_by(check_sample_id)], SampleEntry] = field(default_factory=dict)
    generation: Annotated[int, Field(strict=True, ge=0, le=MAX_GENERATION)] = 0
    dataset_kind: str = ""
    splits: Mapping[str, list[str]] = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()
    quarantine: Mapping[str, Quarantine] = field(default_factory=dict)
    retired: frozenset[str] = frozenset()
    conversion: Conversion | None = None
    fingerprints: str = "version"
    origin: Mapping[str, Any] = field(default_factory=dict)
    retention: Retention = field(default_factory=Retention)

    def with_samples(self, sample_ids: Collection[str]) -> StoreManifest:
        """The manifest of these samples alone, with the same columns."""
        kept = set(sample_ids)
        return replace(
            self,
            samples={i: entry for i, entry in self.samples.items() if i in kept},
            splits={name: [i for i in ids if i in kept] for name, ids in self.splits.items()},
            excluded=self.excluded & kept,
            quarantine={},
            retired=frozenset(),
        )

    @property
    def fields(self) -> dict[str, ArrayColumn]:
        """Every column by canonical field name."""
        return dict(self._usual[tuple(self.domains)])

    def entry(self, sample_id: str, where: str) -> SampleEntry:
        """The entry of a stored sample. ``where`` is the store, for messages.

        Raises:
            UnknownFieldError: the store does not hold it.
            ZarrCoreError: the id is not a string.
        """
        if not isinstance(sample_id, str):
            raise ZarrCoreError(f"sample_id must be a string, not {reprlib.repr(sample_id)}")
        entry = self.samples.get(sample_id)
        if entry is not None:
            return entry
        refused = self.quarantine.get(sample_id)
        if refused:
            reason = f"it was refused at conversion ({refused.explanation})"
        else:
            first = ", ".join(list(self.samples)[:5])
            reason = f"it holds {len(self.samples):,}; the first that it holds are {first}"
        raise UnknownFieldError(f"{where} holds no sample {sample_id!r}; {reason}")

    def fields_of(self, sample_id: str) -> Mapping[str, ArrayColumn]:
        """Fields of a stored sample by canonical name; those of all samples in its domains if they are not recorded."""
        entry = self.samples[sample_id]
        return self._usual[tuple(entry.domains)] if entry.fields is None else entry.fields

    @cached_property
    def _usual(self) -> _UsualFields:
        return _UsualFields(self.domains)

    def split_ids(self, split: str, *, present_only: bool = True) -> list[str]:
        """Sample ids of a split in the order of its list, without excluded ids.

        Args:
            split: name of the split.
            present_only: leave out ids that the store does not hold.

        Raises:
            UnknownFieldError: the store has no such split.
        """
        if not isinstance(split, str):
            raise ZarrCoreError(f"split must be the name of one split, not {reprlib.repr(split)}")
        if split not in self.splits:
            known = ", ".join(self.splits) or "none"
            raise UnknownFieldError(f"store {self.dataset_name!r} has no split {split!r}; it has: {known}")
        listed = [sample_id for sample_id in self.splits[split] if sample_id not in self.excluded]
        return [sample_id for sample_id in listed if sample_id in self.samples] if present_only else listed

    def select(self, split: str | None = None, sample_ids: Collection[str] | None = None) -> list[str]:
        """Ids of the stored samples of a split, or among the given ids, in the manifest's order; all by default.

        Raises:
            UnknownFieldError: the store has no such split or sample.
        """
        check_names("sample_ids", sample_ids)
        for unknown in sorted(set(sample_ids or ()) - set(self.samples)):
            self.entry(unknown, f"store {self.dataset_name!r}")  # raises
        chosen = set(self.samples)
        if split is not None:
            chosen.intersection_update(self.split_ids(split))
        if sample_ids is not None:
            chosen.intersection_update(sample_ids)
        return [sample_id for sample_id in self.samples if sample_id in chosen]

    def to_json(self) -> bytes:
        """The content of ``manifest.json``. Equal states give equal bytes."""
        samples, quarantine = dict(sorted(self.samples.items())), dict(sorted(self.quarantine.items()))
        ordered = replace(self, samples=samples, quarantine=quarantine)
        first = {"dataset_name": self.dataset_name, "format_version": FORMAT_VERSION}
        first |= {"generation": self.generation, "dataset_kind": self.dataset_kind}
        document = first | _PARSER.dump_python(ordered, exclude=_NOT_DUMPED)
        for sample_id, listed in document["samples"].items():
            entry = samples[sample_id]
            optional = {key: listed.pop(key) for key in ("content", "head", "size")}
            if entry.fields is not None and entry.fields != self._usual[tuple(entry.domains)]:
                listed["fields"] = {name: [c.dtype, c.dim] for name, c in entry.fields.items()}
            listed |= {key: value for key, value in optional.items() if value}
        document |= {"excluded": sorted(self.excluded), "retired": sorted(self.retired)}
        for name, default in _OMITTED.items():
            if document[name] == default:
                del document[name]
        if retention := self.retention.to_document():
            document["retention"] = retention
        return (json.dumps(document, separators=(",", ":")) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, where: str = MANIFEST) -> StoreManifest:
        """Parse a manifest that :meth:`to_json` or a writer of the published format wrote.

        The document is untrusted: every type is checked and every count is bounded, because readers allocate memory by
        these counts.

        Raises:
            ManifestError: the manifest is unreadable, of a newer format, or inconsistent; names the sample.
        """
        try:
            document = expect(dict, parse_json(data), "the document")
            version = expect(int, document.get("format_version"), "format_version")
        except ValueError as error:
            raise ManifestError(f"{where} is not a store manifest: {error}") from error
        if version != FORMAT_VERSION:
            raise ManifestError(f"{where} has format version {version}; this library reads {FORMAT_VERSION}")
        try:
            for key in ("shuffle_seed", "coords_dtype", "values_dtype", "domains", "samples"):
                if key not in document:
                    raise DocumentError(f"{key} is missing")
            manifest = _PARSER.validate_python(document)
            usual = _UsualFields(manifest.domains)
            samples = dict(manifest.samples)
            for sample_id, entry in samples.items():
                if bool(entry.head) != is_archive(entry.relpath):
                    raise DocumentError(f"{sample_id}: head is {entry.head}; only archives have one: {entry.relpath}")
                if entry.size and not 0 < entry.head < entry.size:
                    raise DocumentError(f"{sample_id}: size is {entry.size}, which no archive has: {entry.relpath}")
                # Without recorded settings, the fields of the samples are not recorded either.
                fields = None if manifest.conversion is None else _listed_fields(entry, usual[tuple(entry.domains)])
                if fields is not entry.fields:
                    found = entry.relpath, entry.domains, entry.fingerprint, entry.settings, entry.bytes
                    samples[sample_id] = SampleEntry(
                        *found, fields, entry.content, entry.head, entry.size
                    )  # three times as fast as replace()
            return replace(manifest, samples=samples)
        except ValidationError as error:
            raise ManifestError(f"{where}: {describe_problems(error)}") from error
        except DocumentError as error:
            raise ManifestError(f"{where}: {error}") from error


_PARSER = TypeAdapter(StoreManifest)
# What to_json omits where it has these values, and what it writes in another way.
_OMITTED: dict[str, Any] = {"retired": [], "conversion": None, "fingerprints": "version", "origin": {}}
_NOT_DUMPED: dict[str, Any] = {"retention": True, "samples": {"__all__": {"fields"}}}


class _UsualFields(dict[tuple[str, ...], Mapping[str, ArrayColumn]]):
    """By domains: their columns, which entries of samples that have all of them need not list; made when asked for."""

    def __init__(self, layouts: Mapping[str, DomainLayout]) -> None:
        self._layouts = layouts

    def __missing__(self, domains: tuple[str, ...]) -> Mapping[str, ArrayColumn]:
        columns: dict[str, ArrayColumn] = {}
        for domain in domains:
            if domain in self._layouts:
                columns |= self._layouts[domain].arrays
        self[domains] = columns
        return columns


def _listed_fields(entry: SampleEntry, usual: Mapping[str, ArrayColumn]) -> Mapping[str, ArrayColumn]:
    """The columns that an entry of a document lists as (dtype, components); raises DocumentError."""
    listed: Any = entry.fields
    if listed is None:
        return usual
    for name in listed.keys() - usual.keys():
        raise DocumentError(f"{entry.relpath}: field {name!r} is not a column of the store")
    return {name: replace(usual[name], dtype=dtype, dim=dim) for name, (dtype, dim) in listed.items()}
