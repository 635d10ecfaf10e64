"""The files under ``deploy/`` are valid, and agree with each other and with the documentation."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config
from zarr_core.platform.resources.alerts import MAIL_FROM, MAIL_TO, SMTP, WEBHOOK
from zarr_core.platform.sensors import watchdog

from definitions import DATASETS

PROJECT = Path(__file__).resolve().parents[2]
DEPLOY = PROJECT / "deploy"
ENVIRONMENT = {
    "DAGSTER_PG_HOST": "db",
    "DAGSTER_PG_PORT": "5432",
    "DAGSTER_PG_USERNAME": "dagster",
    "DAGSTER_PG_PASSWORD": "secret",
    "DAGSTER_PG_DB": "dagster",
    "DAGSTER_LOGS_BUCKET": "logs",
}


def check(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["local", "production"])
def test_instance_settings_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    settings, _ = dagster_instance_config(str(DEPLOY / name))
    assert settings["concurrency"]["pools"] == {"default_limit": 1, "granularity": "run"}
    assert settings["run_retries"]["retry_on_asset_or_op_failure"] is False
    assert settings["telemetry"]["enabled"] is False


def test_the_compose_file_is_valid_and_sets_what_the_instance_needs() -> None:
    file = DEPLOY / "compose" / "compose.yaml"
    check("check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file))
    services = yaml.safe_load(file.read_text())["services"]
    for name in ("code", "webserver", "daemon"):
        assert ENVIRONMENT.keys() <= services[name]["environment"].keys()
    assert all((PROJECT / argument).exists() for argument in services["daemon"]["command"] if argument.endswith("yaml"))
    served = yaml.safe_load((DEPLOY / "compose" / "workspace.yaml").read_text())["load_from"][0]["grpc_server"]
    assert served["host"] in services
    assert str(served["port"]) in dockerfile_command()


def test_the_code_server_and_every_workspace_give_the_location_the_name_of_the_project() -> None:
    """Dagster warns of another name whenever it loads the location: in the server, and in every run."""
    command = dockerfile_command()
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]
    names = [
        command[command.index("--location-name") + 1],
        project["dagster"]["code_location_name"],
        project["dg"]["project"]["code_location_name"],
    ]
    for file in (PROJECT / "workspace.yaml", DEPLOY / "compose" / "workspace.yaml"):
        (location,) = yaml.safe_load(file.read_text())["load_from"]
        (settings,) = location.values()
        names.append(settings["location_name"])
    assert set(names) == {"zarr_core"}
    assert "command" not in yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]["code"]


def test_the_workflow_of_ci_is_valid_and_its_files_and_settings_of_tests_exist() -> None:
    file = PROJECT / ".github" / "workflows" / "ci.yml"
    check("check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(file))
    workflow = file.read_text()
    for path in re.findall(r"\btests/\S+|\bconstraints/\d\S+", workflow):
        assert (PROJECT / path).exists(), path
    read = "".join(path.read_text() for path in PROJECT.glob("tests/**/*.py"))
    assert all(f'"{variable}"' in read for variable in re.findall(r"\bTEST_\w+", workflow))


def dockerfile_command() -> list[str]:
    (command,) = re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return list(yaml.safe_load(command))


KUBERNETES = DEPLOY / "kubernetes"
VALUES = yaml.safe_load((KUBERNETES / "values.yaml").read_text())
(DEPLOYED,) = VALUES["dagster-user-deployments"]["deployments"]


def test_the_kubernetes_files_are_valid(tmp_path: Path) -> None:
    files = [str(path) for path in sorted(KUBERNETES.glob("*.yaml")) if path.name != "values.yaml"]
    documented = re.findall(r"```yaml\n(apiVersion: .*?)```", (PROJECT / "docs" / "clusters.md").read_text(), re.DOTALL)
    assert documented
    for number, text in enumerate(documented):
        files.append(str(tmp_path / f"{number}.yaml"))
        Path(files[-1]).write_text(text)
    check("kubernetes_validate", "--strict", *files)


def test_the_kubernetes_job_converts_every_part() -> None:
    spec = yaml.safe_load((KUBERNETES / "convert.yaml").read_text())["spec"]
    # A refused sample fails its part. A limit for the whole job would end the other parts with it.
    assert "backoffLimitPerIndex" in spec
    assert "backoffLimit" not in spec
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "a container that restarts counts for no index"
    (container,) = spec["template"]["spec"]["containers"]
    words = shlex.split(shlex.join([*container["command"], *container["args"]]))
    assert words[words.index("--part") + 1] == f"auto/{spec['completions']}"


def merged(defaults: dict[str, object], values: dict[str, object]) -> dict[str, object]:
    """Values over those of a chart, as Helm merges them."""
    both = dict(defaults)
    for name, value in values.items():
        default = defaults.get(name)
        both[name] = merged(default, value) if isinstance(default, dict) and isinstance(value, dict) else value
    return both


@pytest.mark.skipif(
    "TEST_HELM_CHART" not in os.environ,
    reason="needs the folder of Dagster's Helm chart in TEST_HELM_CHART: helm/dagster of its repository",
)
def test_the_values_fit_the_schema_of_the_helm_chart(tmp_path: Path) -> None:
    chart = Path(os.environ["TEST_HELM_CHART"])
    subchart = "dagster-user-deployments"
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    for folder, values in (
        (chart, merged(defaults, VALUES)),
        (chart / "charts" / subchart, merged(defaults[subchart], VALUES[subchart])),
    ):
        file = tmp_path / f"{folder.name}.json"
        file.write_text(json.dumps(values))
        check("check_jsonschema", "--schemafile", str(folder / "values.schema.json"), str(file))


def test_the_values_of_the_helm_chart_agree_with_the_instance_settings() -> None:
    values = VALUES
    settings = yaml.safe_load((DEPLOY / "production" / "dagster.yaml").read_text())
    assert values["concurrency"]["pools"] == {"defaultLimit": 1, "granularity": "run"}
    assert settings["concurrency"]["pools"] == {"default_limit": 1, "granularity": "run"}
    daemon = values["dagsterDaemon"]
    for ours, theirs in (("run_monitoring", "runMonitoring"), ("run_retries", "runRetries")):
        words = {re.sub(r"[A-Z]", lambda m: f"_{m[0].lower()}", name): v for name, v in daemon[theirs].items()}
        assert words == settings[ours]
    local = yaml.safe_load((DEPLOY / "local" / "dagster.yaml").read_text())
    assert settings["sensors"] == local["sensors"] == {"use_threads": True, "num_workers": 16}
    assert daemon["sensors"] == {"useThreads": True, "numWorkers": 16}, "a source that hangs delays no other sensor"
    assert values["postgresql"]["postgresqlScheme"] == settings["storage"]["postgres"]["postgres_db"]["scheme"]
    assert values["retention"]["sensor"]["purgeAfterDays"] == settings["retention"]["sensor"]["purge_after_days"]
    assert DEPLOYED["dagsterApiGrpcArgs"] == ["--module-name", "definitions"]
    assert (
        DEPLOYED["image"]["tag"]
        in yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["x-dagster"]["image"]
    )


def test_postgresql_and_the_pods_of_dagster_have_the_same_password() -> None:
    """Dagster's pods take the password from this secret of a release named "dagster", unless the chart makes one."""
    assert VALUES["generatePostgresqlPasswordSecret"] is False
    assert VALUES["postgresql"]["existingSecret"] == "dagster-postgresql-secret"
    described = (KUBERNETES / "values.yaml").read_text()
    assert "# * The secret dagster-postgresql-secret holds postgresql-password" in described


def names(references: list[dict[str, str]]) -> set[str]:
    return {reference["name"] for reference in references}


def test_every_pod_that_reads_or_writes_logs_in_the_bucket_has_its_credentials() -> None:
    launcher = VALUES["runLauncher"]["config"]["k8sRunLauncher"]
    for pod in (VALUES["dagsterWebserver"], VALUES["dagsterDaemon"], DEPLOYED, launcher):
        assert "zarr-core-s3" in names(pod["envSecrets"])


def test_nothing_that_is_to_stay_lies_on_the_disk_of_a_pod_or_container() -> None:
    """Locations of data are URLs; reports are files, below a folder that is a volume."""
    folder = re.findall(r"^WORKDIR (\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)[0]
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    environments = [services["code"]["environment"], {each["name"]: each["value"] for each in DEPLOYED["env"]}]
    mounts = [
        writable_places(services["code"]),
        {mount["mountPath"] for mount in DEPLOYED["volumeMounts"] if not mount.get("readOnly")},
    ]
    declared = "\n".join(path.read_text() for path in PROJECT.glob("assets/datasets/*/defs.yaml"))
    stays = re.findall(r"env\('(\w+_(?:STORE|MATRIX|SOURCE|REPORT))', '([^']*)'\)", declared)
    assert {name for name, _ in stays} >= {"AHMED_RANS_STORE", "METHYLATION_MATRIX", "METHYLATION_REPORT"}
    for environment, mounted in zip(environments, mounts, strict=True):
        for name, default in stays:
            location = environment.get(name, os.path.join(folder, default))
            if name.endswith("_REPORT"):
                assert any(location.startswith(f"{place}/") for place in mounted), name
            else:
                assert location.startswith("s3://"), name
    (volume,) = [volume for volume in DEPLOYED["volumes"] if "persistentVolumeClaim" in volume]
    claim = yaml.safe_load((KUBERNETES / "reports.yaml").read_text())
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"], "runs are on other nodes than the code location"
    assert names(DEPLOYED["volumeMounts"]) == names(DEPLOYED["volumes"])
    assert DEPLOYED["includeConfigInLaunchedRuns"]["enabled"]
    user = int(re.findall(r"--uid (\d+)", (DEPLOY / "Dockerfile").read_text())[0])
    runs = VALUES["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]["podSpecConfig"]
    assert DEPLOYED["podSecurityContext"]["fsGroup"] == runs["securityContext"]["fsGroup"] == user


def writable_places(service: dict[str, Any]) -> set[str]:
    """Where a service of the compose file has volumes that it may write to."""
    return {volume.partition(":")[2] for volume in service["volumes"] if isinstance(volume, str)}


def test_the_declarations_are_mounted_where_the_code_location_looks_for_them() -> None:
    service = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]["code"]
    (bound,) = [volume for volume in service["volumes"] if not isinstance(volume, str)]
    assert service["environment"][DATASETS] == bound["target"]
    (source,) = re.findall(rf"^\$\{{{DATASETS}:-(.*)\}}$", bound["source"])
    assert (DEPLOY / "compose" / source).resolve() == PROJECT / "assets" / "datasets"
    (place,) = [variable["value"] for variable in DEPLOYED["env"] if variable["name"] == DATASETS]
    (mount,) = [mount for mount in DEPLOYED["volumeMounts"] if mount["mountPath"] == place]
    (volume,) = [volume for volume in DEPLOYED["volumes"] if volume["name"] == mount["name"]]
    described = (KUBERNETES / "values.yaml").read_text()
    assert f"kubectl create configmap {volume['configMap']['name']}\n" in described
    made = dict(re.findall(r"^#   --from-file=(\S+)=assets/datasets/(\S+)$", described, re.MULTILINE))
    assert made == {item["key"]: item["path"] for item in volume["configMap"]["items"]}
    assert all((PROJECT / "assets" / "datasets" / path).is_file() for path in made.values())


def test_the_watchdog_runs_wherever_the_platform_does_and_can_send_alerts() -> None:
    module = f"python -m {watchdog.__name__} http://"
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    service = services["watchdog"]
    assert shlex.join(service["command"]).startswith(f"{module}webserver:3000 --every ")
    assert not service["depends_on"], "it starts although the code location does not load"
    pod = yaml.safe_load((KUBERNETES / "watchdog.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert shlex.join(container["command"]).startswith(module)
    assert container["image"] == service["image"] == f"{DEPLOYED['image']['repository']}:{DEPLOYED['image']['tag']}"
    alerts = {WEBHOOK, SMTP, MAIL_FROM, MAIL_TO}
    assert alerts <= service["environment"].keys()
    assert alerts <= services["code"]["environment"].keys()
    (secret,) = names([source["secretRef"] for source in container["envFrom"]])
    assert secret in names(DEPLOYED["envSecrets"])
    described = re.findall(
        rf"# \* The secret {secret} .*?(?=# \*)", (KUBERNETES / "values.yaml").read_text(), re.DOTALL
    )
    assert all(variable in described[0] for variable in alerts)


def test_the_image_has_what_it_needs_and_its_user_may_write_where_volumes_are() -> None:
    """Without a registry there is no base image to build it on; ``test_image.py`` builds it where there is one."""
    lines = (DEPLOY / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=python:(3\.\d+)-slim\nFROM \$\{BASE\}$", lines, re.MULTILINE)
    assert (PROJECT / "constraints" / f"{base}.txt").is_file()
    (extra,) = re.findall(r"^ARG EXTRAS=(.+)$", lines, re.MULTILINE)
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    included = re.findall(r"zarr-core\[(.*)\]", extras[extra][0])[0].split(",")
    assert {"platform", "dask", "hdf5"} <= {*included}, "a declared pool needs dask.distributed"
    (folder,) = re.findall(r"^WORKDIR (\S+)$", lines, re.MULTILINE)
    assert re.findall(r"^COPY (.*)$", lines, re.MULTILINE) == [". ."]
    ignored = (PROJECT / ".dockerignore").read_text().split()
    needed = ["definitions.py", "workspace.yaml", "pyproject.toml", "README.md", "LICENSE", "constraints", "deploy"]
    for name in (*needed, "assets", "sensors", "resources", "zarr_core", "examples"):
        assert (PROJECT / name).exists()
        assert not any(fnmatch(name, pattern) for pattern in ignored)
    copied = re.findall(r"cp (\S+) \S+", lines)
    assert copied == ["deploy/production/dagster.yaml"]
    command = dockerfile_command()
    assert command[command.index("--module-name") + 1] == "definitions"
    (owned,) = re.findall(r"chown -R dagster (.*)$", lines, re.MULTILINE)
    assert lines.index("chown") < lines.index("\nUSER dagster")
    places = {os.path.join(folder, place) for place in owned.split()}
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    for name in ("code", "webserver", "daemon"):
        assert writable_places(services[name]) <= places
    reports = [
        yaml.safe_load(path.read_text())["attributes"]["report"]
        for path in sorted(PROJECT.glob("assets/datasets/*/defs.yaml"))
    ]
    assert reports
    assert all(re.search(r"'demo/", report) for report in reports), "below a folder that the user may write"
