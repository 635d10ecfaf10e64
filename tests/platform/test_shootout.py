"""The shootout as an asset: declared in ``defs.yaml``, materialized by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.shootout import ShootoutDeclaration

from tests.platform.matrix_trial import MatrixTrial, declare
from tests.platform.trial import Trial, write_run
from zarr_core.points.convert.conversion import convert


def test_the_verdict_becomes_metadata(
    dataset: DatasetDeclaration, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    tiers = {"disk": str(tmp_path / "disk")}
    declared = ShootoutDeclaration(tiers=tiers, budget="4s", batch_size=1, samples=1, formats=[".npy"])
    trial = Trial(dataset.model_copy(update={"shootout": declared}), instance)
    write_run(trial.source, 1)
    convert("ahmedml", trial.dataset.store, root=trial.source)
    key = dataset.key("shootout")
    assert trial.definitions.resolve_assets_def(key).automation_conditions_by_key == {}
    job = trial.definitions.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=instance, asset_selection=[key]).success
    metadata: dict[str, Any] = {name: entry.value for name, entry in trial.materialization("shootout").metadata.items()}
    assert metadata["verdict"].startswith(".npy, ")
    assert metadata["samples_per_second/disk"] == metadata["samples_per_second"] > 0
    assert Path(metadata["report"]).is_file()


def test_a_matrix_has_one_as_well(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    tiers = {"a": "tmp"}
    declared = declare(tmp_path, shootout={"tiers": tiers})
    assert declared.shootout is not None
    assert declared.shootout.tiers == {"a": str(tmp_path / "tmp")}
    key = declared.key("shootout")
    asset = MatrixTrial(declared, instance).definitions.resolve_assets_def(key)
    assert asset.automation_conditions_by_key == {}
    assert asset.asset_deps[key] == {declared.key("matrix")}


def test_a_shootout_needs_tiers_and_a_duration() -> None:
    with pytest.raises(ValidationError, match="tiers must name"):
        ShootoutDeclaration(tiers={})
    with pytest.raises(ValidationError, match="budget: duration 'soon'"):
        ShootoutDeclaration(tiers={"a": "/a"}, budget="soon")


def test_relative_tiers_are_relative_to_the_project(dataset: DatasetDeclaration) -> None:
    declared = ShootoutDeclaration(tiers={"a": "tmp", "b": "s3://bucket/tmp"})
    resolved = dataset.model_copy(update={"shootout": declared}).with_absolute_paths(Path("/project"), Path("/x"))
    assert resolved.shootout is not None
    assert resolved.shootout.tiers == {"a": "/project/tmp", "b": "s3://bucket/tmp"}
