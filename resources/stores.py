"""How sources and stores are reached.

Credentials and endpoints come from the environment of the process (``AWS_*``, ``OCIFS_*``, ``FSSPEC_<PROTOCOL>_*``) or
from fsspec's own configuration files, as everywhere in ``zarr_core``: the run, its worker processes and a person at the
command line then see the same world, and no secret enters Dagster's database.
"""

from __future__ import annotations

import dagster as dg

from resources.dataset import DeclaredDataset
from zarr_core.points.manifest import StoreManifest, load_manifest
from zarr_core.sources import SampleTree
from zarr_core.storage import Storage


class StoreAccess(dg.ConfigurableResource):
    """Opens what the assets read: the source trees and the stores."""

    def source(self, dataset: DeclaredDataset) -> SampleTree:
        """The tree of sample folders that the dataset is converted from."""
        return SampleTree(dataset.description, dataset.source)

    def store(self, dataset: DeclaredDataset) -> Storage:
        """The objects of the dataset's store."""
        return Storage(dataset.store)

    def manifest(self, dataset: DeclaredDataset, generation: int | None = None) -> StoreManifest:
        """What the store holds, now or at a generation; raises ManifestError."""
        return load_manifest(self.store(dataset), generation)
