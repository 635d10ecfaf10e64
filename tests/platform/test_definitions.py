"""The code location: it loads, names what it is made of, and says where a declaration is wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from pydantic import ValidationError

from assets.dataset import DatasetDeclaration
from definitions import defs
from tests.platform.trial import PROJECT
from zarr_core.points.settings import ConversionSettings


def test_the_code_location_loads() -> None:
    loaded = defs()
    dg.Definitions.validate_loadable(loaded)
    graph = loaded.resolve_asset_graph()
    names = ("source_listing", "source_samples", "zarr_samples", "manifest", "statistics", "benchmark_report")
    assert {dg.AssetKey(["ahmed_rans", name]) for name in names} <= set(graph.get_all_asset_keys())
    for dataset, blocking, others in (
        ("ahmed_rans", {"equivalence", "checksums", "plausible"}, {"split_ids_present"}),
        ("methylation", {"axis_hash", "cells_loaded", "no_doubles"}, set()),
    ):
        checks = [key for key in graph.asset_check_keys if key.asset_key.path[0] == dataset]
        assert {key.name for key in checks} == blocking | others
        assert {key.name for key in checks if graph.get(key).blocking} == blocking
    repository = loaded.get_repository_def()
    assert {"ahmed_rans_arrivals", "ahmed_rans_automation", "methylation_automation", "failed_runs"} <= {
        s.name for s in repository.sensor_defs
    }
    assert all(s.default_status is dg.DefaultSensorStatus.RUNNING for s in repository.sensor_defs)
    assert {"ahmed_rans_refresh_schedule"} <= {schedule.name for schedule in repository.schedule_defs}
    assert {f"ahmed_rans_{job}" for job in ("look", "convert", "refresh")} <= set(repository.job_names)


def test_samples_go_through_the_datasets_own_pool(dataset: DatasetDeclaration) -> None:
    from tests.platform.trial import definitions_of

    op = definitions_of(dataset).resolve_assets_def(dataset.key("zarr_samples")).op
    assert op.pool == "convert_trial"


def test_the_code_version_follows_what_changes_the_bytes(dataset: DatasetDeclaration) -> None:
    other_chunks = dataset.model_copy(update={"chunk_points": 4096})
    other_files = dataset.model_copy(update={"kind": "emmi_wing"})
    moved = dataset.model_copy(update={"store": "/elsewhere", "workers": 9, "batch_size": 3})
    assert len({dataset.code_version, other_chunks.code_version, other_files.code_version}) == 3
    assert moved.code_version == dataset.code_version


def test_a_conversion_gets_every_setting_of_the_declaration(dataset: DatasetDeclaration) -> None:
    """Also those of fields that are no longer declared: the store would keep a dtype that nobody takes back."""
    declared = dataset.model_copy(update={"field_dtypes": {"surface_pressure": "float32"}, "fingerprint": "content"})
    arguments = declared.conversion_arguments
    assert arguments["fingerprint"] == "content"
    assert arguments["field_dtypes"] == {
        field: "float32" if field == "surface_pressure" else "default" for field in declared.description.fields
    }
    given = {name: arguments[name] for name in ConversionSettings.__dataclass_fields__}
    assert ConversionSettings(**given) == declared.settings
    fields = dict(dataset)
    with pytest.raises(ValidationError, match=r"(?s)chunk_points.*must not be true"):
        DatasetDeclaration(**fields | {"chunk_points": True})
    with pytest.raises(ValidationError, match="'version' or 'content'"):
        DatasetDeclaration(**fields | {"fingerprint": "hash"})


def test_no_password_is_shown(dataset: DatasetDeclaration) -> None:
    secret = dataset.model_copy(
        update={"source": "s3://user:secret@bucket/runs", "store": "s3://user:secret@bucket/store"}
    )
    from tests.platform.trial import definitions_of

    graph = definitions_of(secret).resolve_asset_graph()
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    assert "secret" not in repr([(node.metadata, node.description) for node in nodes]) + repr(secret)


class Project:
    """A copy of the platform's files, to declare other datasets in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("assets", "resources", "sensors"):
            shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("definitions.py", "workspace.yaml", "pyproject.toml"):
            shutil.copy(PROJECT / name, folder)

    def declare(self, name: str, *lines: str) -> Path:
        path = self.folder / "assets" / "datasets" / name / "defs.yaml"
        path.parent.mkdir()
        path.write_text("\n".join(["type: assets.component.PointDataset", "attributes:", *lines]) + "\n")
        return path

    def run(self, *command: str, validating: bool = False) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "NO_COLOR": "1", "COLUMNS": "200"}
        environment |= {"DAGSTER_DISABLE_TELEMETRY": "1", "DAGSTER_HOME": ""}
        environment |= {"DAGSTER_IS_DEFS_VALIDATION_CLI": "1"} if validating else {}
        return subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


WINGS = ("  name: wings", "  kind: emmi_wing", "  source: s3://bucket/wings", "  store: s3://bucket/store")


def test_a_dataset_is_one_yaml_file(project: Project) -> None:
    project.declare("wings", *WINGS, "  report: reports/wings")
    code = (
        "from definitions import defs\n"
        "keys = {'/'.join(key.path) for key in defs().resolve_asset_graph().get_all_asset_keys()}\n"
        "print({'wings/zarr_samples', 'ahmed_rans/zarr_samples'} <= keys)\n"
    )
    result = project.run("-W", "ignore", "-c", code)
    assert result.stdout.strip() == "True", result.stderr


def test_a_custom_kind_lies_beside_the_declaration(project: Project) -> None:
    lines = [line.replace("emmi_wing", "sinks.yaml") for line in WINGS]
    path = project.declare("wings", *lines, "  report: reports/wings")
    path.with_name("sinks.yaml").write_text("name: sinks\nsamples: case_*\nfiles: {surface_position: xyz.pt}\n")
    code = (
        "from definitions import defs\n"
        "specs = {s.key.to_user_string(): s for s in defs().resolve_all_asset_specs()}\n"
        "print([r.data for r in specs['wings/source_samples'].metadata['files'].records])\n"
    )
    result = project.run("-W", "ignore", "-c", code)
    assert "'file': 'xyz.pt'" in result.stdout, result.stderr


def test_the_dataset_of_the_documentation_loads(project: Project) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (PROJECT / "docs" / "ui.md").read_text(), re.DOTALL)
    project.declare("wings").write_text(block)
    code = (
        "from definitions import defs\n"
        "spec = {s.key.to_user_string(): s for s in defs().resolve_all_asset_specs()}['wings/benchmark_report']\n"
        "print(spec.metadata['report'])\n"
    )
    result = project.run("-W", "ignore", "-c", code)
    assert result.stdout.strip() == str(project.folder / "reports" / "wings"), result.stderr


def test_dagster_validates_the_code_location(project: Project) -> None:
    result = project.run("-m", "dagster", "definitions", "validate", "-w", "workspace.yaml")
    assert result.returncode == 0, result.stderr


def test_a_misspelt_setting_is_reported_with_file_and_line(project: Project) -> None:
    path = project.declare("wings", *WINGS, "  report: reports/wings", "  chunk_pionts: 4096")
    # Not `dg check yaml`: of several files with one component type, dagster-dg 1.13.27 looks at the last alone.
    result = project.run("-m", "dagster_dg_cli.cli", "check", "defs")
    assert result.returncode != 0
    assert f"`attributes.chunk_pionts at {path}:8`" in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("  chunk_points: 0", "chunk_points must be positive"),
        ("  values_dtype: float12", "dtype 'float12' cannot be stored"),
        ("  workers: 0", "workers must be at least 1"),
        ("  refresh_schedule: now and then", "now and then"),
    ],
)
def test_a_setting_without_sense_is_refused(project: Project, line: str, reason: str) -> None:
    project.declare("wings", *WINGS, "  report: reports/wings", line)
    result = project.run("-W", "ignore", "-c", "from definitions import defs; defs()", validating=True)
    assert result.returncode != 0
    assert reason in result.stderr
    assert "wings" in result.stderr


SHOW_WHAT_LOADED = """
import dagster as dg
from definitions import defs

loaded = defs()
for spec in loaded.resolve_all_asset_specs():
    print(spec.key.to_user_string(), spec.description if spec.key.path[-1] == "not_loaded" else "")
for sensor in loaded.get_repository_def().sensor_defs:
    if sensor.name.endswith("not_loaded"):
        try:
            sensor(dg.build_sensor_context())
        except dg.Failure as failure:
            print(sensor.name, failure.description)
"""


def test_a_misspelt_declaration_does_not_stop_the_other_datasets(project: Project) -> None:
    path = project.declare("wings", *WINGS, "  report: reports/wings", "  chunk_pionts: 4096")
    result = project.run("-W", "ignore", "-c", SHOW_WHAT_LOADED)
    assert "ahmed_rans/zarr_samples" in result.stdout, result.stderr
    assert "wings/zarr_samples" not in result.stdout
    assert "wings/not_loaded The declaration of this dataset cannot be loaded" in result.stdout
    assert "wings_not_loaded the declaration of wings cannot be loaded" in result.stdout
    assert result.stdout.count(f"`attributes.chunk_pionts at {path}:8`") == 2


def test_a_second_dataset_of_the_same_name_does_not_stop_the_others(project: Project) -> None:
    project.declare("wings", *WINGS, "  report: reports/wings")
    project.declare("wings_again", *WINGS, "  report: reports/wings")
    result = project.run("-W", "ignore", "-c", SHOW_WHAT_LOADED)
    assert "wings/zarr_samples" in result.stdout, result.stderr
    assert "wings_again_not_loaded the declaration of wings_again cannot be loaded" in result.stdout
