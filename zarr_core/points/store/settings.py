"""Settings of conversions, the digests that name groups, and the settings that a manifest records.

All samples of a store are converted with the same settings. A conversion takes from the store what its caller does not
give, and refuses what contradicts the store, unless the caller requests that everything is converted again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from zarr_core._util.arguments import check_mapping, whole_number
from zarr_core._util.cached import cached_property
from zarr_core.errors import ManifestError, SourceError, StoreError
from zarr_core.format.array_metadata import (
    BOUNDED_DTYPE,
    COORDS_DTYPE,
    MAX_POINTS,
    VALUE_DTYPES,
    VALUES_DTYPE,
    ArrayLayout,
)
from zarr_core.format.bounds import ErrorBound
from zarr_core.format.codecs import BOUNDED_CODEC, DEFAULT_CODEC, Codec
from zarr_core.format.names import FieldName
from zarr_core.format.object_names import sample_folder
from zarr_core.format.packed import SUFFIX
from zarr_core.points.store.group import GROUP_FORMAT
from zarr_core.points.store.manifest import Conversion, StoreManifest
from zarr_core.storage import Storage

#: As the dtype of a field in ``field_dtypes``: the field has no dtype of its own (any more).
NO_OWN_DTYPE = "default"
#: As the bound of a field in ``max_errors``: the field has no bound (any more).
NO_BOUND = "none"

#: How a sample is stored: a folder with an object per field, or one object (:mod:`zarr_core.format.packed`).
Layout = Literal["directory", "packed"]

#: Possible names of a group. Those after the first replace names that are tombstoned, or hold something else.
GROUP_NAMES = 4

# Seeds that a manifest can hold.
_SEEDS = (-(2**63) + 1, 2**63 - 1)


@dataclass(frozen=True)
class ConversionSettings:
    """How samples are written. Equal settings and equal source files give equal bytes.

    Attributes:
        chunk_points: points per chunk; choose a value close to the number of points that a training step draws, or
            twice that number for samples that have fewer than 50 chunks.
        shard_points: maximum points per shard, rounded to whole chunks, at least one. By default one shard per array.
        values_dtype: stored dtype of all fields except positions, which are float32 unless one is given for them alone:
            float16, float32 or float64.
        field_dtypes: stored dtype of individual fields, by canonical name. "default" is the same as no entry; given to
            a conversion, it removes the entry of the store.
        max_errors: largest error of individual fields, by canonical name: a number in the units of the field, or a
            multiple of its standard deviation in the sample, as "1e-3std". Such a field is float32 of fewer digits, and
            compressed, by pcodec unless another codec is chosen. "none" is the same as no entry; given to a conversion,
            it removes the entry of the store.
        codec: compressor of the chunks, NAME or NAME:LEVEL, as zstd:3; or none. Names are blosc-lz4, blosc-zstd, zstd,
            bitshuffle-lz4, bitshuffle-zstd and pcodec.
        shuffle_seed: seed of the order of points.
        layout: "directory", a folder per sample with an object per field, or "packed", one object per sample, which has
            no shards.

    Raises:
        SourceError: a value is invalid.

    Examples:
        >>> ConversionSettings(chunk_points=4096, codec="zstd:3").values_dtype
        'float16'
    """

    chunk_points: int = 16_384
    shard_points: int | None = None
    values_dtype: str = VALUES_DTYPE
    field_dtypes: Mapping[str, str] = field(default_factory=dict)
    codec: str = DEFAULT_CODEC
    shuffle_seed: int = 0
    layout: Layout = "directory"
    max_errors: Mapping[str, str | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits = (("chunk_points", 1, MAX_POINTS), ("shard_points", 1, MAX_POINTS), ("shuffle_seed", *_SEEDS))
        for name, least, most in limits:
            value = getattr(self, name)
            if value is not None or name != "shard_points":
                object.__setattr__(self, name, whole_number(name, value, least, most, error=SourceError))
        check_mapping("field_dtypes", self.field_dtypes, "{'surface_pressure': 'float32'}")
        check_mapping("max_errors", self.max_errors, "{'volume_velocity': '1e-3std'}")
        if not isinstance(self.codec, str):
            raise SourceError(f"codec must be a name such as 'zstd:3', not {self.codec!r}")
        if self.layout not in get_args(Layout):
            raise SourceError(f"layout {self.layout!r} is not one of {', '.join(get_args(Layout))}")
        if self.is_packed:
            object.__setattr__(self, "shard_points", None)
        if self.shard_points is not None and self.shard_points < self.chunk_points:
            object.__setattr__(self, "shard_points", self.chunk_points)
        own: dict[str, str] = {}
        _check_dtype("values_dtype", self.values_dtype)
        for name, dtype in sorted(self.field_dtypes.items()):
            if dtype != NO_OWN_DTYPE:
                _check_dtype(f"field_dtypes, {name}", dtype)
                own[name] = dtype
        bounds: dict[str, str] = {}
        for name, bound in sorted(self.max_errors.items()):
            if bound == NO_BOUND:
                continue
            if name in own:
                raise SourceError(
                    f"{name} has an error bound, max_errors, and a dtype of its own, field_dtypes: drop one"
                )
            try:
                bounds[name] = str(ErrorBound.parse(bound))
            except SourceError as error:
                raise SourceError(f"max_errors, {name}: {error}") from error
        object.__setattr__(self, "max_errors", bounds)
        # Normalise, so that equal settings such as "zstd" and "zstd:3" have equal digests.
        object.__setattr__(self, "codec", str(Codec.parse(self.codec)))
        object.__setattr__(self, "field_dtypes", own)

    def check_fields(self, canonical_names: Collection[str]) -> None:
        """Raise SourceError if ``field_dtypes`` or ``max_errors`` names a field that is not among these."""
        for setting in ("field_dtypes", "max_errors"):
            unknown = sorted(set(getattr(self, setting)).difference(canonical_names))
            if unknown:
                raise SourceError(f"{setting}: no field {unknown[0]!r}; fields are {', '.join(canonical_names)}")

    @cached_property
    def digest(self) -> str:
        """16 hex digits; settings that write different bytes have different digests."""
        return digest([GROUP_FORMAT, *self.to_document().values()])

    @property
    def is_packed(self) -> bool:
        """Whether each sample is one object."""
        return self.layout == "packed"

    def to_document(self) -> dict[str, Any]:
        """The settings as a JSON document of the manifest, without those that earlier versions did not know."""
        document = asdict(self)
        if not self.is_packed:
            del document["layout"]
        if not self.max_errors:
            del document["max_errors"]
        return document

    def dtype_of(self, name: FieldName) -> str:
        """Stored dtype of a field."""
        if name.canonical in self.max_errors:
            return BOUNDED_DTYPE
        return self.field_dtypes.get(name.canonical, COORDS_DTYPE if name.is_position else self.values_dtype)

    def bound_of(self, name: FieldName) -> ErrorBound | None:
        """Error bound of a field."""
        given = self.max_errors.get(name.canonical)
        return None if given is None else ErrorBound.parse(given)

    def array_layout(self, name: FieldName, n_points: int, dim: int) -> ArrayLayout:
        """Layout of a field's array, (n_points, dim)."""
        chunk_points = min(self.chunk_points, n_points)
        codec, dtype = Codec.parse(self.codec), self.dtype_of(name)
        if codec.name == "none" and name.canonical in self.max_errors:
            codec = Codec.parse(BOUNDED_CODEC)
        chunks = 1 if self.is_packed else -(-n_points // chunk_points)
        if self.shard_points is not None:
            chunks = min(chunks, self.shard_points // chunk_points)
        grid = n_points, dim, chunk_points, chunks * chunk_points
        return ArrayLayout(*grid, dtype, codec, domain=name.domain, sharded=not self.is_packed)


def _check_dtype(name: str, dtype: object) -> None:
    if dtype not in VALUE_DTYPES:
        raise SourceError(f"{name}: dtype {dtype!r} cannot be stored; use one of {', '.join(VALUE_DTYPES)}")


def digest(values: list[Any]) -> str:
    """16 hex digits of the SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def group_name(sample_id: str, content: list[Any], *, is_packed: bool = False) -> str:
    """Path of a group that is named by a digest of its content."""
    return f"{sample_folder(sample_id)}/{digest(content)}{SUFFIX if is_packed else ''}"


def choose_settings(
    storage: Storage, manifest: StoreManifest, given: Mapping[str, Any], *, reconvert: bool = False
) -> ConversionSettings:
    """The settings of a conversion into a store: the given ones of a request, and those of its manifest.

    The given ``field_dtypes`` and ``max_errors`` are added to those of the store, except "default" and "none", which
    remove the field's. With ``reconvert``, settings that contradict the store are used; without, StoreError is raised.
    Other errors are SourceError for invalid values, and ManifestError for a manifest whose settings cannot be read.
    """
    recorded = current_settings(manifest)
    if recorded is None:
        chosen = ConversionSettings(**given)
    else:
        by_field = {name: {**getattr(recorded, name), **given.get(name, {})} for name in ("field_dtypes", "max_errors")}
        chosen = replace(recorded, **{**given, **by_field})
        if manifest.samples and not reconvert:
            check_agreement(storage, recorded, chosen)
    if chosen.is_packed and given.get("shard_points") is not None:
        raise SourceError("shard_points is for the layout 'directory': packed samples have no shards; leave it out")
    return chosen


def held_settings(manifest: StoreManifest | None, declared: ConversionSettings) -> ConversionSettings:
    """The settings that new samples of a store are converted with, whatever is declared for it.

    Those of the store, if it holds samples; else the declared ones. Other settings need a migration, which a person
    starts with ``reconvert``. Raises ManifestError if those of the store cannot be read.
    """
    if manifest is None or not manifest.samples:
        return declared
    return current_settings(manifest) or declared


def describe_changes(manifest: StoreManifest, digests: Iterable[str], settings: ConversionSettings) -> str:
    """How settings differ from others of a store, given by their digests: "values_dtype: 'float16' -> 'float32'"."""
    known = {} if manifest.conversion is None else manifest.conversion.settings
    omitted: dict[str, Any] = {"layout": ConversionSettings.layout, "max_errors": {}}
    documents = [{**omitted, **known[each]} if each in known else {} for each in sorted(set(digests))]
    changes = []
    for name, new in asdict(settings).items():
        # Settings that the store does not record are named below.
        old = dict.fromkeys(repr(document[name]) for document in documents if document.get(name, new) != new)
        if old:
            changes.append(f"{name}: {' or '.join(old)} -> {new!r}")
    if not all(documents):
        changes.append("other settings, which the store does not record")
    return "; ".join(changes)


def check_agreement(storage: Storage, recorded: ConversionSettings, chosen: ConversionSettings) -> None:
    """Raise StoreError if settings contradict those of the store."""
    asked = asdict(chosen)
    different = []
    for name, held in asdict(recorded).items():
        if held != asked[name]:
            different.append(f"{name} is {held!r} in the store, not {asked[name]!r}")
    if different:
        raise StoreError(
            f"{storage.url}: {'; '.join(different)}. Run again without what contradicts the store, whose settings "
            "another conversion or a repacking may have changed meanwhile, or convert all samples again with the new "
            "settings: --reconvert (reconvert=True). Samples of write_sample get other settings in a new store only"
        )


def current_settings(manifest: StoreManifest | None) -> ConversionSettings | None:
    """The recorded settings of a store; None if its manifest does not record them. Raises ManifestError."""
    if manifest is None or manifest.conversion is None:
        return None
    current = manifest.conversion.current
    try:
        found = ConversionSettings(**manifest.conversion.settings[current])
    except (KeyError, TypeError, SourceError) as error:  # TypeError: a setting of a newer version of this library
        raise ManifestError(f"the conversion settings {current!r} of the manifest cannot be used: {error}") from error
    if found.digest != current:
        raise ManifestError(f"the conversion settings {current!r} of the manifest have the digest {found.digest!r}")
    return found


def recorded_conversion(manifest: StoreManifest, settings: ConversionSettings) -> Conversion:
    """What the manifest records after a conversion with these settings. Settings that no sample names are dropped."""
    named = {entry.settings for entry in manifest.samples.values()}
    named.update(refusal.settings for refusal in manifest.quarantine.values())
    known = {} if manifest.conversion is None else manifest.conversion.settings
    kept = {each: document for each, document in known.items() if each in named}
    kept[settings.digest] = settings.to_document()
    return Conversion(settings.digest, dict(sorted(kept.items())))
