"""The samples that a source holds, as Dagster knows them: one partition each, the fingerprint as data version."""

import time
from collections.abc import Callable

import dagster as dg

from resources.dataset import DeclaredDataset
from resources.source_watch import (
    Look,
    Unsettled,
    Watched,
    compare,
    known_samples,
    listing_observation,
    make_neighbours,
    observations,
    take_look,
)
from resources.stores import StoreAccess

# Between the two looks of an observation by hand: a file that is being copied grows within this time.
SETTLE_SECONDS = 1.0


def source_samples_asset(dataset: DeclaredDataset) -> dg.SourceAsset:
    """Observing it looks at the source at once, for whoever does not want to wait for the sensor."""

    @dg.observable_source_asset(
        key=dataset.key("source_samples"),
        group_name=dataset.name,
        partitions_def=dataset.samples,
        description=f"One folder of `.pt` files per sample at `{dataset.shown_source}`. The sensor "
        f"`{dataset.name}_arrivals` registers what arrives; *Observe* looks at once.",
        metadata={"kind": dataset.kind, "source": dataset.shown_source, **_files(dataset)},
        tags={"dagster/kind/pytorch": "", "dagster/kind/source": ""},
    )
    def source_samples(context: dg.OpExecutionContext, stores: StoreAccess) -> dg.DataVersionsByPartition:
        tree = stores.source(dataset)
        return observe_now(context, dataset, lambda: take_look(tree, dataset.splits))

    return source_samples


def observe_now(
    context: dg.OpExecutionContext, watched: Watched, look_once: Callable[[], Look], what: str = "samples"
) -> dg.DataVersionsByPartition:
    """Look twice, and tell Dagster at once what it did not know.

    The events are logged here, with metadata, rather than returned: what did not change needs none.
    """
    known = known_samples(context.instance, watched)
    before = compare(look_once(), known, Unsettled()).unsettled
    time.sleep(SETTLE_SECONDS)
    look = look_once()
    news = compare(look, known, before)
    make_neighbours(context.instance, watched, news.changed)
    context.instance.add_dynamic_partitions(watched.partitions_name, list(news.new))
    for event in observations(watched, look, news):
        context.log_event(event)
    for sample_id in news.vanished:
        context.instance.delete_dynamic_partition(watched.partitions_name, sample_id)
    context.log.info(
        f"{len(look.samples)} complete {what}: {len(news.new)} new, {len(news.changed)} changed, "
        f"{len(news.vanished)} vanished; {len(look.incomplete)} incomplete"
    )
    return dg.DataVersionsByPartition({})


def source_listing_asset(dataset: DeclaredDataset) -> dg.SourceAsset:
    """What the source says beyond its samples' files: which there are, and who is in which split."""

    @dg.observable_source_asset(
        key=dataset.key("source_listing"),
        group_name=dataset.name,
        description="Which samples the source lists, its split files and blacklists. It changes when a sample vanishes "
        "or a list is edited, and the manifest follows.",
        metadata={"source": dataset.shown_source},
        tags={"dagster/kind/source": ""},
    )
    def source_listing(context: dg.OpExecutionContext, stores: StoreAccess) -> dg.ObserveResult:
        event = listing_observation(dataset, take_look(stores.source(dataset), dataset.splits))
        return dg.ObserveResult(
            data_version=dg.DataVersion(event.data_version or ""),
            metadata=event.metadata,
            tags={name: value for name, value in (event.tags or {}).items() if not name.startswith("dagster/")},
        )

    return source_listing


def _files(dataset: DeclaredDataset) -> dict[str, dg.MetadataValue]:
    fields = dataset.description.fields
    rows = [dg.TableRecord({"field": name, "file": file.filename}) for name, file in fields.items()]
    return {"files": dg.MetadataValue.table(rows)}
