"""The item that a user asks for: parameters and ids beside the fields, under any keys, changed by any function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zarr_core._util.cached import cached_property
from zarr_core._util.documents import expect
from zarr_core._util.redaction import redact
from zarr_core.datasets.batch import Batch, BatchItem, Drawn
from zarr_core.datasets.config import StoreDatasetConfig
from zarr_core.datasets.normalizers import GEOMETRY_POSITION, Normalizers
from zarr_core.errors import SourceError, UnknownFieldError, ZarrCoreError
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.group import recorded_numbers
from zarr_core.sources.resolve import import_dotted

INDEX = "index"
SAMPLE_ID = "sample_id"


class Items:
    """Makes items and batches of the values of the point fields that are read, as the config says.

    Values of a batch have one axis more than those of an item: the items.
    """

    def __init__(
        self, config: StoreDatasetConfig, reader: ZarrChunkReader, fields: Sequence[str], normalizers: Normalizers
    ) -> None:
        self._reader = reader
        self._fields = frozenset(fields)
        self._normalizers = normalizers
        self._parameters = config.parameters
        self._as_stored = config.dtype == "stored"
        self._keys = config.item
        self._transform = _function("transform", config.transform)
        self._batch_transform = _function("batch_transform", config.batch_transform)
        self._collate = config.collate
        named = set(config.item_names)
        self._with_index = config.with_index or INDEX in named
        self._with_sample_id = config.with_sample_id or SAMPLE_ID in named
        known = {*fields, *config.parameters, INDEX, SAMPLE_ID}
        for name in config.item_names:
            if name not in known:
                raise UnknownFieldError(
                    f"{redact(reader.root)}: item names {name!r}, which is not read; fields are {', '.join(fields)}, "
                    f"parameters are {', '.join(config.parameters) or 'none'} (`parameters: [...]` adds others), and "
                    f"{INDEX} and {SAMPLE_ID} can be named"
                )
        added = {INDEX: self._with_index, SAMPLE_ID: self._with_sample_id}
        for name in config.parameters:
            if name in self._fields or added.get(name):
                raise ZarrCoreError(
                    f"{redact(reader.root)}: items have {name!r} already, which the parameter {name!r} would replace; "
                    "leave it out of `parameters`, or read only other `fields`"
                )
        # Parameters by sample, normalized like fields, one after the other, (components of all parameters,).
        self._rows: dict[str, np.ndarray] = {}
        # By parameter: the first sample that was read, and the shape there, which all samples must have.
        self._shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.origin = redact(reader.root)

    def with_reader(self, reader: ZarrChunkReader) -> Items:
        """The same for another process, which reads the parameters itself."""
        items = copy(self)
        items._reader, items._rows = reader, {}
        return items

    def batch(self, fields: dict[str, Tensor], places: Sequence[int], drawn: Sequence[Drawn]) -> Batch:
        """A batch of items of one size, from the tensors of their fields."""
        values = self._shaped(fields, places, [one.sample_id for one in drawn], axes=1)
        if self._batch_transform is not None:
            values = self._transformed(values, len(places))
        batch = Batch(tensors=values)
        if self._transform is not None:
            batch.data = list(map(self._changed, batch.data, drawn))  # it is stacked again if this has changed an item
        return batch

    def item(self, fields: dict[str, Tensor], place: int, drawn: Drawn) -> Any:
        """An item of its own size."""
        if self._batch_transform is not None:
            raise ZarrCoreError(
                f"{self.origin}, {drawn.sample_id}: batch_transform needs items of one size; draw a number of points "
                "that every sample has, or use transform, which gets one item"
            )
        item = BatchItem(self._shaped(fields, [place], [drawn.sample_id], axes=0))
        if self._transform is None or self._collate in (None, "list"):
            return self._changed(item, drawn)
        before = dict(item)
        changed = self._changed(item, drawn)
        self._check_added(before, changed, drawn)
        return changed

    @property
    def per_sample(self) -> list[str]:
        """Keys without points."""
        if not self._keys:
            return list(self._parameters)
        found = []
        for key, names in self._keys.items():
            if self._fields.isdisjoint([names] if isinstance(names, str) else names):
                found.append(key)
        return found

    @cached_property
    def domains(self) -> dict[str, str]:
        """The domain of each key that has points. Positions that are drawn by themselves are one of their own."""
        of_field = {GEOMETRY_POSITION: GEOMETRY_POSITION}
        for domain, layout in self._reader.manifest.domains.items():
            of_field |= dict.fromkeys(layout.arrays, domain)
        found = {}
        for key, names in (self._keys or {name: name for name in self._fields}).items():
            for name in self._fields.intersection([names] if isinstance(names, str) else names):
                found[key] = of_field[name]
        return found

    def prepare(self, sample_ids: Sequence[str]) -> None:
        """Read the parameters of samples. Before their fields: they come with what tells where the fields lie.

        Raises:
            UnknownFieldError, ZarrCoreError: a sample lacks a parameter, or it differs in shape from those before.
        """
        if not self._parameters:
            return
        unknown = [sample_id for sample_id in dict.fromkeys(sample_ids) if sample_id not in self._rows]
        if unknown:
            for sample_id, recorded in zip(unknown, self._reader.read_attributes_of(unknown), strict=True):
                self._rows[sample_id] = self._row(sample_id, recorded).numpy()

    def _shaped(
        self, fields: dict[str, Tensor], places: Sequence[int], sample_ids: Sequence[str], axes: int
    ) -> dict[str, Any]:
        """Values under the keys of the config: of one item if ``axes`` is 0, of a batch if it is 1."""
        values: dict[str, Any] = dict(fields)
        added: dict[str, Any] = self._read_parameters(sample_ids) if self._parameters else {}
        if self._with_index:
            added[INDEX] = torch.tensor(places)
        if self._with_sample_id:
            added[SAMPLE_ID] = list(sample_ids)
        for name, column in added.items():
            values[name] = column if axes else column[0]
        if not self._keys:
            return values
        shaped = {}
        for key, names in self._keys.items():
            shaped[key] = values[names] if isinstance(names, str) else self._joined(key, names, values, axes)
        return shaped

    def _joined(self, key: str, names: Sequence[str], values: Mapping[str, Any], axes: int) -> Tensor:
        """Values one after the other along their components; parameters are repeated for each point of the fields."""
        parts = []
        points: dict[str, int] = {}
        for name in names:
            values_of = values[name]
            is_field = name in self._fields
            if values_of.ndim == axes + is_field:  # scalars without an axis for components
                values_of = values_of.unsqueeze(-1)
            if is_field:
                points[name] = values_of.shape[-2]
            parts.append(values_of)
        if len(set(points.values())) > 1:
            counts = ", ".join(f"{name} has {count:,}" for name, count in points.items())
            raise ZarrCoreError(f"item {key!r} joins fields of different points ({counts}); give each domain its key")
        for count in list(points.values())[:1]:
            for number, name in enumerate(names):
                if name not in points:
                    part = parts[number].unsqueeze(-2)
                    parts[number] = part.expand(*part.shape[:-2], count, part.shape[-1])
        return torch.cat(parts, dim=-1)

    def _read_parameters(self, sample_ids: Sequence[str]) -> dict[str, Tensor]:
        """Parameters by name, (samples,) or (samples, components), normalized like fields."""
        # NumPy makes and cuts such small arrays several times as fast as torch.
        rows = np.concatenate([self._rows[sample_id] for sample_id in sample_ids]).reshape(len(sample_ids), -1)
        columns = {}
        start = 0
        for name in self._parameters:
            _, shape = self._shapes[name]
            stop = start + math.prod(shape)
            columns[name] = torch.from_numpy(rows[:, start:stop] if shape else rows[:, start])
            start = stop
        return columns

    def _row(self, sample_id: str, recorded: Mapping[str, Any]) -> Tensor:
        """The parameters of a sample, from what its group records."""
        where = f"{self.origin}, {sample_id}"
        given = expect(dict, recorded.get("parameters", {}), "parameters")
        parts = []
        for name in self._parameters:
            if name not in given:
                known = ", ".join(given) or "none"
                raise UnknownFieldError(
                    f"{where}: no parameter {name!r}; the sample's parameters are {known}. Choose samples that have it "
                    "(sample_ids), or add it at the source and convert again"
                )
            value = given[name]
            numbers = recorded_numbers(value)
            if numbers is None:
                raise ZarrCoreError(f"{where}: parameter {name!r} is {value!r:.80}, not a number or a list of numbers")
            shape = (len(numbers),) if isinstance(value, list) else ()
            first, expected = self._shapes.setdefault(name, (sample_id, shape))
            if shape != expected:
                raise ZarrCoreError(
                    f"{where}: parameter {name!r} is {_described(shape)}; in {first} it is {_described(expected)}"
                )
            normalizer = self._normalizers.get(name)
            if normalizer is not None and len(normalizer.shift) != len(numbers):
                raise ZarrCoreError(
                    f"{where}: parameter {name!r} is {_described(shape)}; its normalizer has {len(normalizer.shift)} "
                    "components"
                )
            stored = torch.tensor(numbers, dtype=torch.float64)
            parts.append(stored if self._as_stored else self._normalizers.normalized(name, stored))
        return torch.cat(parts)

    def _changed(self, item: BatchItem, drawn: Drawn) -> Any:
        """An item after the transform of the config."""
        item.sample_id, item.origin, item.drawn = drawn.sample_id, self.origin, drawn
        if self._transform is None:
            return item
        try:
            changed = self._transform(item)
        except Exception as error:
            error.add_note(f"transform of {drawn.sample_id} of {self.origin}")
            raise
        if changed is item:
            return item
        if type(changed) is dict:
            changed = BatchItem(changed)
        if isinstance(changed, BatchItem):
            changed.sample_id, changed.origin = drawn.sample_id, self.origin
        return changed

    def _check_added(self, before: Mapping[str, Any], changed: Any, drawn: Drawn) -> None:
        """Raise ZarrCoreError if an array that a transform added would be taken for points, and does not have them."""
        if not isinstance(changed, Mapping):
            return
        points = {len(before[key]) for key in self.domains}
        for key, value in changed.items():
            if key in before or not isinstance(value, Tensor | np.ndarray) or not value.ndim or len(value) in points:
                continue
            raise ZarrCoreError(
                f"{self.origin}, {drawn.sample_id}: transform adds {key!r} of shape {tuple(value.shape)}, whose first "
                f"axis would be taken for points, of which no domain has {len(value):,}. Set collate: list in the "
                f"config, and give the loader collate_fn=zarr_core.Collate({self._collate!r}, per_sample=[{key!r}]) "
                "with all keys that have no points and one shape in all samples. If the first axis differs in length, "
                f"such as that of edges (edges, 2), leave out {key!r}: it is joined along it, as a domain of its own"
            )

    def _transformed(self, values: dict[str, Any], items: int) -> dict[str, Any]:
        """A batch after the batch transform of the config."""
        assert self._batch_transform is not None
        changed = self._batch_transform(values)
        if not isinstance(changed, dict):
            raise ZarrCoreError(f"batch_transform must return a dict of tensors, not {type(changed).__name__}")
        for name, value in changed.items():
            if not isinstance(value, Tensor | list) or (isinstance(value, Tensor) and not value.ndim):
                raise ZarrCoreError(f"batch_transform: {name!r} must be a tensor or list with an entry per item")
            if len(value) != items:
                raise ZarrCoreError(f"batch_transform: {name!r} has {len(value)} entries for {items} items")
        return changed


def _described(shape: tuple[int, ...]) -> str:
    """For messages."""
    return f"a list of {shape[0]} numbers" if shape else "a number"


def _function(name: str, given: Callable[[Any], Any] | str | None) -> Callable[[Any], Any] | None:
    if not isinstance(given, str):
        return given
    try:
        found = import_dotted(given)
    except SourceError as error:
        raise ZarrCoreError(f"{name}: {error}") from error
    if not callable(found):
        raise ZarrCoreError(f"{name}: {given} is not a function")
    function: Callable[[Any], Any] = found
    return function
