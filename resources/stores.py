"""Access to sources and stores.

Credentials and endpoints come from the environment of the process (``AWS_*``, ``OCIFS_*``, ``FSSPEC_<PROTOCOL>_*``) or
from fsspec's own configuration files, as everywhere in ``zarr_core``. A run, its worker processes and a person at the
command line then use the same ones, and no secret enters Dagster's database.
"""

from __future__ import annotations

from collections.abc import Collection

import dagster as dg
from pydantic import PrivateAttr

from zarr_core.points.store.head import load_if_any, load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.points.store.settings import ConversionSettings, held_settings
from zarr_core.sources import SampleTree
from zarr_core.sources.listing import Listing, list_samples
from zarr_core.sources.sample import FoundSamples
from zarr_core.storage import Storage


class StoreAccess(dg.ConfigurableResource):
    """Opens the sources and stores of point datasets. Each run has its own, and each tick of a sensor."""

    _found: dict[tuple[str, str], FoundSamples] = PrivateAttr(default_factory=dict)

    def source(self, kind: str, url: str) -> SampleTree:
        """The tree of sample folders at a URL; raises SourceError."""
        return SampleTree(kind, url)

    def list_source(self, kind: str, url: str) -> FoundSamples:
        """List a source; raises SourceError."""
        found = self.source(kind, url).find()
        self._found[kind, url] = found
        return found

    def found(self, kind: str, url: str) -> FoundSamples:
        """A source as this run has listed it last. It is listed if it was not yet. Raises SourceError.

        The checks of what was published so see the source as it was published.
        """
        return self._found.get((kind, url)) or self.list_source(kind, url)

    def listing(self, kind: str, url: str, splits: Collection[str] | None) -> Listing:
        """The samples of some splits (None: all), as this run has listed their source last; raises SourceError."""
        return list_samples(self.source(kind, url), splits, self.found(kind, url))

    def store(self, url: str) -> Storage:
        """The objects of a store."""
        return Storage(url)

    def manifest_if_any(self, url: str) -> StoreManifest | None:
        """The samples of a store now; None if there is no store yet. Raises ManifestError."""
        return load_if_any(self.store(url))

    def settings(self, url: str, declared: ConversionSettings) -> ConversionSettings:
        """The settings that samples are converted with now: those of the store, if it holds samples."""
        return held_settings(self.manifest_if_any(url), declared)

    def manifest(self, url: str, generation: int | None = None) -> StoreManifest:
        """The samples of a store, now or at a generation; raises ManifestError."""
        return load_manifest(self.store(url), generation)
