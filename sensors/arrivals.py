"""Looks at a dataset's source now and then and tells Dagster which samples are new, changed or gone."""

from collections.abc import Sequence

import dagster as dg

from resources.dataset import DeclaredDataset
from resources.source_watch import (
    Arrivals,
    Look,
    Unsettled,
    Watched,
    compare,
    known_lists,
    known_samples,
    listing_observation,
    make_neighbours,
    observations,
    take_look,
)
from resources.stores import StoreAccess


def arrivals_sensor(dataset: DeclaredDataset) -> dg.SensorDefinition:
    """The sensor that watches one dataset's source.

    It registers partitions and reports observations, and starts no run: what is converted when is for the automation
    conditions to say, which see a thousand arrivals as one batch.
    """

    @dg.sensor(
        name=f"{dataset.name}_arrivals",
        minimum_interval_seconds=dataset.look_every_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Registers samples that arrive, change or vanish at {dataset.shown_source}.",
    )
    def arrivals(context: dg.SensorEvaluationContext, stores: StoreAccess) -> dg.SensorResult:
        look = take_look(stores.source(dataset), dataset.splits)
        known = known_samples(context.instance, dataset)
        news = compare(look, known, Unsettled.from_cursor(context.cursor))
        listing = []
        holds_samples = len(known) + len(news.new) > len(news.vanished)
        # Before there is a sample, nothing downstream could follow a change of the listing.
        if news.vanished or (holds_samples and look.lists != known_lists(context.instance, dataset)):
            listing = [listing_observation(dataset, look)]
        return tell(context, dataset, look, news, listing)

    return arrivals


def tell(
    context: dg.SensorEvaluationContext,
    watched: Watched,
    look: Look,
    news: Arrivals,
    more_events: Sequence[dg.AssetObservation] = (),
    what: str = "samples",
) -> dg.SensorResult:
    """What a sensor returns after a look: partitions and observations."""
    make_neighbours(context.instance, watched, news.changed)
    events = [*observations(watched, look, news), *more_events]
    said = describe(look, news, what)
    context.log.info(said)
    return dg.SensorResult(
        dynamic_partitions_requests=partition_requests(watched, news),
        asset_events=events,
        cursor=news.unsettled.to_cursor(),
        skip_reason=None if events else said,
    )


def partition_requests(
    watched: Watched, news: Arrivals
) -> list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest]:
    """Partitions to add and to delete."""
    requests: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
    if news.new:
        requests.append(dg.AddDynamicPartitionsRequest(watched.partitions_name, list(news.new)))
    if news.vanished:
        requests.append(dg.DeleteDynamicPartitionsRequest(watched.partitions_name, list(news.vanished)))
    return requests


def describe(look: Look, news: Arrivals, what: str) -> str:
    """One line for the sensor's page."""
    parts = [f"{len(look.samples)} complete {what}"]
    for word, ids in (("new", news.new), ("changed", news.changed), ("vanished", news.vanished)):
        if ids:
            parts.append(f"{len(ids)} {word} ({_some(ids)})")
    if news.unsettled.seen_once:
        parts.append(f"{len(news.unsettled.seen_once)} wait for a second look")
    if news.unsettled.gone_once:
        parts.append(f"{len(news.unsettled.gone_once)} not found, will look again")
    if look.incomplete:
        sample_id, missing = next(iter(sorted(look.incomplete.items())))
        parts.append(f"{len(look.incomplete)} incomplete ({sample_id} lacks {_some(missing)})")
    return ", ".join(parts)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
