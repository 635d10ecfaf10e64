"""Names of Dagster's tags and metadata.

Dagster sets the tags of data versions itself only on values that an op returns. The conversion assets report an event
per partition, so they have to set the same tags.
"""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

DATA_VERSION = "dagster/data_version"
CODE_VERSION = "dagster/code_version"
INPUT_DATA_VERSION = "dagster/input_data_version"
INPUT_EVENT_POINTER = "dagster/input_event_pointer"
NO_EVENT = "NULL"  # in place of a pointer
KIND = "dagster/kind/"
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
BACKFILL = "dagster/backfill"
# The metadata key that the UI shows as the number of rows of a table.
ROW_COUNT = "dagster/row_count"


def kind_tags(*kinds: str) -> dict[str, str]:
    """Tags that draw the icons of some kinds on an asset; ``observable_source_asset`` has no argument ``kinds``."""
    return {f"{KIND}{kind}": "" for kind in kinds}


def partition_range_tags(first: str, last: str) -> dict[str, str]:
    """Tags of a run over the partitions from the first to the last, as a backfill sets them."""
    return {RANGE_START: first, RANGE_END: last}


def version_tags(
    code_version: str, data_version: str, source: dg.AssetKey, observation: tuple[Mapping[str, str], int | None] | None
) -> dict[str, str]:
    """Tags of a materialization, by which Dagster decides whether the partition is stale.

    Args:
        code_version: of the asset.
        data_version: of the result.
        source: asset that the result was made from.
        observation: of the source, as :func:`latest_observation` returns it; without a storage id if it is reported
            together with the materialization. Dagster then shows no later change of the source as stale.
    """
    tags = {CODE_VERSION: code_version, DATA_VERSION: data_version}
    if observation is not None:
        observed, storage_id = observation
        name = source.to_user_string()
        tags |= {
            f"{INPUT_DATA_VERSION}/{name}": observed.get(DATA_VERSION, ""),
            f"{INPUT_EVENT_POINTER}/{name}": NO_EVENT if storage_id is None else str(storage_id),
        }
    return tags
