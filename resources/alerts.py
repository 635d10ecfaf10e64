"""Sends alerts to a webhook.

Its address comes from the environment of the code location, as credentials of stores do: it is a secret, and the UI
shows the settings of resources.
"""

from __future__ import annotations

import os

import dagster as dg
import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

# The address that takes alerts. Without it, alerts are only logged.
WEBHOOK = "ALERT_WEBHOOK"
_TIMEOUT_SECONDS = 10
_RETRIES = Retry(3, backoff_factor=0.2, status_forcelist=[429, 500, 502, 503, 504], allowed_methods=["POST"])


class Alerts(dg.ConfigurableResource):
    """Sends alerts as JSON ``{"text": ...}``, the form that Slack's webhooks have, and many others take."""

    def send(self, text: str) -> None:
        """Send an alert, if there is an address.

        Raises:
            Failure: the address cannot be reached, or refuses the alert.
        """
        address = os.environ.get(WEBHOOK)
        if not address:
            return
        with requests.Session() as session:
            for scheme in ("http://", "https://"):
                session.mount(scheme, HTTPAdapter(max_retries=_RETRIES))
            try:
                session.post(address, json={"text": text}, timeout=_TIMEOUT_SECONDS).raise_for_status()
            except requests.RequestException as error:
                # Without its message, which holds the address.
                reason = type(error).__name__ if error.response is None else f"status {error.response.status_code}"
                raise dg.Failure(f"the address in ${WEBHOOK} did not take an alert: {reason}") from None
