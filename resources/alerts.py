"""Sends alerts to a webhook and by e-mail.

Addresses and passwords come from the environment of the code location, as credentials of stores do: they are secrets,
and the UI shows the settings of resources.
"""

from __future__ import annotations

import os
import smtplib
import ssl
from collections.abc import Callable
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from urllib.parse import unquote, urlsplit

import dagster as dg
import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

# The address that takes alerts by POST.
WEBHOOK = "ALERT_WEBHOOK"
# The mail server, as smtp://user:password@host:587 or smtps://host, and the addresses; the receivers with commas.
SMTP, MAIL_FROM, MAIL_TO = "ALERT_SMTP", "ALERT_MAIL_FROM", "ALERT_MAIL_TO"
_TIMEOUT_SECONDS = 10
_RETRIES = Retry(3, backoff_factor=0.2, status_forcelist=[429, 500, 502, 503, 504], allowed_methods=["POST"])
# Services refuse long messages, Slack those of more than 40,000 characters. The log has the whole text.
_MAX_CHARACTERS = 20_000
_MAX_SUBJECT = 120


class Alerts(dg.ConfigurableResource):
    """Sends alerts as mails, and as JSON ``{"text": ...}``, the form that Slack's webhooks have, and many others."""

    def send(self, text: str) -> None:
        """Send an alert to the webhook and by e-mail, whichever is configured. Without both, alerts are only logged.

        If only one of them takes the alert, it also gets the reason why the other did not.

        Raises:
            Failure: none of them can be reached, or takes the alert.
        """
        text = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} ..."
        reasons, took = [], []
        for variable, send in ((WEBHOOK, _post), (SMTP, _mail)):
            if address := os.environ.get(variable):
                try:
                    send(address, text)
                    took.append((send, address))
                except _NotSentError as error:
                    reasons.append(f"the address in ${variable} did not take an alert: {error}")
        if not reasons:
            return
        reason = "; ".join(reasons)
        if not took:
            raise dg.Failure(reason)
        # No failure: callers send a failed alert again, which whoever took it would get every half minute.
        dg.get_dagster_logger().error(reason)
        for send, address in took:
            with suppress(_NotSentError):  # the alert was taken, and the log has the reason
                send(address, reason)


class _NotSentError(Exception):
    """Why an alert was not sent, without the address, which may be a secret."""


def _post(address: str, text: str) -> None:
    with requests.Session() as session:
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(max_retries=_RETRIES))
        try:
            session.post(address, json={"text": text}, timeout=_TIMEOUT_SECONDS).raise_for_status()
        except requests.RequestException as error:
            reason = type(error).__name__ if error.response is None else f"status {error.response.status_code}"
            raise _NotSentError(reason) from None


def _mail(address: str, text: str) -> None:
    sender, receivers = os.environ.get(MAIL_FROM, ""), os.environ.get(MAIL_TO, "")
    if not (sender and receivers):
        raise _NotSentError(f"${MAIL_FROM} and ${MAIL_TO} must be set")
    message = EmailMessage()
    message["Subject"] = f"[zarr_core] {next(iter(text.splitlines()), '')[:_MAX_SUBJECT]}"
    message["From"], message["To"] = sender, receivers
    message["Date"], message["Message-ID"] = formatdate(), make_msgid(domain=sender.rpartition("@")[2].strip("> "))
    message.set_content(text)
    try:
        with _connection(address) as server:
            refused = server.send_message(message)
    except smtplib.SMTPResponseException as error:
        raise _NotSentError(f"{type(error).__name__}, status {error.smtp_code}") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:  # ValueError: an impossible URL or address
        raise _NotSentError(type(error).__name__) from None
    if refused:  # by all: an exception
        dg.get_dagster_logger().warning(f"the mail server refused the receivers {', '.join(sorted(refused))}")


def _connection(address: str) -> smtplib.SMTP:
    """A connection to a mail server, encrypted if the server can, and always before a password is sent."""
    url = urlsplit(address)
    if url.scheme not in ("smtp", "smtps") or not url.hostname:
        raise _NotSentError("expected smtp://host:port or smtps://host:port")
    connect: Callable[..., smtplib.SMTP] = smtplib.SMTP_SSL if url.scheme == "smtps" else smtplib.SMTP
    secure = {"context": ssl.create_default_context()}
    server = connect(url.hostname, url.port or 0, timeout=_TIMEOUT_SECONDS, **(secure if url.scheme == "smtps" else {}))
    try:
        server.ehlo_or_helo_if_needed()
        encrypted = url.scheme == "smtps"
        if not encrypted and server.has_extn("starttls"):
            server.starttls(**secure)
            encrypted = True
        if url.username:
            if not encrypted:
                raise _NotSentError("the server has no STARTTLS, and a password is only sent encrypted")
            server.login(unquote(url.username), unquote(url.password or ""))
    except BaseException:
        server.close()
        raise
    return server
