"""Converted samples: one Zarr group each, written by a pool of processes, a batch of samples per run."""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import dagster as dg
import numpy as np
from zarr_core.platform.assets.conditions import convert_when_needed, migrate_in_batches
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.pictures import silhouette
from zarr_core.platform.assets.retries import retried
from zarr_core.platform.assets.tables import short, table
from zarr_core.platform.resources.pools import ConversionPool
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.dagster_internals.events import MaterializationBatch
from zarr_core.platform.sensors.dagster_internals.queries import latest_observations, planned_partitions
from zarr_core.platform.sensors.dagster_internals.runs import has_tag
from zarr_core.platform.sensors.dagster_internals.tags import version_tags
from zarr_core.platform.sensors.migration import CHECK, data_version_of, samples_to_migrate
from zarr_core.platform.sensors.operating import if_red
from zarr_core.platform.sensors.pending import natural_order
from zarr_core.platform.sensors.refusals import refusal_tags, refused_samples

from zarr_core._util.documents import parse_json
from zarr_core._util.units import format_duration, format_size
from zarr_core.errors import CorruptChunkError, ManifestError
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.points.convert.conversion import ConversionResult, convert_each
from zarr_core.points.read.engines import FieldRead
from zarr_core.points.read.engines.direct import DirectEngine
from zarr_core.points.read.sampling import Draw
from zarr_core.points.store.group import recorded_attributes
from zarr_core.points.store.manifest import ArrayColumn, SampleEntry, StoreManifest
from zarr_core.storage.retries import describe

_PICTURE_POINTS = 4096
# Lines of progress in the log of a run, at most.
_PROGRESS_LINES = 20
# Tag of a run or backfill that converts its samples again, even if they are up to date, and so repairs damaged groups.
FORCE_TAG = "zarr_core/force"
REPAIR_HINT = f"convert it again in a run with the tag {FORCE_TAG} = true"


def zarr_samples_asset(dataset: DatasetDeclaration) -> dg.AssetsDefinition:
    """The dataset's converted samples.

    Each sample is recorded as soon as it is converted, and a run that fails keeps the samples before.
    Readers of the store do not see the samples before the manifest names them.
    """

    @dg.asset(
        key=dataset.converted,
        group_name=dataset.name,
        partitions_def=dataset.partitions,
        deps=[dataset.observed],
        backfill_policy=dg.BackfillPolicy.multi_run(dataset.batch_size),
        automation_condition=convert_when_needed(
            dataset.retry_schedule,
            migrate_in_batches(dataset.batch_size, partial(samples_to_migrate, dataset=dataset)),
            partial(refused_samples, dataset=dataset),
        ),
        code_version=dataset.code_version,
        pool=dataset.concurrency_pool,
        freshness_policy=dataset.freshness_policy,
        output_required=False,
        description="One Zarr v3 group per sample: an array per field, points shuffled once, chunked along the points, "
        "every chunk checksummed. A sample that cannot be converted fails alone and is tried again when its source "
        "changes." + if_red("a-sample-that-cannot-be-converted", "mend the files of the named samples at the source"),
        metadata=dataset.summary(),
        kinds={"zarr", "python"},
    )
    def zarr_samples(
        context: dg.AssetExecutionContext, stores: StoreAccess, conversion_pool: ConversionPool
    ) -> Iterator[dg.AssetObservation]:
        with retried(context, dataset.retry_seconds):
            yield from _convert(context, dataset, stores, conversion_pool)

    return zarr_samples


def _convert(
    context: dg.AssetExecutionContext, dataset: DatasetDeclaration, stores: StoreAccess, conversion_pool: ConversionPool
) -> Iterator[dg.AssetObservation]:
    """Convert the partitions of a run; raises Failure at the end if some could not be converted."""
    sample_ids = planned_partitions(context)
    remaining = set(sample_ids)
    sources = latest_observations(context.instance, dataset.observed, sample_ids)
    force = has_tag(context.run, FORCE_TAG)
    settings = stores.settings(dataset.store, dataset.settings)
    if settings != dataset.settings:
        context.log.warning(
            f"The declared settings are not those of the store, which the samples are converted with: see the check "
            f"{CHECK}, and the job {dataset.migration_job}"
        )
    reader = EntryReader(stores, dataset, context.log)
    code_version = dataset.code_version_of(settings.digest)
    failed: list[ConversionResult] = []
    # A line per sample would cost as much as the sample's materialization, which says the same.
    progress_every = max(1, len(sample_ids) // _PROGRESS_LINES)
    with MaterializationBatch(context) as recorded, conversion_pool.executor(dataset.workers, dataset.pool) as executor:
        request = dataset.request(settings, sample_ids=sample_ids, force=force)
        found = stores.source(dataset.kind, dataset.source).find(sample_ids)
        # Of none of them, it would say that the source has no samples.
        results = convert_each(request, found=found, executor=executor) if found.samples else ()
        for result in results:
            sample_id = result.sample_id
            source = sources.get(sample_id)
            remaining.remove(sample_id)
            entry = reader.entry(result)
            metadata: dict[str, Any] = {}
            try:
                if entry is not None:
                    metadata = reader.metadata(result, entry)
            except Exception as error:  # one sample never stops another
                result = ConversionResult(sample_id, "failed", reason=_unreadable(error))
                entry = None
            if entry is None:
                failed.append(result)
                context.log.error(f"{sample_id} {result.status}: {result.reason}")
                metadata = {"status": result.status, "reason": result.reason}
                seen = found.samples[sample_id].fingerprint
                tags = refusal_tags(settings.digest, source, seen) if result.status == "quarantined" else {}
                yield dg.AssetObservation(context.asset_key, partition=sample_id, metadata=metadata, tags=tags)
                continue
            if len(remaining) % progress_every == 0:
                context.log.info(f"{len(sample_ids) - len(remaining):,} of {len(sample_ids):,} samples done")
            tags = version_tags(code_version, data_version_of(entry), dataset.observed, source)
            recorded.add(dg.AssetMaterialization(context.asset_key, partition=sample_id, metadata=metadata, tags=tags))
    # Requested, but no longer at the source: the sensor will remove the partition as well.
    for sample_id in sorted(remaining, key=natural_order):
        failed.append(ConversionResult(sample_id, "failed", reason="no longer at the source"))
        metadata = {"status": "failed", "reason": failed[-1].reason}
        yield dg.AssetObservation(context.asset_key, partition=sample_id, metadata=metadata)
    if failed:
        raise failure(failed, len(sample_ids))


class EntryReader:
    """Reads what the store records of converted samples."""

    def __init__(self, stores: StoreAccess, dataset: DatasetDeclaration, log: dg.DagsterLogManager) -> None:
        self._log = log
        self._storage = stores.store(dataset.store)
        self._arrays = DirectEngine(dataset.store)
        self._open_manifest = lambda: stores.manifest(dataset.store)

    @cached_property
    def _manifest(self) -> StoreManifest:
        return self._open_manifest()

    def entry(self, result: ConversionResult) -> SampleEntry | None:
        """The sample's group; None if its present source has none."""
        if result.status == "up to date":
            return self._manifest.samples[result.sample_id]
        return result.written if result.written else None

    def metadata(self, result: ConversionResult, entry: SampleEntry) -> dict[str, Any]:
        """What the UI shows of a converted sample, from the attributes of its group.

        Raises:
            CorruptChunkError: the group's ``zarr.json`` is missing or damaged.
        """
        name = f"{entry.relpath}/{ZARR_JSON}"
        try:
            recorded = recorded_attributes(parse_json(self._storage.read(name)))
        except (FileNotFoundError, ValueError) as error:
            raise CorruptChunkError(f"{name}: {error}") from error
        if recorded is None:
            raise CorruptChunkError(f"{name} holds no records of a conversion")
        shown: dict[str, Any] = {}
        try:
            picture = self._picture(result.sample_id, entry, recorded["moments"])
            if picture:
                shown["picture"] = dg.MetadataValue.md(picture)
        except Exception as error:  # a picture never fails a sample
            shown["picture"] = f"no picture, {_unreadable(error)}"
            self._log.warning(f"{result.sample_id}: {shown['picture']}")
        return shown | _numbers(result, entry, recorded)

    def _picture(self, sample_id: str, entry: SampleEntry, moments: dict[str, Any]) -> str:
        """The surface from the side, coloured by its first scalar; "" for a sample without one."""
        scalars = [f for f, m in moments.items() if f.startswith("surface_") and len(m["mean"]) == 1]
        if not scalars or "surface" not in entry.domains:
            return ""

        grid = entry.domains["surface"]
        # The points are stored in random order, so the first ones cover the whole surface.
        first = Draw(((0, min(_PICTURE_POINTS, grid.n_points)),), grid.chunk_points)

        def some(field: str) -> FieldRead:
            dtype = entry.fields[field].dtype if entry.fields else ""
            array = f"surface/{field.removeprefix('surface_')}"
            column = ArrayColumn(array, field, dtype, len(moments[field]["mean"]))
            return FieldRead(self._storage.url, sample_id, entry, column, "surface", first)

        positions, values = self._arrays.read([some("surface_position"), some(scalars[0])])
        return silhouette(positions.astype(np.float64), values[:, 0].astype(np.float64), scalars[0])


def _unreadable(error: Exception) -> str:
    """Why a group could not be read. Only damage is repaired by another conversion."""
    if isinstance(error, CorruptChunkError | ManifestError):
        return f"its group is damaged: {describe(error)}; {REPAIR_HINT}"
    return describe(error)


def failure(failed: Sequence[ConversionResult], total: int) -> dg.Failure:
    """The error that ends the run and names the samples without a group.

    The run has to fail: if it succeeded with gaps, these samples would only be missing, and the automation would
    request them again at once. The run is retried only if the environment of the samples was at fault.
    """
    named = "; ".join(f"{result.sample_id}: {result.reason}" for result in failed[:5])
    more = "; ..." if len(failed) > 5 else ""
    rows = [{"sample": result.sample_id, "status": result.status, "reason": result.reason} for result in failed]
    return dg.Failure(
        description=f"{len(failed)} of {total} samples could not be converted: {named}{more}",
        metadata={"refused": table(rows), "refused_samples": len(failed)},
        allow_retries=any(result.status == "failed" for result in failed),
    )


def _numbers(result: ConversionResult, entry: SampleEntry, recorded: dict[str, Any]) -> dict[str, Any]:
    """Numbers that the UI plots over the samples: size, speed, and the extremes of the values, which show outliers."""
    sizes = {field: info["size"] for field, info in recorded["source"]["files"].items()}
    bytes_in = sum(sizes.values())
    numbers: dict[str, Any] = {
        "status": result.status,
        "group": entry.relpath,
        "points": sum(grid.n_points for grid in entry.domains.values()),
    }
    for domain, grid in entry.domains.items():
        numbers[f"points/{domain}"] = grid.n_points
    numbers["bytes_in"] = bytes_in
    numbers["bytes_out"] = entry.bytes
    numbers["stored_share"] = round(entry.bytes / bytes_in, 4)
    for name, value in recorded["parameters"].items():
        numbers[f"parameters/{name}"] = short(value)
    numbers["size"] = f"{format_size(bytes_in)} at the source, {format_size(entry.bytes)} in the store"
    if result.status == "converted":
        rate = bytes_in / max(result.seconds, 1e-9)
        numbers["seconds"] = round(result.seconds, 3)
        numbers["took"] = f"{format_duration(result.seconds)}, {format_size(rate)} per second"
    if result.notes:
        numbers["notes"] = "; ".join(f"{reason}: {detail}" for reason, detail in result.notes.items())
    rows = []
    for field, moments in recorded["moments"].items():
        low = min(moments["min"])
        mean = sum(moments["mean"]) / len(moments["mean"])
        high = max(moments["max"])
        row = {"field": field, "min": low, "mean": mean, "max": high}
        row["source"] = sizes[field]
        row["stored"] = recorded["stored_bytes"][field]
        rows.append(row | _errors(field, recorded))
        if len(moments["mean"]) == 1:
            numbers[f"values/{field} mean"] = short(mean)
            numbers[f"values/{field} min"] = low
            numbers[f"values/{field} max"] = high
    numbers["fields"] = table(rows)
    return numbers


def _errors(field: str, recorded: dict[str, Any]) -> dict[str, float]:
    """What the stored dtype changed in a field, over its components; groups of older versions do not record it."""
    if field not in recorded.get("rounding", {}):
        return {}
    error = recorded["rounding"][field]
    return {
        "rms error / std": max(error["rms"]),
        "max error / std": max(error["max"]),
        "zeroed share": max(error["zeroed"]),
    }
