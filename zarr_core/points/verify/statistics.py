"""Verification of the recorded statistics of generations, against the moments of their samples."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Set
from typing import Any

import numpy as np

from zarr_core._util.commands import shell
from zarr_core._util.documents import parse_yaml
from zarr_core.errors import ZarrCoreError
from zarr_core.format.object_names import (
    ALL_SAMPLES,
    STATISTICS_JSON,
    STATISTICS_YAML,
    statistics_folder,
    statistics_name,
)
from zarr_core.points.statistics import SampleMoments, recorded_statistics
from zarr_core.points.statistics_files import training_split
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.storage import Storage

# Of the largest value of a field. The standard deviation of equal values is the root of a rounding error.
_TOLERANCE = 1e-6
# Statistics that are written again from a damaged record contain the damage.
_FIRST = (
    "first compare the samples with their source (--source, and --dataset-kind for parameters), and convert one whose "
    "record is damaged with --force; else"
)


class StatisticsCheck:
    """Compares the files of statistics of a store with what the moments of its samples give."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, SampleMoments | None] = {}

    def problems(self, manifest: StoreManifest, is_current: bool) -> Iterator[str]:
        """The problems of a generation's files, and of their copy beside the manifest if it is the current one.

        A copy of a store has the statistics of its source, which may have other samples: nothing is compared.
        """
        if manifest.origin or not manifest.generation:
            return
        folder = statistics_folder(manifest.generation)
        recorded = set(self._storage.list(folder))
        files = {name: name.removeprefix(f"{folder}/").rpartition(".")[0] for name in recorded}
        training = training_split(manifest)
        if is_current and f"{statistics_name(manifest.generation, training)}.yaml" in recorded:
            files |= dict.fromkeys((STATISTICS_YAML, STATISTICS_JSON), training or ALL_SAMPLES)
        fields = manifest.fields.keys()
        for named in sorted(set(files.values()) & {ALL_SAMPLES, *manifest.splits}):
            split = None if named == ALL_SAMPLES else named
            expected = self._expected(manifest, split)
            if expected is None:
                continue
            options = ["--split", split] if split else []
            command = shell("statistics", self._storage.url, *options, "--generation", manifest.generation)
            for name in sorted(files):
                if files[name] == named:
                    yield from self._compared(name, expected, fields, f"write it again with `{command}`")

    def _expected(self, manifest: StoreManifest, split: str | None) -> dict[str, Any] | None:
        """What the moments give; None if they are not recorded, or cannot be read, as the check of a sample reports."""
        try:
            with warnings.catch_warnings(action="ignore"):  # of parameters that differ in their components
                return recorded_statistics(self._storage, manifest, split, self._known)
        except (ZarrCoreError, OSError):
            return None

    def _compared(self, name: str, expected: dict[str, Any], fields: Set[str], way_out: str) -> Iterator[str]:
        try:
            data = self._storage.read(name)
            given = json.loads(data) if name.endswith(".json") else parse_yaml(data)
        except FileNotFoundError:
            return  # a copy beside the manifest that nobody has written
        except ValueError as error:
            yield f"{name} cannot be parsed ({error}); {way_out}"
            return
        if not isinstance(given, dict):
            yield f"{name} is not a mapping; {way_out}"
            return
        recorded = {_field_of(key) for key in given}
        for key, value in expected.items():
            if _field_of(key) not in recorded | fields:
                continue  # of a parameter, by an earlier version
            if key not in given:
                yield f"{name} has no {key}; {way_out}"
            elif not _is_close(given[key], value, _largest(key, expected)):
                yield f"{name}: {key} is {given[key]}, but the moments of the samples give {value}; {_FIRST}, {way_out}"


def _field_of(key: str) -> str:
    """The field or parameter that a key of statistics belongs to."""
    return str(key).rpartition("_")[0].removesuffix("_logscale")


def _largest(key: str, statistics: dict[str, Any]) -> Any:
    """The largest magnitude of the values of a field, by component."""
    field = _field_of(key)
    extremes = [statistics[f"{field}_{name}"] for name in ("min", "max")] if f"{field}_min" in statistics else [1.0]
    return np.abs(np.array(extremes)).max(axis=0)


def _is_close(given: Any, expected: Any, largest: Any) -> bool:
    try:
        found, numbers = np.array(given, dtype=float), np.array(expected, dtype=float)
    except (TypeError, ValueError):
        return False
    if found.shape != numbers.shape:
        return False
    return bool((np.abs(found - numbers) <= _TOLERANCE * (largest + np.abs(numbers))).all())
