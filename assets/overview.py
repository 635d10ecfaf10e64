"""The overview of a dataset in the UI; the sensor of its source records it."""

import dagster as dg
from zarr_core.platform.assets.declaration import Declaration
from zarr_core.platform.sensors.operating import page_of
from zarr_core.platform.sensors.overview import NAME


def overview_asset(declared: Declaration) -> dg.AssetSpec:
    """An asset that no run makes and nothing follows: its latest materialization is the state of the dataset."""
    return dg.AssetSpec(
        declared.key(NAME),
        group_name=declared.name,
        description=f"How far {declared.name} is: what arrived, was converted, refused, is stale, published and "
        "verified, which checks fail, why, and what to do. The sensor of the source records it when it changes, "
        "and at most every ten minutes during conversions. While that sensor fails, this stays as it was: "
        f"`failing_sensors` has the reason. See `{page_of('the-overview-of-a-dataset')}`.",
    )
