"""Assets that are made from what was published: anew with each generation, if its checks passed."""

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg
from zarr_core.platform.assets.conditions import follow_what_was_published
from zarr_core.platform.assets.declaration import Declaration


def derived_asset(
    declared: Declaration, upstream: str, metadata: Mapping[str, Any], kinds: set[str], way_out: str
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Decorator of the function that makes such an asset: its name is that of the asset, its docstring describes it.

    Args:
        declared: the dataset.
        upstream: name of the asset that it is made from.
        metadata, kinds: as of any asset.
        way_out: end of the description, see :func:`if_red`.
    """

    def decorate(make: Callable[..., Any]) -> dg.AssetsDefinition:
        return dg.asset(
            key=declared.key(make.__name__),
            group_name=declared.name,
            deps=[declared.key(upstream)],
            automation_condition=follow_what_was_published(),
            code_version="1",
            description=" ".join(str(make.__doc__).split()) + way_out,
            metadata=metadata,
            kinds=kinds,
        )(make)

    return decorate
