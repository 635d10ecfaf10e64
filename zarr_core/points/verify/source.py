"""Comparison of stored rows with the source files that they were made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util.documents import expect
from zarr_core.errors import ZarrCoreError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.moments import FieldMoments
from zarr_core.format.rounding import RoundingAccumulator, RoundingError
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.verify.report import SampleFindings
from zarr_core.sources.recorded import RecordedSample, RecordedSource

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class SourceFiles:
    """The source files of one sample. The conversion recorded which file holds which field."""

    sample: RecordedSample
    found: SampleFindings
    shuffle_seed: int
    permutations: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)

    @classmethod
    def find(
        cls, source: RecordedSource, found: SampleFindings, recorded: Mapping[str, Any], shuffle_seed: int
    ) -> SourceFiles | None:
        """The sample's files; None and a problem if they cannot be found. Raises DocumentError."""
        origin = expect(dict, recorded.get("source", {}), "source")
        if not origin.get("files"):
            found.add("", "cannot be compared: the files that it was made from were not recorded")
            return None
        sample = source.sample(found.sample_id, origin)
        if sample is None:
            found.add("", f"cannot be compared: its folder is no longer in {source.url}")
            return None
        seed = expect(int, recorded.get("shuffle_seed", shuffle_seed), "shuffle_seed")
        return cls(sample, found, seed)

    def rows(self, domain: str, name: str) -> Callable[[ArrayLayout], Comparison | None]:
        """A function that opens the comparison of a field, given the layout of its array."""
        return partial(self._comparison, domain, name)

    def _comparison(self, domain: str, name: str, layout: ArrayLayout) -> Comparison | None:
        file = self.sample.files.get(name)
        if file is None:
            self.found.add(name, "cannot be compared: the file that it was made from was not recorded")
            return None
        filename = file["name"]
        try:
            info = self.sample.file(name)
            values = _as_array(self.sample.load(name))
        except FileNotFoundError:
            self.found.add(name, f"cannot be compared: {filename} is no longer in the source")
            return None
        except (ValueError, OSError, ZarrCoreError) as error:
            self.found.add(name, f"cannot be compared: {filename}: {error}")
            return None
        changed = ""
        if info.size != file["size"]:
            changed = f"; {info.name} has changed since the conversion: {file['size']:,} bytes then, {info.size:,} now"
        elif info.version != file.get("version", info.version):
            changed = f"; {info.name} was written again since the conversion"
        if values.shape != (layout.n_points, layout.dim):
            stored = (layout.n_points, layout.dim)
            self.found.add(name, f"has shape {stored}, its source {values.shape}{changed}")
            return None
        key = (domain, layout.n_points)
        if key not in self.permutations:
            self.permutations.clear()  # keep one domain only: a permutation is as large as a field
            self.permutations[key] = shuffle_permutation(self.shuffle_seed, self.found.sample_id, *key)
        return Comparison(values, self.permutations[key], layout.dtype, changed)


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    """A field's tensor as (points, components)."""
    import torch

    # NumPy has no bfloat16; float32 holds each of its values.
    values = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return values[:, None] if values.ndim == 1 else values


@dataclass(eq=False)
class Comparison:
    """Compares the stored rows of one array with its source rows, block by block."""

    values: np.ndarray
    permutation: np.ndarray
    dtype: str
    changed: str
    n_rows: int = 0
    n_different: int = 0
    first: str = ""
    rounding: RoundingAccumulator = field(init=False)

    def __post_init__(self) -> None:
        self.rounding = RoundingAccumulator(self.values.shape[1])

    def compare(self, start: int, stored: np.ndarray) -> None:
        """Compare stored rows ``start, start + 1 ...`` with the source, cast to the stored dtype (round to nearest)."""
        rows = self.permutation[start : start + len(stored)]
        source = self.values[rows]
        with np.errstate(over="ignore", invalid="ignore"):
            expected = source.astype(self.dtype)
            wide = np.float32 if source.dtype == np.float32 else np.float64
            self.rounding.add(np.ascontiguousarray(stored), source.astype(wide) - stored)
        different = (stored != expected).any(axis=1)
        self.n_rows += len(stored)
        self.n_different += int(np.count_nonzero(different))
        if not self.first and different.any():
            at = int(np.argmax(different))
            values, source = stored[at].tolist(), expected[at].tolist()
            self.first = f"stored row {start + at} is {values}, source row {rows[at]} {source}"

    def rounding_problem(self, moments: FieldMoments, recorded: RoundingError | None) -> str:
        """What is wrong with the error that storing made, or "".

        Args:
            moments: of the stored values.
            recorded: the error that the conversion measured; None for a group of an older version.
        """
        error = self.rounding.result(moments.std)
        if error.lossy.any():
            error = error.without(self.values.max(axis=0) == self.values.min(axis=0))
        if error.lossy.any():
            return f"{self.dtype} has changed its values: {error.describe()}; convert it with another --field-dtype"
        if recorded is not None and error.exceeds(recorded):
            return f"its rounding error {error.to_json()} is larger than the recorded one, {recorded.to_json()}"
        return ""

    @property
    def message(self) -> str:
        """The differences in one line."""
        return f"{self.n_different:,} of {self.n_rows:,} rows differ from the source: {self.first}{self.changed}"
