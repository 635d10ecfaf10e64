"""The job that begins a migration: it makes the declared settings those of the store.

It converts nothing itself. The automation then converts the samples in batches, between those that arrive.
"""

import dagster as dg
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.migration import CHECK, check_settings
from zarr_core.platform.sensors.observations import KnownItems
from zarr_core.platform.sensors.operating import if_red

from zarr_core.points.convert.publish import publish_finished
from zarr_core.points.store.settings import current_settings


def migration_job(dataset: DatasetDeclaration) -> dg.JobDefinition:
    """``<name>_migrate``."""

    @dg.op(name=f"begin_{dataset.migration_job}")
    def begin(context: dg.OpExecutionContext, stores: StoreAccess) -> None:
        manifest = stores.manifest_if_any(dataset.store)
        if manifest is None or not manifest.samples:
            context.log.info(f"{dataset.shown_store} holds no samples: they will be converted as declared")
            return
        listing = stores.listing(dataset.kind, dataset.source, dataset.splits)
        context.log.info(check_settings(KnownItems(context.instance, dataset), dataset, manifest, listing).description)
        held = current_settings(manifest)
        request = dataset.request(dataset.settings, held, reconvert=True)
        manifest = publish_finished(request, stores.found(dataset.kind, dataset.source)).manifest
        state = check_settings(KnownItems(context.instance, dataset), dataset, manifest, listing)
        context.log.info(f"generation {manifest.generation}: {state.description}")

    @dg.job(
        name=dataset.migration_job,
        description="Makes the declared settings those of the store. The automation then converts all samples again, "
        f"in batches; the check `{CHECK}` of `{dataset.published.to_user_string()}` shows how far it is. Readers see "
        "each sample as it was until its new version is published."
        + if_red("changed-settings", "read the last event of the run; nothing has changed if it failed"),
    )
    def migrate() -> None:
        begin()

    return migrate
