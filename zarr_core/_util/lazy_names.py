"""Names of a package that are imported on first use, so that the import of the package costs little."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def find(package: str, name: str, homes: Mapping[str, str]) -> Any:
    """What a package calls by a name, from the module that defines it: for ``__getattr__`` of the package."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(importlib.import_module(homes[name]), name)
