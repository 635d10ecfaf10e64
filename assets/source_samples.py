"""The samples of a source in Dagster: one partition per sample, with the fingerprint as its data version."""

import time

import dagster as dg
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.tables import table
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.dagster_internals.tags import kind_tags
from zarr_core.platform.sensors.observations import (
    KnownItems,
    changes_now,
    listing_counts,
    listing_observation,
    report_now,
)
from zarr_core.platform.sensors.operating import if_red
from zarr_core.platform.sensors.takeover import take_over


def source_samples_asset(dataset: DatasetDeclaration) -> dg.SourceAsset:
    """The samples of the source. To observe them by hand lists the source at once, without waiting for the sensor."""

    @dg.observable_source_asset(
        key=dataset.observed,
        group_name=dataset.name,
        partitions_def=dataset.partitions,
        description=f"One partition for each sample at the source, `{dataset.shown_source}`. The sensor "
        f"`{dataset.name}_arrivals` registers what arrives; *Observe* looks at once."
        + if_red("a-source-that-does-not-answer", "look whether the source is there"),
        metadata={"kind": dataset.kind, "source": dataset.shown_source, "files": _files(dataset)},
        tags=kind_tags(*_file_types(dataset), "source"),
    )
    def source_samples(context: dg.OpExecutionContext, stores: StoreAccess) -> dg.DataVersionsByPartition:
        first = stores.listing(dataset.kind, dataset.source, dataset.splits)
        time.sleep(dataset.settle_seconds)
        stores.list_source(dataset.kind, dataset.source)
        second = stores.listing(dataset.kind, dataset.source, dataset.splits)
        tree = stores.source(dataset.kind, dataset.source)
        manifest = stores.manifest_if_any(dataset.store)
        known = KnownItems(context.instance, dataset)
        changes = changes_now(known, first, second)
        changes, held = take_over(dataset, tree, manifest, second, known, changes, in_a_tick=False)
        return report_now(context, dataset, second, changes, "samples", held)

    return source_samples


def source_listing_asset(dataset: DatasetDeclaration) -> dg.SourceAsset:
    """The listing as a whole: which samples there are, and which samples each split lists."""

    @dg.observable_source_asset(
        key=dataset.listing_key,
        group_name=dataset.name,
        description="Which samples the source lists, its split files and blacklists. It changes when a sample vanishes "
        "or a list is edited, and the manifest follows."
        + if_red("a-source-that-does-not-answer", "look whether the source is there"),
        metadata={"source": dataset.shown_source},
        tags=kind_tags("source"),
    )
    def source_listing(stores: StoreAccess) -> dg.ObserveResult:
        listing = stores.listing(dataset.kind, dataset.source, dataset.splits)
        observed = listing_observation(dataset.listing_key, listing, listing.version, listing_counts(listing))
        return dg.ObserveResult(
            data_version=dg.DataVersion(listing.version), metadata=observed.metadata, tags=observed.tags
        )

    return source_listing


def _file_types(dataset: DatasetDeclaration) -> list[str]:
    """Types of the files of a sample, whose icons the asset shows; Dagster knows tensors as those of PyTorch."""
    suffixes = {file.filename.rpartition(".")[2] for file in dataset.description.fields.values()}
    return ["pytorch" if suffix == "pt" else suffix for suffix in sorted(suffixes) if suffix.isalnum()]


def _files(dataset: DatasetDeclaration) -> dg.TableMetadataValue:
    return table([{"field": name, "file": file.filename} for name, file in dataset.description.fields.items()])
