"""Import of numcodecs that survives a broken optional codec package.

numcodecs 0.16 and 0.17 skip an optional package that is missing, but not one that fails otherwise: with zfpy
1.0.1.post0 installed, ``import numcodecs`` raises ValueError. Modules that import zarr import this one first, because
zarr imports numcodecs.
"""

from __future__ import annotations

import importlib
import sys
import traceback
import warnings
from types import ModuleType
from typing import Any

_OPTIONAL = {f"numcodecs.{name}" for name in ("zfpy", "msgpacks", "pcodec")}


def _import_numcodecs() -> ModuleType:
    try:
        return importlib.import_module("numcodecs")
    except ImportError:
        raise
    except Exception as error:
        frames = traceback.walk_tb(error.__traceback__)
        broken = _OPTIONAL.intersection(frame.f_globals.get("__name__") for frame, _ in frames)
        if not broken:
            raise
        for name in broken:
            warnings.warn(f"{name} is not available, because importing it failed: {error}", stacklevel=2)
            sys.modules[name] = None  # type: ignore[assignment]  # makes its import an ImportError, which numcodecs skips
    numcodecs = _import_numcodecs()
    for name, module in list(sys.modules.items()):  # the first attempt set these attributes on a discarded module
        if name.startswith("numcodecs.") and module is not None and name.count(".") == 1:
            setattr(numcodecs, name.partition(".")[2], module)
    return numcodecs


_numcodecs: Any = _import_numcodecs()
Blosc, Zstd, blosc = _numcodecs.Blosc, _numcodecs.Zstd, _numcodecs.blosc
