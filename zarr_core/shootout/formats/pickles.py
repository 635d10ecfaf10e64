"""Pickled samples, the usual way to cache Python objects."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zarr_core.shootout.formats.files import SampleFiles
from zarr_core.shootout.formats.samples import Samples


class _Arrays(pickle.Unpickler):
    """Loads nothing but NumPy arrays in plain containers: who can write to a tier must not run code here."""

    def find_class(self, module: str, name: str) -> Any:
        """Raises UnpicklingError for anything that no array needs."""
        if module.partition(".")[0] != "numpy" or name not in ("_frombuffer", "_reconstruct", "dtype", "ndarray"):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of an array")
        return super().find_class(module, name)


class Pickle(SampleFiles):
    """One file per sample: a dict of NumPy arrays."""

    def _write(self, samples: Samples, sample: str, folder: Path) -> None:
        (folder / f"{sample}.pkl").write_bytes(pickle.dumps(samples.arrays(sample), pickle.HIGHEST_PROTOCOL))

    def _arrays(self, sample: str) -> Mapping[str, Any]:
        found = self._files.open(f"{sample}.pkl")
        arrays: dict[str, Any] = _Arrays(io.BytesIO(found.read_bytes()) if isinstance(found, Path) else found).load()
        return arrays
