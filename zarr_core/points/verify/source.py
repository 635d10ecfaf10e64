"""Comparison of stored rows with the source files that they were made from.

The order of a sample's points is known from its seed. Another program may have stored them in any order: then the rows
of a domain, each with the values of all its fields, are compared as a multiset.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zarr_core._util.documents import expect, to_json
from zarr_core.errors import SampleError, SourceError, ZarrCoreError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.bounds import to_multiples
from zarr_core.format.moments import FieldMoments
from zarr_core.format.rounding import RoundingAccumulator, RoundingError
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.points.verify.report import SampleFindings
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.recorded import RecordedSample, record
from zarr_core.sources.resolve import short_name
from zarr_core.sources.sample import SourceSample
from zarr_core.sources.survey import survey
from zarr_core.sources.tree import SampleTree
from zarr_core.storage import Storage

if TYPE_CHECKING:
    import torch


class Item(NamedTuple):
    """A sample to check, as the manifest and, with a source, a conversion would find it; None if it would not."""

    sample_id: str
    entry: SampleEntry
    at_source: SourceSample | None = None


class SourceFiles:
    """The source files of one sample, and the comparisons of the domain that is read.

    Args:
        sample: the files. The conversion recorded which of them holds which field; for a sample of another program,
            that was listed.
        found: gets the problems.
        shuffle_seed: seed of the stored order; None if the order is not known.
    """

    def __init__(self, sample: RecordedSample, found: SampleFindings, shuffle_seed: int | None) -> None:
        self._sample, self._found, self._shuffle_seed = sample, found, shuffle_seed
        # By domain and points; by field, if the order is not known.
        self._permutations: dict[tuple[str, int], np.ndarray] = {}
        self._unordered: dict[str, UnorderedComparison] = {}

    @classmethod
    def find(
        cls,
        source: ComparedSource,
        item: Item,
        recorded: Mapping[str, Any],
        shuffle_seed: int,
        found: SampleFindings,
    ) -> SourceFiles | None:
        """The sample's files; None and a problem if they cannot be found. Raises DocumentError.

        What a conversion has recorded of them is used, or for a sample of another program, what one would record now.
        """
        found.any_order = not item.entry.is_ours and not recorded
        origin = recorded.get("source", {})
        if found.any_order:
            origin = {} if item.at_source is None else record(item.at_source)
        if not expect(dict, origin, "source").get("files"):
            where = "were not recorded, as by write_sample; without --source, its checksums are compared"
            if found.any_order:
                where = f"are not in {source.files.url}"
            found.add("", f"cannot be compared: the files that it was made from {where}", damage=False)
            return None
        sample = RecordedSample.find(source.files, found.sample_id, origin)
        if sample is None:
            found.add("", f"cannot be compared: its folder is no longer in {source.files.url}", damage=False)
            return None
        seed = expect(int, recorded.get("shuffle_seed", shuffle_seed), "shuffle_seed")
        return cls(sample, found, None if found.any_order else seed)

    def compare(self, domain: str, name: str, layout: ArrayLayout, n_points: int) -> Comparison | None:
        """Open the comparison of a field by its canonical name; None and a problem if that is not possible.

        ``n_points`` are those of the source: more than the array has in a copy with the first points only.
        """
        file = self._sample.files.get(name)
        if file is None:
            self._found.add(name, "cannot be compared: the file that it was made from was not recorded", damage=False)
            return None
        filename = file["name"]
        try:
            info = self._sample.file(name)
            values = _as_array(self._sample.load(name))
        except FileNotFoundError:
            self._found.add(name, f"cannot be compared: {filename} is no longer in the source", damage=False)
            return None
        except (ValueError, OSError, ZarrCoreError) as error:
            self._found.add(name, f"cannot be compared: {filename}: {error}", damage=False)
            return None
        changed = ""
        if info.size != file["size"]:
            changed = f"; {info.name} has changed since the conversion: {file['size']:,} bytes then, {info.size:,} now"
        elif info.version != file.get("version", info.version):
            changed = f"; {info.name} was written again since the conversion"
        if values.shape != (n_points, layout.dim):
            stored = (n_points, layout.dim)
            self._found.add(name, f"has shape {stored}, its source {values.shape}{changed}")
            return None
        if self._shuffle_seed is None:
            self._unordered[name] = UnorderedComparison(values, layout, changed)
            return self._unordered[name]
        key = (domain, n_points)
        if key not in self._permutations:
            self._permutations.clear()  # keep one domain only: a permutation is as large as a field
            self._permutations[key] = shuffle_permutation(self._shuffle_seed, self._found.sample_id, *key)
        return Comparison(values, self._permutations[key], layout, changed)

    def check_rows(self, domain: str) -> None:
        """Compare the rows of a domain whose order is not known, after all its arrays were read."""
        comparisons = {name: each for name, each in self._unordered.items() if each.n_rows == len(each.expected)}
        self._unordered.clear()
        missing = _missing_rows(list(comparisons.values())) if comparisons else ""
        if not missing:
            return
        is_explained = False
        for name, comparison in comparisons.items():
            missing_of_field = _missing_rows([comparison])
            if missing_of_field:
                self._found.add(name, f"{missing_of_field}{comparison.changed}")
                is_explained = True
        if not is_explained:
            self._found.add(
                "", f"{domain}: its fields are not aligned: {missing}, though each field is equal by itself"
            )


@dataclass(frozen=True)
class ComparedSource:
    """The source that the samples of a store are compared with.

    Attributes:
        files: where its files are. The conversion recorded which of them holds which field.
        tree: reads the parameters; None if the kind of the source is not known.
        found: samples that a conversion would find there now, by id: those of ``tree``, and if another program wrote
            samples of the store, those that it may have written.
    """

    files: Storage
    tree: SampleTree | None = None
    found: Mapping[str, SourceSample] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        source: str,
        manifest: StoreManifest,
        dataset_kind: str | SourceDescription | None = None,
        sample_ids: Collection[str] | None = None,
    ) -> ComparedSource:
        """List the source, if its kind is known, or a sample of the store was written by another program.

        The kind is by default that of the store, if it comes with the library.

        Raises:
            SourceError: the source is not a folder; its kind is neither given nor guessed.
        """
        storage = Storage(source)
        if storage.is_local and not os.path.isdir(storage.location):
            raise SourceError(f"{storage.url} is not a folder; name the one that holds the samples now")
        are_ours = all(entry.is_ours for entry in manifest.samples.values())
        kind = dataset_kind
        if kind is None and are_ours and short_name(manifest.dataset_kind) == manifest.dataset_kind:
            kind = manifest.dataset_kind
        if kind is not None:
            tree = SampleTree(kind, source)
            return cls(storage, tree, tree.discover(sample_ids))
        if are_ours:
            return cls(storage)
        try:
            return cls(storage, found=survey(source).found)
        except SourceError as error:
            reason = "another program wrote the store, and the kind of its source cannot be guessed"
            raise SourceError(f"{error}: {reason}; give --dataset-kind (dataset_kind=)") from error

    def compare_parameters(
        self, recorded: Mapping[str, Any], sample: SourceSample | None, found: SampleFindings
    ) -> None:
        """Add the recorded parameters of a sample that are not those of its source now to the findings."""
        stored = expect(dict, recorded.get("parameters", {}), "parameters")
        if self.tree is None or sample is None:
            found.parameters = False if stored else None
            return
        try:
            source = json.loads(to_json(self.tree.load_parameters(sample)))
        except SampleError as error:
            found.add("", f"its parameters cannot be compared: {error.explanation}", damage=False)
            return
        found.parameters = True if stored or source else None
        for name in sorted(stored.keys() | source.keys()):
            if name not in stored:
                found.add("", f"parameter {name!r} is missing; its source has {source[name]!r:.200}")
            elif name not in source:
                found.add("", f"parameter {name!r} is {stored[name]!r:.200}; its source has none")
            elif stored[name] != source[name]:
                found.add("", f"parameter {name!r} is {stored[name]!r:.200}, that of its source {source[name]!r:.200}")


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    """A field's tensor as (points, components)."""
    import torch

    # NumPy has no bfloat16; float32 holds each of its values.
    values = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return values[:, None] if values.ndim == 1 else values


class Comparison:
    """Compares the stored rows of one array with its source rows, block by block."""

    def __init__(self, values: np.ndarray, permutation: np.ndarray, layout: ArrayLayout, changed: str) -> None:
        self.values, self.permutation, self.layout, self.changed = values, permutation, layout, changed
        self.n_rows = self.n_different = 0
        self.first = ""
        self.rounding = RoundingAccumulator(values.shape[1])

    def compare(self, start: int, stored: np.ndarray) -> None:
        """Compare stored rows ``start, start + 1 ...`` with the source, cast to the stored dtype (round to nearest)."""
        rows = self.permutation[start : start + len(stored)]
        expected = self.cast(self.values[rows])
        different = (stored != expected).any(axis=1)
        self.n_rows += len(stored)
        self.n_different += int(np.count_nonzero(different))
        if not self.first and different.any():
            at = int(np.argmax(different))
            values, source = stored[at].tolist(), expected[at].tolist()
            self.first = f"stored row {start + at} is {values}, source row {rows[at]} {source}"

    def cast(self, source: np.ndarray) -> np.ndarray:
        """Source rows in the stored dtype; adds their rounding error."""
        with np.errstate(over="ignore", invalid="ignore"):
            expected = source.astype(self.layout.dtype)
            if self.layout.codec.scale is not None:
                to_multiples(expected, self.layout.codec.scale)
            wide = np.float32 if source.dtype == np.float32 else np.float64
            self.rounding.add(np.ascontiguousarray(expected), source.astype(wide) - expected)
        return expected

    def rounding_problem(self, moments: FieldMoments, recorded: RoundingError | None) -> str:
        """What is wrong with the error that storing made, or ""; groups of older versions have recorded none."""
        error = self.rounding.result(moments.std)
        bound = self.layout.max_error
        if bound is not None:
            largest = self.rounding.largest
            return "" if largest <= bound else f"its largest error {largest:.6g} exceeds its error bound {bound:.6g}"
        if error.lossy.any():
            error = error.without(self.values.max(axis=0) == self.values.min(axis=0))
        if error.lossy.any():
            return (
                f"{self.layout.dtype} has changed its values: {error.describe()}; convert it with another --field-dtype"
            )
        if recorded is not None and error.exceeds(recorded):
            return f"its rounding error {error.to_json()} is larger than the recorded one, {recorded.to_json()}"
        return ""


class UnorderedComparison(Comparison):
    """Collects the stored rows of one array whose order is not known; :meth:`SourceFiles.check_rows` compares them."""

    def __init__(self, values: np.ndarray, layout: ArrayLayout, changed: str) -> None:
        super().__init__(values, np.empty(0, np.int64), layout, changed)
        self.expected = self.cast(values)
        self.stored = np.empty_like(self.expected)

    def compare(self, start: int, stored: np.ndarray) -> None:
        """Keep the rows."""
        self.stored[start : start + len(stored)] = stored
        self.n_rows += len(stored)

    def rounding_problem(self, moments: FieldMoments, recorded: RoundingError | None) -> str:
        """As for an array whose order is known; then the source's own values are not needed any more."""
        problem = super().rounding_problem(moments, recorded)
        self.values = self.values[:0].copy()
        return problem


def _rows(arrays: list[np.ndarray]) -> np.ndarray:
    """Each point's values of all arrays as one byte string, so that rows can be sorted and compared."""
    # A sum with 0 makes 0 of -0, which is equal to it.
    parts = [np.add(array, 0, dtype=array.dtype).view(np.uint8) for array in arrays]
    joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    return joined.view(f"S{joined.shape[1]}")[:, 0]


def _missing_rows(comparisons: list[UnorderedComparison]) -> str:
    """How many stored points, with all their fields, are not those of the source, and one of them; "" if none is."""
    rows = _rows([each.stored for each in comparisons])
    stored, expected = np.sort(rows), np.sort(_rows([each.expected for each in comparisons]))
    if np.array_equal(stored, expected):
        return ""
    # A row that is stored for the n-th time must be in the source n times.
    times = np.arange(len(stored)) - np.searchsorted(stored, stored, "left")
    missing = stored[times >= np.searchsorted(expected, stored, "right") - np.searchsorted(expected, stored, "left")]
    at = int(np.argmax(rows == missing[0]))
    values = ", ".join(str(each.stored[at].tolist()) for each in comparisons)
    return f"{len(missing):,} of {len(rows):,} rows are not in the source, in any order: stored row {at} is {values}"
