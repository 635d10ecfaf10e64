"""Checks of the manifest: samples in no split, and converted samples that are not published."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import numpy as np
import pytest
import torch
from zarr_core.platform.assets.checks import comparable, dataset_checks, implausible
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.resources.stores import StoreAccess

from tests.platform.trial import Trial, corrupt, write_run
from zarr_core import write_sample
from zarr_core.points.convert.conversion import convert
from zarr_core.points.statistics import calculate_store_statistics
from zarr_core.points.store.head import load_manifest
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.storage import Storage


@pytest.fixture
def split_check(dataset: DatasetDeclaration, monkeypatch: pytest.MonkeyPatch):
    """Runs the check of the splits of a manifest."""

    def check(manifest: StoreManifest, **declared: object) -> dg.AssetCheckResult:
        monkeypatch.setattr(StoreAccess, "manifest", lambda *_: manifest)
        checks = {found.op.name: found for found in dataset_checks(dataset.model_copy(update=declared))}
        result = checks["trial__manifest_split_ids_present"](StoreAccess())
        assert isinstance(result, dg.AssetCheckResult)
        return result

    return check


def manifest(*sample_ids: str, excluded: frozenset[str] = frozenset(), **splits: list[str]) -> StoreManifest:
    entries = {sample_id: SampleEntry(f"samples/{sample_id}/0", {}) for sample_id in sample_ids}
    return StoreManifest("trial", samples=entries, splits=splits, excluded=excluded)


def test_samples_in_no_split_are_counted_and_named(split_check) -> None:
    found = split_check(manifest(*(f"run_{i}" for i in range(1, 11)), train=["run_1"], test=["run_2"]))
    assert not found.passed
    assert found.severity is dg.AssetCheckSeverity.WARN
    assert found.description.startswith(
        "8 of 10 samples are in no split: run_3, run_4, run_5, run_6, run_7 and 3 more."
    )
    assert "allow_samples_without_split: true" in found.description
    assert found.metadata["in_no_split"].value == 8
    named = [record.data["sample"] for record in found.metadata["samples_in_no_split"].records]
    assert named == [f"run_{i}" for i in range(3, 11)]


def test_samples_in_no_split_may_be_declared(split_check) -> None:
    found = split_check(manifest("run_1", "run_2", train=["run_1"]), allow_samples_without_split=True)
    assert found.passed
    assert (found.description, found.metadata["in_no_split"].value) == ("1 of 2 samples in 1 splits", 1)


@pytest.mark.parametrize(
    ("of", "passed", "description"),
    [
        (
            manifest("run_1", "run_2", excluded=frozenset({"run_2"}), train=["run_1"]),
            True,
            "1 of 2 samples in 1 splits",
        ),
        (manifest("run_1"), True, "the source has no splits"),
        (manifest("run_1", train=["run_1"], val=[]), False, "no sample of split val is in the store"),
        (manifest("run_1", a=["run_1"], b=["run_1"]), False, "1 sample in more than one split: run_1"),
    ],
)
def test_splits(split_check, of: StoreManifest, passed: bool, description: str) -> None:
    found = split_check(of)
    assert (found.passed, found.description) == (passed, description)


@pytest.mark.parametrize("fingerprint", ["version", "content"])
def test_a_sample_whose_source_changed_is_not_compared(dataset: DatasetDeclaration, fingerprint: str) -> None:
    """Its new version may be pending or refused: the store rightly holds the earlier one."""
    source = Path(dataset.source)
    for number in (1, 2):
        write_run(source, number)
    convert(dataset.kind, dataset.store, root=source, fingerprint=fingerprint, chunk_points=256)
    assert sorted(comparable(StoreAccess(), dataset)) == ["run_1", "run_2"]
    corrupt(source / "run_2")
    assert comparable(StoreAccess(), dataset) == ["run_1"]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_measured")
def test_a_converted_sample_that_does_not_fit_the_others_fails_a_check(trial: Trial) -> None:
    """In the first batch of an empty store only the publication can find it: its partition is green by then."""
    kind = trial.source.with_name("kind.yaml")
    kind.write_text("name: trial\nsamples: run_*\nfiles: {surface_position: xyz.pt, surface_heat: heat.pt}\n")
    trial = Trial(trial.dataset.model_copy(update={"kind": str(kind)}), trial.instance)
    for number in (1, 2, 4):
        folder = trial.source / f"run_{number}"
        folder.mkdir()
        torch.save(torch.rand(300, 3), folder / "xyz.pt")
        torch.save(torch.rand(300, 2) if number == 2 else torch.rand(300), folder / "heat.pt")
    assert trial.convert_all().success
    refreshed = trial.run("refresh")
    assert refreshed.success, "one sample stops no other"
    assert (Path(trial.dataset.store) / "stats.yaml").exists()

    reason = "surface_heat: has 2 components per point, the store's samples have 1"
    (check,) = [e for e in refreshed.get_asset_check_evaluations() if e.check_name == "converted_samples_fit"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert check.description.startswith(f"run_2: {reason}")
    assert [record.data["sample"] for record in check.metadata["problem_list"].records] == ["run_2"]

    pending = Trial(trial.dataset.model_copy(update={"values_dtype": "float32"}), trial.instance)
    (check,) = [e for e in pending.publish().get_asset_check_evaluations() if e.check_name == "converted_samples_fit"]
    assert not check.passed, "a declared change of the settings, which is not applied, hides nothing"
    key = dg.AssetRecordsFilter(trial.dataset.key("zarr_samples"), asset_partitions=["run_2"])
    observation = trial.instance.fetch_observations(key, limit=1).records[0].asset_observation
    assert f"converted, but not published: {reason}" in observation.metadata["reason"].value


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_constant_field_is_not_plausible(tmp_path: Path, dtype: str) -> None:
    for number in range(2):
        fields = {
            "surface_position": np.arange(150.0).reshape(50, 3),
            "surface_temperature": np.full(50, 293.15 + 1 / 3),
        }
        settings = {} if number else {"values_dtype": dtype, "dataset_name": "cars"}
        write_sample(tmp_path, f"run_{number}", fields, split="train", **settings)
    numbers = calculate_store_statistics(tmp_path, split="train")
    assert implausible(load_manifest(Storage(tmp_path)), numbers) == ["surface_temperature: constant 293.483"]
