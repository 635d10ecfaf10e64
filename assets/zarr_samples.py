"""Converted samples: one Zarr group each, written by a pool of processes, a batch of samples a run."""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import dagster as dg
import numpy as np
import zarr

from assets.conditions import convert_when_needed
from assets.pictures import silhouette
from assets.tables import short, table
from resources.dataset import DeclaredDataset
from resources.pools import ConversionPool
from resources.source_watch import latest_observations, version_tags
from resources.stores import StoreAccess
from zarr_core.points.convert import ConversionResult, iter_convert
from zarr_core.points.manifest import SampleEntry, StoreManifest
from zarr_core.storage.zarr_stores import make_store

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
        sources = latest_observations(context.instance, dataset, context.partition_keys)
        reader = EntryReader(stores, dataset)
        refused: list[ConversionResult] = []
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
                        tags=version_tags(
                            dataset,
                            dataset.code_version,
                            entry.relpath.rsplit("/", 1)[-1],
                            sources.get(outcome.sample_id),
                        ),
                    )
        # The source does not hold these samples any more: the sensor will remove their partitions.
        refused += [ConversionResult(i, "failed", reason="no longer at the source") for i in sorted(waiting)]
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

    def entry(self, outcome: ConversionResult) -> SampleEntry | None:
        """Where the sample's group is; None where there is none for its present source."""
        if outcome.status == "up to date":
            return self._manifest.samples[outcome.sample_id]
        return outcome.written.entry if outcome.written else None

    def metadata(self, outcome: ConversionResult, entry: SampleEntry) -> dict[str, Any]:
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


def failure(refused: Sequence[ConversionResult], of: int) -> dg.Failure:
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


def _numbers(outcome: ConversionResult, entry: SampleEntry, recorded: dict[str, Any]) -> dict[str, Any]:
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
