"""Checks a deployment from outside: ``python -m zarr_core.platform.sensors.watchdog http://localhost:3000``.

No sensor runs while its code location does not load or the daemon is down. This command asks the webserver, prints
what is wrong, sends it as an alert, and exits with status 1, as cron needs it. With ``--every 60`` it looks again every
60 seconds, and sends an alert when a problem begins, every hour as long as it lasts, and when all of them are over.

The addresses of alerts come from the environment, or from the secret that SECRETS_MANAGER_SECRET names.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import dagster as dg
import requests
from zarr_core.platform.resources.alerts import Alerts
from zarr_core.platform.resources.secrets import SECRET, secret_to_environment

from zarr_core._util.redaction import redact

QUERY = """query Watchdog {
  workspaceOrError {
    __typename
    ... on Workspace { locationEntries { name locationOrLoadError {
      __typename
      ... on RepositoryLocation { repositories { sensors {
        name minIntervalSeconds sensorState { status ticks(limit: 1) { timestamp } }
      } } }
      ... on PythonError { message }
    } } }
    ... on PythonError { message }
  }
  instance { daemonHealth { allDaemonStatuses { daemonType required healthy lastHeartbeatTime } } }
}"""
# Dagster itself calls a daemon healthy for half an hour after its last heartbeat. Heartbeats, and ticks of sensors,
# come every half minute, and a tick takes a minute at most.
LATE_SECONDS = 300
_INTERVALS = 3  # that a sensor with longer ones may be late
_REPEAT_SECONDS = 3600
_TIMEOUT_SECONDS = 60
_MOST_NAMES = 5


def problems_of(address: str) -> list[str]:
    """What is wrong with the deployment whose webserver has this address."""
    try:
        response = requests.post(f"{address.rstrip('/')}/graphql", json={"query": QUERY}, timeout=_TIMEOUT_SECONDS)
        response.raise_for_status()
        document = response.json()
    except requests.RequestException as error:  # also an answer that is not JSON
        return [redact(f"the webserver {address} does not answer: {type(error).__name__}: {error}")]
    if not isinstance(document, dict) or not isinstance(data := document.get("data"), dict):
        return [redact(f"{address} is not a webserver of Dagster")]
    return problems_at(data, time.time())


def problems_at(data: dict[str, Any], now: float) -> list[str]:
    """What is wrong by an answer to :data:`QUERY` at a time, in seconds since 1970."""
    workspace = data["workspaceOrError"]
    if workspace["__typename"] == "PythonError":
        return [f"the workspace does not load: {workspace['message'].strip()}"]
    down = []
    for status in data["instance"]["daemonHealth"]["allDaemonStatuses"]:
        late = now - (status["lastHeartbeatTime"] or 0.0) > LATE_SECONDS
        if status["required"] and (late or not status["healthy"]):
            down.append(status["daemonType"])
    found = []
    for entry in workspace["locationEntries"]:
        location = entry["locationOrLoadError"] or {}
        if location.get("__typename") == "PythonError":
            found.append(f"the code location {entry['name']} does not load: {location['message'].strip()}")
        late_sensors = _late_sensors(location.get("repositories", ()), now)
        if late_sensors and not down:
            named = ", ".join(late_sensors[:_MOST_NAMES])
            more = f" and {len(late_sensors) - _MOST_NAMES} more" if len(late_sensors) > _MOST_NAMES else ""
            found.append(f"sensors of {entry['name']} that run but do not tick: {named}{more}")
    if down:
        found.append(f"daemons that do not run: {', '.join(down)}")
    return found


def _late_sensors(repositories: Iterable[dict[str, Any]], now: float) -> list[str]:
    """Running sensors whose last tick is too old. One that never ticked was just added."""
    late = []
    for repository in repositories:
        for sensor in repository["sensors"]:
            state = sensor["sensorState"]
            limit = max(LATE_SECONDS, _INTERVALS * sensor["minIntervalSeconds"])
            if state["status"] == "RUNNING" and state["ticks"] and now - state["ticks"][0]["timestamp"] > limit:
                late.append(sensor["name"])
    return late


def _take_secret() -> list[str]:
    """Set the variables of the secret that the environment names; what is wrong with it."""
    try:
        secret_to_environment()
    except Exception as error:  # whatever it is: the watchdog goes on, and addresses may be set without the secret
        return [redact(f"the secret in ${SECRET} cannot be read: {type(error).__name__}: {error}")]
    return []


class Watch:
    """Looks again and again, and sends an alert when something changed."""

    def __init__(self, address: str) -> None:
        self._address, self._sent, self._sent_at = address, list[str](), 0.0

    def look(self, now: float) -> list[str]:
        """The problems at this time, in seconds since 1970; sends an alert that is due."""
        found = [*_take_secret(), *problems_of(self._address)]
        if found:
            print("\n".join(found), file=sys.stderr, flush=True)
        if found == self._sent and (not found or now - self._sent_at < _REPEAT_SECONDS):
            return found
        try:
            Alerts().send("\n".join(found) or "the watchdog finds no problem any more")
        except dg.Failure as error:  # the next look sends it
            print(error.description, file=sys.stderr, flush=True)
        else:
            self._sent, self._sent_at = found, now
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a webserver once, or again and again; returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m zarr_core.platform.sensors.watchdog", description="Checks a deployment from outside."
    )
    parser.add_argument("address", help="address of the webserver, such as http://localhost:3000")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="pause between two looks; default: look once")
    given = parser.parse_args(arguments)
    watch = Watch(given.address)
    found = watch.look(time.time())
    while given.every is not None:
        time.sleep(given.every)
        found = watch.look(time.time())
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
