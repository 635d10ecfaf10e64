"""Converted samples: one Zarr group each, written by a pool of processes, a batch of samples a run."""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import dagster as dg
import numpy as np
import zarr
from dagster import DagsterInstance

from assets.conditions import convert_when_needed
from assets.pictures import silhouette
from assets.tables import short, table
from resources.dataset import DeclaredDataset
from resources.pools import ConversionPool
from resources.source_watch import DATA_VERSION
from resources.stores import StoreAccess
from zarr_core.convert import SampleOutcome, iter_convert
from zarr_core.manifest import SampleEntry, StoreManifest
from zarr_core.stores import make_store

# What breaks a whole run (a network away, a worker killed for memory) may be over in a minute; what is finished by
# then is found again and not written twice.
_TRY_AGAIN = dg.RetryPolicy(max_retries=2, delay=20, backoff=dg.Backoff.EXPONENTIAL)

_PICTURE_POINTS = 4096


def zarr_samples_asset(dataset: DeclaredDataset) -> dg.AssetsDefinition:
    """The dataset's converted samples.

    A generator, so that each sample is recorded the moment it is done, and a run that ends badly keeps what it made.
    Nothing here is visible to readers of the store before the manifest names it.
    """

    @dg.asset(
        key=dataset.key("zarr_samples"),
        group_name=dataset.name,
        partitions_def=dataset.samples,
        deps=[dataset.key("source_samples")],
        backfill_policy=dg.BackfillPolicy.multi_run(dataset.batch_size),
        automation_condition=convert_when_needed(dataset.retry_schedule),
        retry_policy=_TRY_AGAIN,
        code_version=dataset.code_version,
        pool=dataset.pool,
        output_required=False,
        description="One Zarr v3 group per sample: an array per field, points shuffled once, chunked along the points, "
        "every chunk checksummed. A sample that cannot be converted fails alone and is tried again when its source "
        "changes.",
        metadata=dataset.summary(),
        kinds={"zarr", "python"},
    )
    def zarr_samples(
        context: dg.AssetExecutionContext, stores: StoreAccess, conversion_pool: ConversionPool
    ) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
        waiting = set(context.partition_keys)
        sources = _observed_sources(context.instance, dataset, context.partition_keys)
        reader = EntryReader(stores, dataset)
        refused: list[SampleOutcome] = []
        with conversion_pool.executor(dataset.workers) as executor:
            for outcome in iter_convert(
                dataset.kind,
                dataset.store,
                sample_ids=context.partition_keys,
                executor=executor,
                **dataset.source_arguments,
            ):
                waiting.remove(outcome.sample_id)
                entry = reader.entry(outcome)
                if entry is None:
                    refused.append(outcome)
                    context.log.error(f"{outcome.sample_id} {outcome.status}: {outcome.reason}")
                    yield dg.AssetObservation(
                        context.asset_key,
                        partition=outcome.sample_id,
                        metadata={"status": outcome.status, "reason": outcome.reason},
                    )
                else:
                    context.log.info(f"{outcome.sample_id} {outcome.status}, {len(waiting)} to go")
                    yield dg.AssetMaterialization(
                        context.asset_key,
                        partition=outcome.sample_id,
                        metadata=reader.metadata(outcome, entry),
                        tags=_versions(dataset, entry, sources.get(outcome.sample_id)),
                    )
        # Asked for, but at the source no longer: the sensor will take the partition away, too.
        refused += [SampleOutcome(i, "failed", reason="the source does not hold it any more") for i in sorted(waiting)]
        if refused:
            raise failure(refused, len(context.partition_keys))

    return zarr_samples


class EntryReader:
    """What the store says of samples just converted, and of those it had already."""

    def __init__(self, stores: StoreAccess, dataset: DeclaredDataset) -> None:
        self._storage = stores.store(dataset)
        self._arrays = make_store(dataset.store)
        self._open_manifest = lambda: stores.manifest(dataset)

    @cached_property
    def _manifest(self) -> StoreManifest:
        return self._open_manifest()

    def entry(self, outcome: SampleOutcome) -> SampleEntry | None:
        """Where the sample's group is; None where there is none for its present source."""
        if outcome.status == "up to date":
            return self._manifest.samples[outcome.sample_id]
        return outcome.written.entry if outcome.written else None

    def metadata(self, outcome: SampleOutcome, entry: SampleEntry) -> dict[str, Any]:
        """What the UI shows of a converted sample, from what the writer noted in its group."""
        group = json.loads(self._storage.read(f"{entry.relpath}/zarr.json"))
        recorded = group["attributes"]["zarr_core"]
        picture = self._picture(entry, recorded["moments"])
        return {**({"picture": dg.MetadataValue.md(picture)} if picture else {}), **_numbers(outcome, entry, recorded)}

    def _picture(self, entry: SampleEntry, moments: dict[str, Any]) -> str:
        """The surface from the side, coloured by its first scalar; "" for a sample without such a surface."""
        scalars = [f for f, m in moments.items() if f.startswith("surface_") and len(m["mean"]) == 1]
        if not scalars or "surface" not in entry.domains:
            return ""

        def some(field: str) -> np.ndarray:
            # Points were shuffled when they were written, so the first ones are from all over the surface.
            path = f"{entry.relpath}/surface/{field.removeprefix('surface_')}"
            array = zarr.open_array(self._arrays, path=path, mode="r", zarr_format=3)
            return np.asarray(array[:_PICTURE_POINTS], np.float64)

        return silhouette(some("surface_position"), some(scalars[0])[:, 0], scalars[0])


def failure(refused: Sequence[SampleOutcome], of: int) -> dg.Failure:
    """Ends the run, naming the samples without a group.

    The run has to fail: one that ended well with gaps would leave these samples merely missing, and the automation
    would ask for them again at once. It is tried again by itself only where the world around the samples was at fault.
    """
    named = "; ".join(f"{outcome.sample_id}: {outcome.reason}" for outcome in refused[:5])
    more = "; ..." if len(refused) > 5 else ""
    rows = [{"sample": outcome.sample_id, "status": outcome.status, "reason": outcome.reason} for outcome in refused]
    return dg.Failure(
        description=f"{len(refused)} of {of} samples could not be converted: {named}{more}",
        metadata={"refused": table(rows), "refused_samples": len(refused)},
        allow_retries=any(outcome.status == "failed" for outcome in refused),
    )


def _observed_sources(
    instance: DagsterInstance, dataset: DeclaredDataset, sample_ids: Sequence[str]
) -> dict[str, tuple[str, int]]:
    """Version and storage id of the latest observation of each sample's source, as they are before the conversion."""
    key, found = dataset.key("source_samples"), {}
    for sample_id in sample_ids:
        record = instance.get_latest_data_version_record(key, is_source=True, partition_key=sample_id)
        if record is not None:
            found[sample_id] = ((record.event_log_entry.tags or {}).get(DATA_VERSION, ""), record.storage_id)
    return found


def _versions(dataset: DeclaredDataset, entry: SampleEntry, source: tuple[str, int] | None) -> dict[str, str]:
    """Tags by which Dagster tells whether a sample is stale; it sets them itself only on what an op returns."""
    tags = {"dagster/code_version": dataset.code_version, DATA_VERSION: entry.relpath.rsplit("/", 1)[-1]}
    if source is not None:
        key = dataset.key("source_samples").to_user_string()
        tags[f"dagster/input_data_version/{key}"] = source[0]
        tags[f"dagster/input_event_pointer/{key}"] = str(source[1])
    return tags


def _numbers(outcome: SampleOutcome, entry: SampleEntry, recorded: dict[str, Any]) -> dict[str, Any]:
    """Numbers that the UI draws over the samples: size, speed, and the extremes of the values, where outliers show."""
    sizes = {field: info["size"] for field, info in recorded["source"]["files"].items()}
    numbers: dict[str, Any] = {
        "status": outcome.status,
        "group": entry.relpath,
        "points": sum(grid.n_points for grid in entry.domains.values()),
        **{f"points/{domain}": grid.n_points for domain, grid in entry.domains.items()},
        "bytes_in": sum(sizes.values()),
        "bytes_out": entry.bytes,
        "stored_share": round(entry.bytes / sum(sizes.values()), 4),
        **{f"parameters/{name}": short(value) for name, value in recorded["parameters"].items()},
    }
    if outcome.status == "converted":
        numbers["seconds"] = round(outcome.seconds, 3)
    rows = []
    for field, moments in recorded["moments"].items():
        low, mean, high = min(moments["min"]), sum(moments["mean"]) / len(moments["mean"]), max(moments["max"])
        stored = recorded["stored_bytes"][field]
        rows.append({"field": field, "min": low, "mean": mean, "max": high, "source": sizes[field], "stored": stored})
        if len(moments["mean"]) == 1:
            numbers |= {f"values/{field} mean": short(mean), f"values/{field} min": low, f"values/{field} max": high}
    return {**numbers, "fields": table(rows)}
