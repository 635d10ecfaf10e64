"""Assets that are made from what was published: anew with each generation, if its checks passed."""

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from assets.conditions import follow_what_was_published
from assets.declaration import Declaration


def derived_asset(
    declared: Declaration, name: str, upstream: str, description: str, metadata: Mapping[str, Any], kinds: set[str]
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Decorator of the function that makes such an asset.

    Args:
        declared: the dataset.
        name: of the asset, among those of the dataset.
        upstream: name of the asset that it is made from.
        description, metadata, kinds: as of any asset.
    """
    return dg.asset(
        key=declared.key(name),
        group_name=declared.name,
        deps=[declared.key(upstream)],
        automation_condition=follow_what_was_published(),
        code_version="1",
        description=description,
        metadata=metadata,
        kinds=kinds,
    )
