"""The files under ``deploy/`` are valid, and agree with each other and with the documentation."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config

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


def dockerfile_command() -> list[str]:
    (command,) = re.findall(r"^CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return list(yaml.safe_load(command))


def test_the_kubernetes_job_is_valid_and_converts_every_part() -> None:
    file = DEPLOY / "kubernetes" / "convert.yaml"
    check("kubernetes_validate", "--strict", str(file))
    spec = yaml.safe_load(file.read_text())["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    words = shlex.split(shlex.join([*container["command"], *container["args"]]))
    assert words[words.index("--part") + 1] == f"auto/{spec['completions']}"


def test_the_values_of_the_helm_chart_agree_with_the_instance_settings() -> None:
    """The chart and its schema are not part of any package, so that only this can be compared."""
    values = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text())
    settings = yaml.safe_load((DEPLOY / "production" / "dagster.yaml").read_text())
    assert values["concurrency"]["pools"] == {"defaultLimit": 1, "granularity": "run"}
    assert settings["concurrency"]["pools"] == {"default_limit": 1, "granularity": "run"}
    daemon = values["dagsterDaemon"]
    for ours, theirs in (("run_monitoring", "runMonitoring"), ("run_retries", "runRetries")):
        words = {re.sub(r"[A-Z]", lambda m: f"_{m[0].lower()}", name): v for name, v in daemon[theirs].items()}
        assert words == settings[ours]
    assert values["retention"]["sensor"]["purgeAfterDays"] == settings["retention"]["sensor"]["purge_after_days"]
    (deployed,) = values["dagster-user-deployments"]["deployments"]
    assert deployed["dagsterApiGrpcArgs"] == ["--module-name", "definitions"]
    assert (
        deployed["image"]["tag"]
        in yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["x-dagster"]["image"]
    )


def test_the_image_has_what_it_needs_and_its_user_may_write_where_volumes_are() -> None:
    """Without a registry there is no base image to build it on; ``test_image.py`` builds it where there is one."""
    lines = (DEPLOY / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=python:(3\.\d+)-slim\nFROM \$\{BASE\}$", lines, re.MULTILINE)
    assert (PROJECT / "constraints" / f"{base}.txt").is_file()
    (folder,) = re.findall(r"^WORKDIR (\S+)$", lines, re.MULTILINE)
    assert re.findall(r"^COPY (.*)$", lines, re.MULTILINE) == [". ."]
    ignored = (PROJECT / ".dockerignore").read_text().split()
    needed = ["definitions.py", "workspace.yaml", "pyproject.toml", "README.md", "LICENSE", "constraints", "deploy"]
    for name in (*needed, "assets", "sensors", "resources", "zarr_core", "examples"):
        assert (PROJECT / name).exists()
        assert not any(fnmatch(name, pattern) for pattern in ignored)
    copied = re.findall(r"cp (\S+) \S+", lines)
    assert copied == ["deploy/production/dagster.yaml"]
    assert dockerfile_command()[-2:] == ["--module-name", "definitions"]
    (owned,) = re.findall(r"chown -R dagster (.*)$", lines, re.MULTILINE)
    assert lines.index("chown") < lines.index("\nUSER dagster")
    places = {os.path.join(folder, place) for place in owned.split()}
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    for name in ("code", "webserver", "daemon"):
        assert {volume.partition(":")[2] for volume in services[name]["volumes"]} <= places
    reports = [
        yaml.safe_load(path.read_text())["attributes"]["report"]
        for path in sorted(PROJECT.glob("assets/datasets/*/defs.yaml"))
    ]
    assert reports
    assert all(re.search(r"'demo/", report) for report in reports), "below a folder that the user may write"
