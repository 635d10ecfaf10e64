"""The Dagster platform: component types for ``defs.yaml``, and the definitions of a project.

Its code lies in ``assets``, ``resources`` and ``sensors``: at the top of a checkout, and in this folder once installed.
In both cases it is imported as ``zarr_core.platform.assets``, so that it takes these names from nobody.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zarr_core._util import lazy_names

_HERE = Path(__file__).parent
#: The folder that has ``assets``, ``resources``, ``sensors`` and ``deploy``.
ROOT = _HERE if (_HERE / "assets").is_dir() else _HERE.parents[1]
if ROOT != _HERE:
    __path__.append(str(ROOT))

_HOMES = {
    "PointDataset": "zarr_core.platform.assets.component",
    "WarehouseMatrix": "zarr_core.platform.assets.wide_matrix",
    "project_definitions": "zarr_core.platform.assets.project",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES and not _has_dagster():
        raise ImportError(f"{__name__}.{name} needs Dagster: pip install 'zarr-core[platform]'")
    return lazy_names.find(__name__, name, _HOMES)


def __dir__() -> list[str]:
    # dg lists what this names, in every environment that has both.
    return sorted({*globals(), *(__all__ if _has_dagster() else ())})


def _has_dagster() -> bool:
    return find_spec("dagster") is not None
