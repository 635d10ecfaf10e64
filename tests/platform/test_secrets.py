"""Credentials from AWS Secrets Manager."""

from __future__ import annotations

import os
from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws
from zarr_core.platform.resources.secrets import SECRET, secret_to_environment
from zarr_core.platform.sensors import watchdog

import definitions


@pytest.fixture(autouse=True)
def _aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv(SECRET, "zarr-core")
    for variable in ("ALERT_WEBHOOK", "ALERT_SMTP"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    with mock_aws():
        yield


def store(text: str) -> None:
    boto3.session.Session().client("secretsmanager").create_secret(Name="zarr-core", SecretString=text)


def test_the_code_location_sets_what_the_secret_adds_to_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALERT_SMTP", "smtp://declared")
    store('{"ALERT_WEBHOOK": "https://from/secret", "ALERT_SMTP": "smtp://from.secret"}')
    monkeypatch.setattr("zarr_core.platform.assets.project.load_datasets", lambda project, declared, shared: shared)
    definitions.defs.load_fn()
    assert (os.environ["ALERT_WEBHOOK"], os.environ["ALERT_SMTP"]) == ("https://from/secret", "smtp://declared")


def test_the_watchdog_sends_alerts_to_the_address_of_the_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr("zarr_core.platform.resources.alerts._post", lambda address, text: sent.append((address, text)))
    monkeypatch.setattr(watchdog.sys, "argv", ["watchdog", "http://webserver:3000"])
    monkeypatch.setattr(watchdog, "problems_of", lambda address: ["no daemon runs"])
    assert watchdog.main() == 1
    (problem, _) = capsys.readouterr().err.splitlines()
    assert problem.startswith(f"the secret in ${SECRET} cannot be read: ResourceNotFoundException")
    assert sent == []
    store('{"ALERT_WEBHOOK": "https://from/secret"}')
    assert watchdog.main() == 1
    assert sent == [("https://from/secret", "no daemon runs")]


@pytest.mark.parametrize("text", ["hunter2", '["hunter2"]', '{"password": {"value": "hunter2"}}'])
def test_a_secret_of_another_form_is_refused_without_showing_it(text: str) -> None:
    store(text)
    with pytest.raises(ValueError, match="not a JSON object of strings") as caught:
        secret_to_environment()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None, "the error of the JSON parser has the whole text"


def test_without_the_variable_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET)
    before = dict(os.environ)
    secret_to_environment()
    assert dict(os.environ) == before
