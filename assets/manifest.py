"""The manifest: one new generation of the store per batch. Its commit makes the batch visible to readers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from zarr_core.platform.assets.conditions import publish_after_a_batch
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.tables import table
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.dagster_internals.queries import observed_versions
from zarr_core.platform.sensors.dagster_internals.tags import ROW_COUNT
from zarr_core.platform.sensors.observations import ABSENT
from zarr_core.platform.sensors.operating import if_red

from zarr_core._util.digests import short_digest
from zarr_core._util.units import format_size
from zarr_core.errors import RetirementError
from zarr_core.points.convert.publish import PublishReport, publish_finished
from zarr_core.points.store.manifest import Quarantine, StoreManifest
from zarr_core.points.store.settings import ConversionSettings, held_settings
from zarr_core.sources.sample import FoundSamples
from zarr_core.versioning.generations import archived

# Tag of a run that retires at most this share of the samples, instead of the declared one.
SHARE_TAG = "zarr_core/max_retired_share"


def manifest_asset(dataset: DatasetDeclaration) -> dg.AssetsDefinition:
    """Finds the finished groups of the source's present samples and commits them together."""

    @dg.asset(
        key=dataset.key("manifest"),
        group_name=dataset.name,
        deps=[
            dg.AssetDep(dataset.key("zarr_samples"), partition_mapping=dg.AllPartitionMapping()),
            dg.AssetDep(dataset.key("source_listing")),
        ],
        automation_condition=publish_after_a_batch(dataset.key("source_listing")),
        code_version=dataset.code_version,
        description="Which samples the store holds, in which split, and what was refused: `manifest.json`, which each "
        "commit replaces. A training run can pin each of its generations."
        + if_red("samples-that-vanish", "read the last event of the run; it names the samples and the way out"),
        metadata={**dataset.summary(), **dataset.published_metadata},
        output_required=False,
        kinds={"json", "zarr"},
    )
    def manifest(context: dg.AssetExecutionContext, stores: StoreAccess) -> Iterator[dg.MaterializeResult]:
        listed = stores.list_source(dataset.kind, dataset.source)
        before = stores.manifest_if_any(dataset.store)  # as long as it is in memory, it is not parsed again
        if not listed.samples:
            if before is None and not context.instance.get_dynamic_partitions(dataset.partitions_name):
                context.log.info(f"{dataset.shown_source} holds no samples yet: there is nothing to publish")
                return  # what follows is skipped
            # A disk that is not mounted looks like an empty source, and must not retire every sample of the store.
            raise dg.Failure(f"{dataset.shown_source} holds no samples: is it there? Nothing was published.")
        settings = held_settings(before, dataset.settings)
        report = _publish(context, dataset, settings, listed)
        absent = [sample_id for sample_id in report.manifest.samples if sample_id not in listed.samples]
        _report_left_out(context, dataset, report, absent)
        generation = f"generation {report.manifest.generation}"
        context.log.info(generation if report.committed else f"{generation} is up to date")
        yield dg.MaterializeResult(
            metadata={
                "store": dg.MetadataValue.path(dataset.shown_store),
                **_metadata(report),
                "not_at_the_source": len(absent),
            },
            # Without tags and retention, which change nothing that is made from the manifest.
            data_version=dg.DataVersion(short_digest([archived(report.manifest, report.manifest.to_json()).decode()])),
        )

    return manifest


def _publish(
    context: dg.AssetExecutionContext, dataset: DatasetDeclaration, settings: ConversionSettings, listed: FoundSamples
) -> PublishReport:
    """Commit the finished groups of the listed samples; raises Failure if that is refused, or there is none."""
    versions = observed_versions(context.instance, dataset.observed)
    share = context.run.tags.get(SHARE_TAG, dataset.max_retired_share)
    try:
        share = float(share)
    except ValueError:
        raise dg.Failure(f"the tag {SHARE_TAG} is {share!r}, not a number from 0 to 1", allow_retries=False) from None
    request = dataset.request(
        settings,
        # Two listings apart in time did not find these.
        retire_vanished=[sample_id for sample_id, version in versions.items() if version == ABSENT],
        max_retired_share=share,
    )
    try:
        report = publish_finished(request, listed)
    except RetirementError as error:
        way_out = f"Check the source, or run {dataset.name}_refresh with the tag {SHARE_TAG} = 1"
        raise dg.Failure(f"{error}. {way_out}", allow_retries=False) from error
    if not report.manifest.generation:
        refused = refused_rows(report.quarantined)
        raise dg.Failure(
            f"No sample of the present source is converted, {len(refused)} are refused. There is no store at "
            f"{dataset.shown_store}, and nothing was published.",
            metadata={"refused": table(refused)} if refused else {},
            allow_retries=False,
        )
    return report


def _report_left_out(
    context: dg.AssetExecutionContext, dataset: DatasetDeclaration, report: PublishReport, absent: Sequence[str]
) -> None:
    """Name the samples that the generation does not hold as they are at the source."""
    if absent:
        context.log.warning(
            f"{len(absent)} samples of the store are not at the source and stay until the sensor has confirmed it; "
            f"convert --retire-vanished removes them now: {', '.join(absent[:25])}"
        )
    for sample_id, refusal in report.misfits.items():
        reason = f"converted, but not published: {refusal.explanation}"
        context.log.error(f"{sample_id}: {reason}")
        # On the page of the partition, which is green because the conversion succeeded.
        metadata = {"status": "quarantined", "reason": reason}
        context.log_event(dg.AssetObservation(dataset.converted, partition=sample_id, metadata=metadata))
    if report.collected:
        lost = ", ".join(report.collected)
        context.log.warning(f"Garbage collection deleted groups before their publication; convert again: {lost}")


def split_rows(manifest: StoreManifest) -> list[dict[str, Any]]:
    """Per split, the number of samples that it lists and the number of those in the store."""
    return [
        {
            "split": split,
            "listed": len(manifest.split_ids(split, present_only=False)),
            "in the store": len(manifest.split_ids(split)),
        }
        for split in manifest.splits
    ]


def refused_rows(refused: Mapping[str, Quarantine]) -> list[dict[str, Any]]:
    """The refused samples with field and reason."""
    return [{"sample": i, "field": why.field, "reason": why.reason} for i, why in sorted(refused.items())]


def _metadata(report: PublishReport) -> dict[str, Any]:
    """What the UI shows of a generation, and plots over the generations."""
    manifest = report.manifest
    stored = sum(entry.bytes for entry in manifest.samples.values())
    metadata: dict[str, Any] = {
        "generation": manifest.generation,
        "samples": len(manifest.samples),
        "added": len(report.added),
        "replaced": len(report.replaced),
        "retired": len(report.retired),
        "quarantined": len(manifest.quarantine),
        "size": format_size(stored),
        "bytes_stored": stored,
        ROW_COUNT: len(manifest.samples),
    }
    points: Counter[str] = Counter()
    for entry in manifest.samples.values():
        for domain, grid in entry.domains.items():
            points[domain] += grid.n_points
    for domain in sorted(points):
        metadata[f"points/{domain}"] = points[domain]
    columns = []
    for name, column in manifest.fields.items():
        columns.append({"field": name, "array": column.array_name, "dtype": column.dtype, "dim": column.dim})
    metadata["splits"] = table(split_rows(manifest))
    metadata["fields"] = table(columns)
    if manifest.quarantine:
        metadata["refused"] = table(refused_rows(manifest.quarantine))
    if report.notes:
        metadata["left out"] = table([{"note": note} for note in report.notes])
    return metadata
