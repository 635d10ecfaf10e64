"""Opens an engine by its name, with the options that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from zarr_core.errors import ZarrCoreError
from zarr_core.points.read.engines import ENGINES, Engine
from zarr_core.storage.disk_cache import DiskCache

if TYPE_CHECKING:
    from zarr.abc.store import Store

    from zarr_core.storage.byte_ranges import Objects


def open_engine(
    name: str,
    root: str,
    store_factory: Callable[[str], Store] | None,
    objects_factory: Callable[[str], Objects] | None,
    read_concurrency: int,
    cache: DiskCache | None,
    cache_bytes: int | None,
) -> Engine:
    """The engine of a reader; see :class:`zarr_core.points.read.reader.ZarrChunkReader` for the options.

    Raises:
        ZarrCoreError: there is no such engine, or it does not have an option that is given.
    """
    if name not in ENGINES:
        raise ZarrCoreError(f"no engine {name!r}; use one of {', '.join(ENGINES)}")
    options = {
        "store_factory": (store_factory, "zarr"),
        "objects_factory": (objects_factory, "direct"),
        "cache_dir": (cache, "direct"),
        "cache_bytes": (cache_bytes, "direct"),
    }
    for option, (value, engine) in options.items():
        if value and name != engine:
            raise ZarrCoreError(f"{option} is for the engine {engine!r}, not {name!r}")
    # Imported on use: the direct engine does not need zarr-python, and neither needs TensorStore.
    if name == "tensorstore":
        from zarr_core.points.read.engines.tensorstore import TensorStoreEngine

        return TensorStoreEngine(root)
    if name == "zarr":
        from zarr_core.points.read.engines.reference import ZarrEngine

        return ZarrEngine(root, store_factory, read_concurrency)
    from zarr_core.points.read.engines.direct import DirectEngine

    return DirectEngine(root, objects_factory, cache, cache_bytes)
