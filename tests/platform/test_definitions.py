"""The code location: it loads, names what it is made of, and says where a declaration is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.sensors.operating import PAGE

from definitions import DATASETS, defs
from tests.platform.project import Project
from tests.platform.trial import PROJECT
from zarr_core._util.redaction import redact
from zarr_core.points.store.settings import ConversionSettings


def test_no_warning_is_repeated_in_the_log_of_the_code_server() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        defs().get_repository_def()
    assert [
        str(warning.message) for warning in seen if warning.category.__name__ in ("BetaWarning", "PreviewWarning")
    ] == []


def test_the_code_location_loads() -> None:
    loaded = defs()
    dg.Definitions.validate_loadable(loaded)
    graph = loaded.resolve_asset_graph()
    names = ("source_listing", "source_samples", "zarr_samples", "manifest", "statistics", "benchmark_report")
    assert {dg.AssetKey(["ahmed_rans", name]) for name in names} <= set(graph.get_all_asset_keys())
    warnings = {"converted_samples_fit", "settings", "split_ids_present", "source_converted", "samples_complete"}
    for dataset, blocking, others in (
        ("ahmed_rans", {"equivalence", "checksums", "plausible"}, warnings),
        ("methylation", {"axis_hash", "cells_loaded", "no_doubles"}, {"nothing_withdrawn", "source_converted"}),
    ):
        checks = [key for key in graph.asset_check_keys if key.asset_key.path[0] == dataset]
        assert {key.name for key in checks} == blocking | others
        assert {key.name for key in checks if graph.get(key).blocking} == blocking
    repository = loaded.get_repository_def()
    assert {"ahmed_rans_arrivals", "failed_runs"} <= {s.name for s in repository.sensor_defs}
    # One per dataset, so that no run or backfill holds assets of two.
    assert {
        sensor.name: {graph.get(key).group_name for key in sensor.asset_selection.resolve(graph)}
        for sensor in repository.sensor_defs
        if isinstance(sensor, dg.AutomationConditionSensorDefinition)
    } == {f"{name}_automation": {name} for name in ("ahmed_rans", "methylation")}
    assert all(s.default_status is dg.DefaultSensorStatus.RUNNING for s in repository.sensor_defs)
    assert {"ahmed_rans_refresh_schedule"} <= {schedule.name for schedule in repository.schedule_defs}
    assert {f"ahmed_rans_{job}" for job in ("look", "convert", "refresh")} <= set(repository.job_names)


@pytest.mark.parametrize(("look", "evaluate"), [(10, 10), (30, 30), (600, 30)])
def test_the_automation_is_evaluated_as_often_as_the_source_is_listed(
    dataset: DatasetDeclaration, look: int, evaluate: int
) -> None:
    from tests.platform.trial import definitions_of

    declared = dataset.model_copy(update={"look_every_seconds": look})
    repository = definitions_of(declared).get_repository_def()
    seconds = {sensor.name: sensor.minimum_interval_seconds for sensor in repository.sensor_defs}
    assert (seconds["trial_arrivals"], seconds["trial_automation"]) == (look, evaluate)


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
    declared = dataset.model_copy(update={"field_dtypes": {"surface_pressure": "float32"}, "fingerprint": "content"})
    request = declared.request(declared.settings)
    assert request.fingerprint == "content"
    assert request.settings.keys() == ConversionSettings.__dataclass_fields__.keys()
    assert ConversionSettings(**request.settings) == declared.settings


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"chunk_points": True}, "must not be true"), ({"fingerprint": "hash"}, "'version' or 'content'")],
)
def test_settings_of_other_types_are_refused(
    dataset: DatasetDeclaration, setting: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        DatasetDeclaration(**dict(dataset) | setting)


@pytest.mark.parametrize(
    "setting",
    [
        {"source": "s3://user:hunter2hunter2@bucket/runs"},
        {"store": "https://host/x?sig=hunter2hunter2"},
        {"pool": {"kind": "dask", "address": "tls://u:hunter2hunter2@10.0.0.5:8786"}},
    ],
)
def test_a_declaration_of_a_url_with_credentials_is_refused(
    dataset: DatasetDeclaration, setting: dict[str, object]
) -> None:
    with pytest.raises(ValidationError, match="put credentials into environment variables") as caught:
        DatasetDeclaration(**dict(dataset) | setting)
    assert "hunter2" not in redact(str(caught.value))


def test_no_password_is_shown(dataset: DatasetDeclaration) -> None:
    secret = dataset.model_copy(
        update={"source": "s3://user:secret@bucket/runs", "store": "s3://user:secret@bucket/store"}
    )
    from tests.platform.trial import definitions_of

    graph = definitions_of(secret).resolve_asset_graph()
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    assert "secret" not in repr([(node.metadata, node.description) for node in nodes]) + repr(secret)


def declaration(name: str, **settings: str) -> list[str]:
    """Lines of a declaration of a dataset in a bucket."""
    settings = {"kind": "emmi_wing", "report": f"reports/{name}"} | settings
    store = settings.pop("store", "s3://bucket/store")
    settings |= {"source": f"s3://bucket/{name}", "store": store}
    return [f"  {key}: {value}" for key, value in {"name": name, **settings}.items()]


#: Settings without sense, and the reason that is reported.
WITHOUT_SENSE = {
    "no_points": ("chunk_points", "0", "chunk_points must be positive"),
    "no_dtype": ("values_dtype", "float12", "dtype 'float12' cannot be stored"),
    "no_workers": ("workers", "0", "workers must be at least 1"),
    "no_field": ("max_errors", "{wing_pressure: 1e-3}", "max_errors: no field 'wing_pressure'; fields are "),
    "no_share": ("max_retired_share", "10", "max_retired_share must be from 0 to 1, not 10"),
    "no_store": ("store", "''", "store is empty"),
    "variable": ("store", "$SCRATCH/store", "environment variables are not replaced in paths"),
    "outdented": (
        "store",
        "s3://bucket/store\nworkers: 9",
        "'workers' is a setting of another place: look at its indentation",
    ),
    "twice": ("workers", "2\n  workers: 8", "'workers' is given twice"),
    "no_number": ("max_retired_share", "true", "must not be true"),
    "no_split": ("splits", "[]", "splits is empty, which selects no sample"),
    "no_days": ("fresh_within_days", "10000000000", "fresh_within_days must be at least 1 and at most 1,000,000"),
    "no_pause": ("retry_seconds", ".nan", "retry_seconds must be at least 0 and at most 1,000,000, not nan"),
    "no_bound": ("max_errors", "{surface_pressure: true}", "must not be true"),
    "no_output": ("exports", "[{name: a, format: webdataset, output: ''}]", "output is empty"),
    "no_tier": ("shootout", "{tiers: {local: ''}}", "and none that is empty"),
    "no_date": ("retry_schedule", "0 3 31 4 *", "retry_schedule: '0 3 31 4 *' is not a cron schedule"),
    "no_schedule": ("refresh_schedule", "now and then", "refresh_schedule: 'now and then' is not a cron schedule"),
    "no_retries": ("retry_schedule", "hourly", "retry_schedule: 'hourly' is not a cron schedule such as '0 3 * * *'"),
}

SHOW_WHAT_LOADED = """
import json
import dagster as dg
from definitions import defs
from zarr_core.platform.sensors.operating import PAGE

loaded = defs()
specs = {
    spec.key.to_user_string(): {
        "description": spec.description,
        "report": spec.metadata.get("report"),
        "files": [record.data["file"] for record in getattr(spec.metadata.get("files"), "records", ())],
    }
    for spec in loaded.resolve_all_asset_specs()
}
sensors = {}
for sensor in loaded.get_repository_def().sensor_defs:
    if sensor.name.endswith("not_loaded"):
        try:
            sensor(dg.build_sensor_context())
        except dg.Failure as failure:
            sensors[sensor.name] = failure.description
print(json.dumps({"specs": specs, "sensors": sensors}))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The bundled datasets and others, some of which cannot be loaded."""
    project = Project(tmp_path_factory.mktemp("project") / "project")
    project.declare("wings", *declaration("wings"))
    project.declare("wings_again", *declaration("wings"))
    custom = project.declare("sinks", *declaration("sinks", kind="sinks.yaml"))
    custom.with_name("sinks.yaml").write_text("name: sinks\nsamples: case_*\nfiles: {surface_position: xyz.pt}\n")
    project.declare("misspelt", *declaration("misspelt", chunk_pionts="4096"))
    project.write("no_yaml", "type: [\n")
    project.write("no_content", "# later\n")
    project.write("teams", "type: zarr_core.platform.PointDatasett\n")
    for folder in ("teams/a/misspelt", "teams/b/misspelt", "teams/b_misspelt"):
        project.declare(folder, *declaration("misspelt", chunk_pionts="4096"))
    (block,) = re.findall(r"```yaml\n(.*?)```", (PROJECT / "docs" / "ui.md").read_text(), re.DOTALL)
    project.write("documented", re.sub(r"^  name: \w+", "  name: documented", block, flags=re.MULTILINE))
    for name, (setting, value, _) in WITHOUT_SENSE.items():
        project.declare(name, *declaration(name, **{setting: value}))
    return project


@pytest.fixture(scope="module")
def loaded(project: Project) -> Mapping[str, Any]:
    """Assets and failing sensors of the code location: one process, because its imports take seconds."""
    result = project.run("-W", "ignore", "-c", SHOW_WHAT_LOADED)
    assert result.returncode == 0, result.stderr
    found: Mapping[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.slow
def test_a_dataset_is_one_yaml_file(loaded: Mapping[str, Any]) -> None:
    assert {"wings/zarr_samples", "ahmed_rans/zarr_samples"} <= set(loaded["specs"])


def test_a_custom_kind_lies_beside_the_declaration(loaded: Mapping[str, Any]) -> None:
    assert loaded["specs"]["sinks/source_samples"]["files"] == ["xyz.pt"]


def test_the_dataset_of_the_documentation_loads(loaded: Mapping[str, Any], project: Project) -> None:
    assert loaded["specs"]["documented/benchmark_report"]["report"] == str(project.folder / "reports" / "wings")


def test_declarations_lie_in_the_folder_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that name the types of their components as before there was ``zarr_core.platform``."""
    former = {"ahmed_rans": "assets.component.PointDataset", "methylation": "assets.wide_matrix.WarehouseMatrix"}
    for name, component in former.items():
        declared = PROJECT / "assets" / "datasets" / name
        # A ConfigMap of Kubernetes is mounted like this.
        mounted = tmp_path / "datasets" / "..2026_11_24" / name
        shutil.copytree(declared, mounted)
        text = (declared / "defs.yaml").read_text()
        (mounted / "defs.yaml").write_text(re.sub("^type: .*$", f"type: {component}", text, flags=re.MULTILINE))
        (tmp_path / "datasets" / name).symlink_to(mounted)
    monkeypatch.setenv(DATASETS, str(tmp_path / "datasets"))
    keys = defs().resolve_asset_graph().get_all_asset_keys()
    assert keys >= {dg.AssetKey(["ahmed_rans", "manifest"]), dg.AssetKey(["methylation", "matrix"])}
    assert not any("not_loaded" in key.path for key in keys)
    monkeypatch.setenv(DATASETS, str(tmp_path / "nowhere"))
    with pytest.raises(NotADirectoryError, match="nowhere: the folder of the declarations does not exist"):
        defs()


def test_a_misspelt_declaration_does_not_stop_the_other_datasets(loaded: Mapping[str, Any], project: Project) -> None:
    path = project.folder / "assets" / "datasets" / "misspelt" / "defs.yaml"
    assert {"wings/zarr_samples", "ahmed_rans/zarr_samples"} <= set(loaded["specs"])
    assert "misspelt/zarr_samples" not in loaded["specs"]
    assert {"no_yaml_not_loaded", "no_content_not_loaded", "teams_not_loaded"} <= set(loaded["sensors"])
    description = loaded["specs"]["misspelt/not_loaded"]["description"]
    assert description.startswith("The declaration of this dataset cannot be loaded")
    failure = loaded["sensors"]["misspelt_not_loaded"]
    assert failure.startswith("the declaration of misspelt cannot be loaded")
    for text in (description, failure):
        assert f"`attributes.chunk_pionts at {path}:6`" in text
        assert "'chunk_pionts' is not a setting; did you mean 'chunk_points'?" in text


def test_misspelt_declarations_in_folders_of_one_name_stop_nothing(loaded: Mapping[str, Any]) -> None:
    for name in ("teams_a_misspelt", "teams_b_misspelt", "teams_b_misspelt_2"):
        assert "chunk_pionts" in loaded["sensors"][f"{name}_not_loaded"]
        assert f"{name}/not_loaded" in loaded["specs"]


def test_a_second_dataset_of_the_same_name_does_not_stop_the_others(loaded: Mapping[str, Any]) -> None:
    assert "the declaration of wings_again cannot be loaded" in loaded["sensors"]["wings_again_not_loaded"]


@pytest.mark.parametrize("name", WITHOUT_SENSE)
def test_a_setting_without_sense_is_refused(loaded: Mapping[str, Any], name: str) -> None:
    assert f"{name}/zarr_samples" not in loaded["specs"]
    assert WITHOUT_SENSE[name][-1] in loaded["sensors"][f"{name}_not_loaded"]


@pytest.mark.slow
def test_dagster_validates_the_code_location() -> None:
    environment = os.environ | {"DAGSTER_DISABLE_TELEMETRY": "1", "DAGSTER_HOME": ""}
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"]
    result = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_a_misspelt_setting_is_reported_with_file_and_line(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    path = project.declare("wings", *declaration("wings", chunk_pionts="4096"))
    # Not `dg check yaml`: of several files with one component type, dagster-dg 1.13.27 looks at the last alone.
    result = project.run("-m", "dagster_dg_cli.cli", "check", "defs")
    assert result.returncode != 0
    assert f"`attributes.chunk_pionts at {path}:6`" in result.stdout + result.stderr
    assert "did you mean 'chunk_points'?" in result.stdout + result.stderr


def described(loaded: dg.Definitions) -> dict[str, str | None]:
    """Description of every asset, check, sensor, schedule and job of the code location, by its name."""
    graph, repository = loaded.resolve_asset_graph(), loaded.get_repository_def()
    found = {key.to_user_string(): graph.get(key).description for key in graph.get_all_asset_keys()}
    for key in graph.asset_check_keys:
        found[key.to_user_string()] = graph.get(key).description
    for sensor in repository.sensor_defs:
        found[f"sensor {sensor.name}"] = sensor.description
    for schedule in repository.schedule_defs:
        found[f"schedule {schedule.name}"] = schedule.description
    for job in repository.get_all_jobs():
        if not job.name.startswith("__"):  # Dagster's own, for materializations without a job
            found[f"job {job.name}"] = job.description
    return found


def test_everything_says_what_to_do_and_where_that_is_described() -> None:
    page = (PROJECT / PAGE).read_text()
    anchors = {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in re.findall("^#+ (.*)$", page, re.M)}
    found = described(defs())
    assert len(found) > 50
    lacking = [name for name, description in found.items() if PAGE not in (description or "")]
    assert lacking == []
    named = {anchor for text in found.values() for anchor in re.findall(rf"{PAGE}#([\w-]+)", text or "")}
    assert named - anchors == set()


def test_descriptions_begin_without_markup_because_the_catalog_shows_their_first_words_as_they_are() -> None:
    beginnings = {name: (text or "")[:40] for name, text in described(defs()).items()}
    assert {name: text for name, text in beginnings.items() if "`" in text or "*" in text} == {}


@pytest.mark.parametrize(("kind", "types"), [("ahmedml", {"pytorch"}), ("ahmedml_raw", {"vtp", "vtu"})])
def test_the_samples_of_the_source_show_the_types_of_their_files(
    dataset: DatasetDeclaration, kind: str, types: set[str]
) -> None:
    from tests.platform.trial import definitions_of

    graph = definitions_of(dataset.model_copy(update={"kind": kind})).resolve_asset_graph()
    assert graph.get(dataset.observed).kinds == {*types, "source"}


def test_owners_of_a_declaration_are_shown(dataset: DatasetDeclaration) -> None:
    from tests.platform.trial import definitions_of

    owners = ["team:data", "someone@example.org"]
    loaded = definitions_of(dataset.model_copy(update={"owners": owners}))
    graph = loaded.resolve_asset_graph()
    # Dagster's assets that are only observed have no owners.
    observed = {dataset.observed, dataset.listing_key}
    assert {key: graph.get(key).owners for key in graph.get_all_asset_keys() - observed} == dict.fromkeys(
        graph.get_all_asset_keys() - observed, owners
    )
    assert loaded.resolve_job_def("trial_refresh").owners == owners
