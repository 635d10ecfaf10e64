"""The settings of a store, which its manifest records.

All samples of a store are converted with the same settings. A conversion takes from the store what its caller does not
give, and refuses what contradicts the store, unless the caller requests that everything is converted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from zarr_core.errors import ManifestError, SourceError, StoreError
from zarr_core.points.store.manifest import Conversion, StoreManifest
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.storage import Storage

# What a document leaves out.
_DEFAULTS: Mapping[str, Any] = {"layout": ConversionSettings.layout, "max_errors": {}}


def choose_settings(
    storage: Storage, manifest: StoreManifest | None, given: Mapping[str, Any], *, reconvert: bool = False
) -> ConversionSettings:
    """The settings of a conversion into a store: the given ones of a request, and those of its manifest.

    The given ``field_dtypes`` and ``max_errors`` are added to those of the store, except "default" and "none", which
    remove the field's. With ``reconvert``, settings that contradict the store are used.

    Raises:
        SourceError: a given value is invalid.
        StoreError: a given value contradicts the store.
        ManifestError: the recorded settings cannot be read.
    """
    recorded = None if manifest is None else current_settings(manifest)
    if manifest is None or recorded is None:
        return _without_shards(ConversionSettings(**given), given)
    by_field = {name: {**getattr(recorded, name), **given.get(name, {})} for name in ("field_dtypes", "max_errors")}
    chosen = replace(recorded, **{**given, **by_field})
    if manifest.samples and not reconvert:
        check_agreement(storage, recorded, chosen)
    return _without_shards(chosen, given)


def _without_shards(chosen: ConversionSettings, given: Mapping[str, Any]) -> ConversionSettings:
    if chosen.is_packed and given.get("shard_points") is not None:
        raise SourceError("shard_points is for the layout 'directory': packed samples have no shards; leave it out")
    return chosen


def held_settings(manifest: StoreManifest | None, declared: ConversionSettings) -> ConversionSettings:
    """The settings that new samples of a store are converted with, whatever is declared for it.

    Those of the store, if it holds samples; else the declared ones. Other settings need a migration, which a person
    starts with ``reconvert``.

    Raises:
        ManifestError: as for :func:`choose_settings`.
    """
    if manifest is None or not manifest.samples:
        return declared
    return current_settings(manifest) or declared


def describe_changes(manifest: StoreManifest, digests: Iterable[str], settings: ConversionSettings) -> str:
    """How settings differ from others of a store, given by their digests: "values_dtype: 'float16' -> 'float32'"."""
    known = {} if manifest.conversion is None else manifest.conversion.settings
    documents = [{**_DEFAULTS, **known[digest]} if digest in known else {} for digest in sorted(set(digests))]
    changes = []
    for name, new in _all_settings(settings).items():
        # Settings that the store does not record are named below.
        old = dict.fromkeys(repr(document[name]) for document in documents if document.get(name, new) != new)
        if old:
            changes.append(f"{name}: {' or '.join(old)} -> {new!r}")
    if not all(documents):
        changes.append("other settings, which the store does not record")
    return "; ".join(changes)


def check_agreement(storage: Storage, recorded: ConversionSettings, chosen: ConversionSettings) -> None:
    """Raise StoreError if settings contradict those of the store."""
    held, asked = _all_settings(recorded), _all_settings(chosen)
    different = []
    for name in held:
        if held[name] != asked[name]:
            different.append(f"{name} is {held[name]!r} in the store, not {asked[name]!r}")
    if different:
        raise StoreError(
            f"{storage.url}: {'; '.join(different)}. Run again without what contradicts the store, whose settings "
            "another conversion or a repacking may have changed meanwhile, or convert all samples again with the new "
            "settings: --reconvert (reconvert=True)"
        )


def _all_settings(settings: ConversionSettings) -> dict[str, Any]:
    return {**_DEFAULTS, **settings.to_document()}


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
    named = {entry.settings for entry in manifest.samples.values()}
    named.update(refusal.settings for refusal in manifest.quarantine.values())
    known = {} if manifest.conversion is None else manifest.conversion.settings
    kept = {digest: document for digest, document in known.items() if digest in named}
    kept[settings.digest] = settings.to_document()
    return Conversion(settings.digest, dict(sorted(kept.items())))
