"""Conversions of a changing source, in any order and with any settings: the store can be read."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.helpers.described_source import FILES, SPEED, Source, as_an_earlier_version_wrote_it
from tests.helpers.examples import examples
from tests.helpers.stores import objects, replace_unnoticed
from zarr_core import ZarrChunkReader, ZarrPointDataset, load_manifest, verify_store
from zarr_core.convert import convert, iter_convert, publish
from zarr_core.errors import StoreError
from zarr_core.format.object_names import QUARANTINE
from zarr_core.points.convert import conversion as convert_module

SAMPLES = ("a", "b", "case  2")
SETTINGS: list[dict[str, Any]] = [
    {},
    {},
    {"values_dtype": "float16"},
    {"values_dtype": "float32"},
    {"field_dtypes": {"surface_temperature": "float64"}},
    {"field_dtypes": {"surface_temperature": "default"}},
    {"chunk_points": 8},
    {"codec": "zstd:1"},
    {"layout": "packed"},
    {"layout": "packed"},
    {"layout": "directory"},
]
ONLY = st.sampled_from([None, *SAMPLES])
STEPS = {
    # A sample that is new or repaired, of another width, or (1e5 with float16) refused, like 1e39 with any dtype.
    "write": st.tuples(st.sampled_from(SAMPLES), st.sampled_from([1, 1, 2]), st.sampled_from([300.0, 1e5, 1e39])),
    # Other values under the same size and time, which a conversion notices if it is forced.
    "replace": st.tuples(st.sampled_from(SAMPLES), st.sampled_from([400.0, 1e5])),
    "remove": st.tuples(st.sampled_from(SAMPLES)),
    "describe": st.tuples(st.booleans()),
    "convert": st.tuples(
        st.fixed_dictionaries(
            {name: st.booleans() for name in ("reconvert", "force", "retry_quarantined", "retire_vanished")}
        ),
        st.sampled_from(SETTINGS),
        ONLY,
    ),
    "publish": st.tuples(st.sampled_from(SETTINGS), st.booleans(), ONLY),
    "interrupt": st.tuples(st.sampled_from(SETTINGS), st.integers(0, 2)),
    "other kind": st.tuples(),
    "go to": st.tuples(st.sampled_from(["one", "two"])),
    "hold": st.tuples(),
    "delete store": st.tuples(),
    "earlier version": st.tuples(),
}


FORCED = ("convert", ({"force": True}, {}, None))


@settings(max_examples=examples(6))
@example([("write", ("b", 1, 300.0)), FORCED, ("replace", ("b", 400.0)), FORCED, ("replace", ("b", 1e5)), FORCED])
@given(st.lists(st.one_of([st.tuples(st.just(name), arguments) for name, arguments in STEPS.items()]), max_size=10))
def test_whatever_is_converted_the_store_can_be_read_and_names_what_it_leaves_out(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        machine = Machine(Source(Path(folder)))
        machine.source.write("a", "z")
        for name, arguments in [*steps, ("convert", ({"retire_vanished": True}, {}, None))]:
            try:
                getattr(machine, name.replace(" ", "_"))(*arguments)
            except StoreError as error:
                if "--reconvert" not in str(error):  # what contradicts the store is refused
                    raise
            machine.check_store()


class Machine:
    """Every step that changes a source or its store, and what must hold after each."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.replaced: set[str] = set()
        self.kept: dict[str, bytes] = {}
        self.held: list[tuple[ZarrChunkReader, dict[str, Any]]] = []
        self.lost = False

    def replace(self, sample_id: str, low: float) -> None:
        path = self.source.root / sample_id / "temperature.pt"
        if path.exists():
            values = torch.load(path, weights_only=True)
            replace_unnoticed(path, (low + torch.arange(float(values.numel()))).reshape(values.shape))
            self.replaced.add(sample_id)

    def go_to(self, folder: str) -> None:
        (self.source.root.parent / folder).mkdir(exist_ok=True)
        os.chdir(self.source.root.parent / folder)

    def hold(self) -> None:
        if self._stored():
            reader, unread = self.source.reader(), self.source.reader()
            content = {sample_id: reader.read_sample(sample_id) for sample_id in reader.sample_ids}
            self.held += [(reader, content), (unread, content), (pickle.loads(pickle.dumps(unread)), content)]

    def delete_store(self) -> None:
        shutil.rmtree(self.source.store, ignore_errors=True)
        self.kept.clear()
        self.lost = bool(self.held)
        for _, content in self.held:  # the next conversion makes groups of the same names
            for sample_id in self.replaced & content.keys():
                del content[sample_id]

    def write(self, sample_id: str, width: int, low: float) -> None:
        self.replaced.discard(sample_id)
        self.source.write(sample_id, width=width, low=low, step=1 if low < 1e30 else 1e36)

    def remove(self, sample_id: str) -> None:
        shutil.rmtree(self.source.root / sample_id, ignore_errors=True)

    def describe(self, speed: bool) -> None:
        self.source.describe(FILES | SPEED if speed else FILES)

    def convert(self, flags: dict[str, bool], chosen: dict[str, Any], only: str | None) -> None:
        selected = None if only is None else [only, "z"]
        report = self.source.convert(sample_ids=selected, max_retired_share=1, **flags, **chosen)
        if flags.get("force"):
            self.replaced.difference_update(SAMPLES if only is None else [only])
        self._check_results({result.sample_id: result.status for result in report.results}, report.manifest, selected)
        assert all(result.reason for result in report.having("quarantined"))
        if flags.get("retire_vanished"):
            assert set(report.manifest.samples) | set(report.manifest.quarantine) <= self._present()

    def publish(self, chosen: dict[str, Any], reconvert: bool, only: str | None) -> None:
        """As the platform does it."""
        selected = None if only is None else [only, "z"]
        arguments = {"root": self.source.root, "reconvert": reconvert, **chosen}
        converted = iter_convert(str(self.source.kind), self.source.store, sample_ids=selected, **arguments)
        results = {result.sample_id: result.status for result in converted}
        report = publish(str(self.source.kind), self.source.store, **arguments)
        results |= dict.fromkeys((i for i in report.misfits if i in results), "quarantined")
        self._check_results(results, report.manifest, selected)

    def interrupt(self, chosen: dict[str, Any], after: int) -> None:
        """Convert everything anew, and interrupt it after some samples."""
        real = convert_module.convert_samples

        def interrupted(*arguments: Any) -> Any:
            yield from itertools.islice(real(*arguments), after)
            raise KeyboardInterrupt

        with patch.object(convert_module, "convert_samples", interrupted), contextlib.suppress(KeyboardInterrupt):
            self.source.convert(reconvert=True, **chosen)

    def other_kind(self) -> None:
        if not self._stored():
            return
        before = load_manifest(self.source.store)
        kind = self.source.root.parent / "wings.yaml"
        kind.write_text(json.dumps({"name": "wings", "samples": "*", "files": FILES}))
        for other in ({}, {"reconvert": True}, {"dataset_name": before.dataset_name}):
            with pytest.raises(StoreError, match="kind 'bodies', not 'wings'"):
                convert(str(kind), self.source.store, root=self.source.root, **other)
        assert load_manifest(self.source.store) == before

    def earlier_version(self) -> None:
        fields = [load_manifest(self.source.store).fields_of(i) for i in self._stored()]
        dtypes = {own["surface_temperature"].dtype if own.keys() == FILES.keys() else "" for own in fields}
        if len(dtypes) == 1 and "" not in dtypes:  # it had one dtype for all samples
            as_an_earlier_version_wrote_it(self.source.store, dtypes.pop())

    def check_store(self) -> None:
        """Every sample that the manifest names reads, in every way alike, and no committed group changes.

        What was opened earlier reads as it did.
        """
        for opened, content in self.held:
            for sample_id, expected in content.items():
                try:
                    np.testing.assert_equal(opened.read_sample(sample_id), expected)
                except StoreError:
                    assert self.lost
        if not (self.source.store / "manifest.json").exists():
            return
        stored = objects(self.source.store)
        assert [name for name, data in self.kept.items() if stored.get(name) != data] == []
        entries = load_manifest(self.source.store).samples.values()
        named = tuple(entry.relpath if entry.head else f"{entry.relpath}/" for entry in entries)
        refusals = f"/{QUARANTINE}"
        self.kept |= {n: data for n, data in stored.items() if n.startswith(named) and not n.endswith(refusals)}
        reader = self.source.reader()
        manifest = reader.manifest
        for sample_id in reader.sample_ids:
            sample = reader.read_sample(sample_id)
            assert sample.keys() == manifest.fields_of(sample_id).keys()
            if manifest.conversion is not None:
                assert {name: (str(values.dtype), values.shape[1]) for name, values in sample.items()} == {
                    name: (column.dtype, column.dim) for name, column in manifest.fields_of(sample_id).items()
                }
        assert set(reader.fields) == {name for i in manifest.samples for name in manifest.fields_of(i)}
        if any(i in manifest.samples for i in manifest.split_ids("train")):
            for dtype in ("float32", "stored"):
                check_batches(self.source.dataset(fields=tuple(FILES), dtype=dtype, num_surface_points=7))
        assert verify_store(str(self.source.store)).problems == []

    def _present(self) -> set[str]:
        return {path.name for path in self.source.root.iterdir() if path.is_dir()}

    def _stored(self) -> list[str]:
        return list(load_manifest(self.source.store).samples) if (self.source.store / "manifest.json").exists() else []

    def _check_results(self, results: dict[str, str], manifest: Any, selected: list[str] | None) -> None:
        """Whatever was selected is in the store as it is now, or is refused by name."""
        wanted = self._present() if selected is None else self._present() & set(selected)
        refused = {sample_id for sample_id, status in results.items() if status == "quarantined"}
        assert set(results) == wanted
        assert set(results.values()) <= {"converted", "up to date", "quarantined"}
        assert refused == {i for i in wanted if i in manifest.quarantine}
        assert wanted - refused <= set(manifest.samples)
        # A refused sample keeps the group of an earlier version of its source.
        current = sorted(wanted - refused - self.replaced)
        if current:
            report = verify_store(str(self.source.store), source=str(self.source.root), sample_ids=current)
            assert report.problems == []


def check_batches(dataset: ZarrPointDataset) -> None:
    dataset.set_epoch(1)
    indices = list(range(len(dataset)))
    for item, index in zip(dataset.__getitems__(indices), indices, strict=True):
        alone = dataset[index]
        assert item.keys() == alone.keys()
        assert all(torch.equal(item[name], values) for name, values in alone.items())
