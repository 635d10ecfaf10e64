"""Alerts: mails and webhooks that take them, or refuse."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

import dagster as dg
import pytest
from zarr_core.platform.resources.alerts import MAIL_TO, SMTP, Alerts

from tests.helpers.servers.alerts import MailServer, Webhook, certificate_for_localhost, serving


@pytest.mark.parametrize("encrypted", [True, False])
def test_mails_are_sent_encrypted_with_a_password(
    encrypted: bool, tmp_path: Path, mail_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = certificate_for_localhost(tmp_path / "localhost.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    secure = MailServer(certificate, encrypted=encrypted)
    with serving(secure.server):
        monkeypatch.setenv(SMTP, secure.address.replace("//", "//dagster:p%40ss@"))
        Alerts().send("run 1 failed: \u00e4\nsecond line")
        monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
        with pytest.raises(dg.Failure, match="ALERT_SMTP did not take an alert: SSLCertVerificationError"):
            Alerts().send("to another server")
    assert secure.logins == [b"\0dagster\0p@ss"]
    (mail,) = secure.mails
    assert secure.texts == ["run 1 failed: \u00e4\nsecond line"]
    assert {name: mail[name] for name in ("Subject", "From", "To")} == {
        "Subject": "[zarr_core] run 1 failed: \u00e4",
        "From": "dagster@example.org",
        "To": "a@example.org",
    }


@pytest.mark.parametrize(
    ("address", "statuses", "reason"),
    [
        ("{address}", [451], "SMTPDataError, status 451"),
        ("smtp://dagster:secret@localhost:{port}", [], "the server has no STARTTLS"),
        ("localhost:{port}", [], "expected smtp://host:port"),
        ("smtp://localhost:99999", [], "ValueError"),
        ("smtp://localhost:1", [], "ConnectionRefusedError"),
    ],
)
def test_a_mail_that_cannot_be_sent_is_an_error_without_the_password(
    address: str, statuses: list[int], reason: str, mail_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SMTP, address.format(address=mail_server.address, port=mail_server.port))
    mail_server.statuses = statuses
    with pytest.raises(dg.Failure, match=f"ALERT_SMTP did not take an alert: {reason}") as error:
        Alerts().send("run 1 failed")
    assert "secret" not in "".join(traceback.format_exception(error.value))
    assert mail_server.mails == []


def test_an_alert_that_one_address_took_is_not_sent_again(webhook: Webhook, mail_server: MailServer) -> None:
    """A revoked webhook: the mails would repeat in each tick. They tell why the webhook did not take the alert."""
    webhook.statuses = [404]
    Alerts().send("run 1 failed")
    assert webhook.texts == []
    assert mail_server.texts == ["run 1 failed", "the address in $ALERT_WEBHOOK did not take an alert: status 404"]
    mail_server.statuses = [451]
    Alerts().send("run 2 failed")
    reason = "the address in $ALERT_SMTP did not take an alert: SMTPDataError, status 451"
    assert webhook.texts == ["run 2 failed", reason]


def test_receivers_that_are_refused_are_logged(
    mail_server: MailServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(MAIL_TO, "a@example.org, gone@example.org")
    mail_server.refused = {"gone@example.org"}
    monkeypatch.setattr("zarr_core.platform.resources.alerts.dg.get_dagster_logger", logging.getLogger)
    Alerts().send("long " * 10_000)
    assert "refused the receivers gone@example.org" in caplog.text
    assert len(mail_server.texts[0]) < 21_000
    mail_server.refused.add("a@example.org")
    with pytest.raises(dg.Failure, match="SMTPRecipientsRefused"):
        Alerts().send("run 1 failed")
    monkeypatch.delenv(MAIL_TO)
    with pytest.raises(dg.Failure, match="ALERT_MAIL_TO must be set"):
        Alerts().send("run 1 failed")
