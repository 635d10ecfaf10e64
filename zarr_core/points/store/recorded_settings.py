"""The settings of a store: recorded in its manifest, or reconstructed from the groups of an earlier version.

All samples of a store are converted with the same settings. A conversion takes from the store what its caller does not
give, and refuses what contradicts the store, unless the caller requests that everything is converted again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from zarr_core._util.arguments import check_mapping
from zarr_core._util.documents import expect
from zarr_core.errors import ManifestError, SourceError, StoreError
from zarr_core.format.array_metadata import COORDS_DTYPE, MAX_POINTS, VALUE_DTYPES, ArrayLayout, group_arrays
from zarr_core.format.names import POSITION
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.points.store.group import read_metadata, recorded_attributes
from zarr_core.points.store.manifest import Conversion, SampleEntry, StoreManifest
from zarr_core.points.store.settings import FIELD_DTYPES_EXAMPLE, ConversionSettings
from zarr_core.storage import Storage

# Candidates of ``shard_points`` that are tried: the stored value is rounded down to whole chunks.
_MAX_CANDIDATES = 65_536


def choose_settings(
    storage: Storage, manifest: StoreManifest | None, given: Mapping[str, Any], *, reconvert: bool = False
) -> ConversionSettings:
    """The settings of a conversion into a store.

    Args:
        storage: the store.
        manifest: its current manifest; None if there is no store yet.
        given: the settings that the caller gave, by name. ``field_dtypes`` are added to those of the store, except
            "default", which removes the field's.
        reconvert: use the given settings even if they contradict the store.

    Raises:
        SourceError: a given value is invalid.
        StoreError: a given value contradicts the store, or the settings of an earlier version are not known.
        ManifestError: the recorded settings cannot be read.
    """
    recorded = None if manifest is None else _settings_of(storage, manifest, given, reconvert)
    if manifest is None or recorded is None:
        return ConversionSettings(**given)
    dtypes = given.get("field_dtypes", {})
    check_mapping("field_dtypes", dtypes, FIELD_DTYPES_EXAMPLE)
    chosen = replace(recorded, **{**given, "field_dtypes": {**recorded.field_dtypes, **dtypes}})
    if manifest.samples and not reconvert:
        check_agreement(storage, recorded, chosen)
    return chosen


def held_settings(storage: Storage, manifest: StoreManifest | None, declared: ConversionSettings) -> ConversionSettings:
    """The settings that new samples of a store are converted with, whatever is declared for it.

    Those of the store, if it holds samples; else the declared ones. Other settings need a migration, which a person
    starts with ``reconvert``.

    Raises:
        StoreError, ManifestError: as for :func:`choose_settings`.
    """
    if manifest is None or not manifest.samples:
        return declared
    return _settings_of(storage, manifest, declared.to_document(), reconvert=False) or declared


def describe_changes(manifest: StoreManifest, digests: Iterable[str], settings: ConversionSettings) -> str:
    """How settings differ from others of a store, given by their digests: "values_dtype: 'float16' -> 'float32'"."""
    known = {} if manifest.conversion is None else manifest.conversion.settings
    documents = [known.get(digest, {}) for digest in sorted(set(digests))]
    changes = []
    for name, new in settings.to_document().items():
        old = dict.fromkeys(repr(document[name]) for document in documents if document.get(name, new) != new)
        changes += [f"{name}: {' or '.join(old)} -> {new!r}"] if old else []
    unknown = [] if all(documents) else ["other settings, which the store does not record"]
    return "; ".join([*changes, *unknown])


def check_agreement(storage: Storage, recorded: ConversionSettings, chosen: ConversionSettings) -> None:
    """Raise StoreError if settings contradict those of the store."""
    pairs = ((name, getattr(recorded, name), getattr(chosen, name)) for name in recorded.__dataclass_fields__)
    different = [f"{name} is {then!r} in the store, not {now!r}" for name, then, now in pairs if then != now]
    if different:
        raise StoreError(
            f"{storage.url}: {'; '.join(different)}. Leave out what contradicts the store, or convert all samples "
            "again with the new settings: --reconvert (reconvert=True)"
        )


def current_settings(manifest: StoreManifest) -> ConversionSettings | None:
    """The recorded settings of a store; None if its manifest does not record them. Raises ManifestError."""
    if manifest.conversion is None:
        return None
    digest = manifest.conversion.current
    try:
        document = manifest.conversion.settings[digest]
        found = ConversionSettings(**document)
    except (KeyError, TypeError, SourceError) as error:  # TypeError: a setting of a newer version of this library
        raise ManifestError(f"the conversion settings {digest!r} of the manifest cannot be used: {error}") from error
    if found.digest != digest:
        raise ManifestError(f"the conversion settings {digest!r} of the manifest have the digest {found.digest!r}")
    return found


def recorded_conversion(manifest: StoreManifest, settings: ConversionSettings) -> Conversion:
    """What the manifest records after a conversion with these settings. Settings that no sample names are dropped."""
    known = {} if manifest.conversion is None else dict(manifest.conversion.settings)
    named = {entry.settings for entry in manifest.samples.values()}
    named |= {refusal.settings for refusal in manifest.quarantine.values()}
    kept = {digest: document for digest, document in known.items() if digest in named}
    kept[settings.digest] = settings.to_document()
    return Conversion(settings.digest, dict(sorted(kept.items())))


def _settings_of(
    storage: Storage, manifest: StoreManifest, given: Mapping[str, Any], reconvert: bool
) -> ConversionSettings | None:
    """The settings of a store; None if it holds no samples of this library."""
    if manifest.conversion is not None:
        return current_settings(manifest)
    asked = ConversionSettings(**given)
    digests = Counter(entry.settings for entry in manifest.samples.values() if entry.settings)
    for digest, _ in digests.most_common():
        entries = [entry for entry in manifest.samples.values() if entry.settings == digest]
        found = _reconstructed(storage, entries) if digest != asked.digest else asked
        if found is not None:
            return found
    if not digests or reconvert:
        return None
    raise StoreError(
        f"{storage.url} was converted by an earlier version of this library, with settings that its manifest does not "
        "record. Give the settings that it was converted with, or convert all samples again: --reconvert "
        "(reconvert=True)"
    )


def _reconstructed(storage: Storage, entries: list[SampleEntry]) -> ConversionSettings | None:
    """The settings that samples of equal settings were converted with; None if they cannot be found."""
    grids = [grid for entry in entries for grid in entry.domains.values()]
    for entry in entries[:3]:  # the first one may be damaged
        try:
            group = read_metadata(storage, f"{entry.relpath}/{ZARR_JSON}")
            layouts = group_arrays(group)
            seed = expect(int, (recorded_attributes(group) or {}).get("shuffle_seed"), "shuffle_seed")
        except (OSError, ValueError, StoreError):
            continue
        chunks = [grid.chunk_points for grid in grids if grid.n_chunks > 1]
        shards = [grid.shard_points for grid in grids if grid.shard_points < grid.n_chunks * grid.chunk_points]
        most = max(grid.n_points for grid in grids)
        for candidate in _candidates(layouts, seed, chunks[0] if chunks else None, max(shards, default=None), most):
            if candidate.digest == entry.settings:
                return candidate
    return None


def _candidates(
    layouts: Mapping[str, ArrayLayout], seed: int, chunk_points: int | None, shard_points: int | None, most: int
) -> Iterator[ConversionSettings]:
    """Settings that give these arrays.

    Args:
        layouts: of the arrays of a sample, by name.
        seed: of its order of points.
        chunk_points: as set; None if every array is one chunk, which says only that it is at least ``most``.
        shard_points: as set, rounded down to whole chunks; None if every array is one shard.
        most: points of the largest sample.
    """
    codec = str(next(iter(layouts.values())).codec)
    sizes = [chunk_points] if chunk_points else [ConversionSettings.chunk_points, most, *(2**n for n in range(40))]
    for values_dtype in VALUE_DTYPES:
        dtypes = {}
        for name, layout in layouts.items():
            usual = COORDS_DTYPE if name.endswith(f"/{POSITION}") else values_dtype
            if layout.dtype != usual:
                dtypes[name.replace("/", "_")] = layout.dtype
        for size in sizes:
            if not most <= size <= MAX_POINTS and chunk_points is None:
                continue
            caps = [None] if shard_points is None else range(shard_points, shard_points + min(size, _MAX_CANDIDATES))
            for cap in caps:
                yield ConversionSettings(size, cap, values_dtype, dtypes, codec, seed)
