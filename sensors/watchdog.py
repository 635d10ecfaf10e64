"""Checks a deployment from outside: ``python -m sensors.watchdog http://localhost:3000``, by cron for example.

No sensor runs while its code location does not load or the daemon is down. This command asks the webserver, prints what
is wrong, sends it as an alert, and exits with status 1. The addresses of alerts come from the environment, or from the
secret that SECRETS_MANAGER_SECRET names.
"""

from __future__ import annotations

import sys
from typing import Any

import requests

from resources.alerts import Alerts
from resources.secrets import SECRET, secret_to_environment
from zarr_core._util.redaction import redact

QUERY = """query Watchdog {
  workspaceOrError {
    __typename
    ... on Workspace { locationEntries { name locationOrLoadError { __typename ... on PythonError { message } } } }
    ... on PythonError { message }
  }
  instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } }
}"""
_TIMEOUT_SECONDS = 60


def problems_of(address: str) -> list[str]:
    """What is wrong with the deployment whose webserver has this address."""
    try:
        response = requests.post(f"{address.rstrip('/')}/graphql", json={"query": QUERY}, timeout=_TIMEOUT_SECONDS)
        response.raise_for_status()
        document = response.json()
    except requests.RequestException as error:  # also an answer that is not JSON
        return [redact(f"the webserver {address} does not answer: {type(error).__name__}: {error}")]
    if not isinstance(document, dict) or not isinstance(data := document.get("data"), dict):
        return [redact(f"{address} is no webserver of Dagster")]
    return _problems(data)


def _problems(data: dict[str, Any]) -> list[str]:
    workspace = data["workspaceOrError"]
    if workspace["__typename"] == "PythonError":
        return [f"the workspace does not load: {workspace['message'].strip()}"]
    found = []
    for entry in workspace["locationEntries"]:
        error = entry["locationOrLoadError"]
        if error is not None and error["__typename"] == "PythonError":
            found.append(f"the code location {entry['name']} does not load: {error['message'].strip()}")
    statuses = data["instance"]["daemonHealth"]["allDaemonStatuses"]
    down = [status["daemonType"] for status in statuses if status["required"] and not status["healthy"]]
    return [*found, *([f"daemons that do not run: {', '.join(down)}"] if down else [])]


def _take_secret() -> list[str]:
    """Set the variables of the secret that the environment names; what is wrong with it."""
    try:
        secret_to_environment()
    except Exception as error:  # whatever it is: the watchdog goes on, and addresses may be set without the secret
        return [redact(f"the secret in ${SECRET} cannot be read: {type(error).__name__}: {error}")]
    return []


def main() -> int:
    """Check the webserver that the first argument names; returns the exit status."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    found = [*_take_secret(), *problems_of(sys.argv[1])]
    if found:
        print("\n".join(found), file=sys.stderr)
        Alerts().send("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
